// The operations of an engine that have not ended, by the event that each waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "group.h"
#include "request.h"

namespace slackline {

// The table of posted operations. An operation is held, then queued, then started; short operations
// are started at once. A receive from any source waits for its sender before the start. All calls
// are made under the engine's lock.
class Operations {
 public:
  using Pointer = std::shared_ptr<Request>;
  using Started = std::unordered_map<Key, Pointer, KeyHash>;

  // Hold an operation until its shares are known, or a barrier until earlier operations have ended.
  void hold(Pointer request) { held_.push_back(std::move(request)); }
  // Return the operations that wait for these shares, in the order of their posts.
  std::vector<Pointer> undivided(const Shares& shares) const;
  // Queue the held barriers of the group whose earlier operations have ended.
  void release_barriers(const Group& group);
  // Return an untagged collective operation that was posted on the group before the barrier and has
  // not ended, or null. A barrier begins after all such operations have ended, so that after a
  // barrier all collectives posted before it have ended on every rank, as in torch's gloo backend.
  // Barriers do not wait for tagged operations or for operations of the library itself.
  const Request* open_before(const Request& barrier) const;

  // Queue an operation for the thread that drives the engine, which starts the operation.
  void queue(Pointer request) { queued_.push_back(std::move(request)); }
  bool any_queued() const { return !queued_.empty(); }
  // Remove and return the operation that was queued first, or null.
  Pointer take_queued();
  // Return whether the operation is held or queued.
  bool waits_to_start(const Key& key) const;

  // Let a receive from any source wait for its sender.
  void wait_for_sender(Pointer request) { any_source_.push_back(std::move(request)); }
  // Remove and return the oldest receive from any source for which a message `key` of the rank
  // `source`, over `link`, is meant. Return null if there is none.
  Pointer take_receive(const Key& key, const Link& link, int source);

  // Register an operation, so that frames find it.
  void start(const Pointer& request);
  // Return the started operation with this identity, or null.
  Pointer find(const Key& key) const {
    const auto it = started_.find(key);
    return it == started_.end() ? nullptr : it->second;
  }
  const Started& started() const { return started_; }
  // Return whether a payload in the memory of the link's peer waits for its step.
  bool refer_to_memory_of(const Link& link) const;
  // Remove an operation from the started ones, if it is one.
  void end(Request& request);
  // Remove a failed operation from those that wait before their start. A queued operation stays,
  // and its start does nothing.
  void forget(const Pointer& request);

  // Return whether an operation has started or waits for its sender.
  bool any_open() const { return !started_.empty() || !any_source_.empty(); }
  // Return the operations of the group, or with null of the engine, that have not ended.
  std::vector<Pointer> open(const Group* group = nullptr) const;
  // Return the operations of the group that have started, are held, or wait for a sender.
  std::vector<Pointer> started_in(const Group& group) const;
  std::vector<Pointer> held_in(const Group& group) const;
  std::vector<Pointer> receives_in(const Group& group) const;
  // Empty the queue of operations that have all ended.
  void clear_queue() { queued_.clear(); }
  // Remove and return one operation, or null if there is none. Takes no memory.
  Pointer take_any() noexcept;
  // Return the operations whose deadline has passed. A queued operation has none before its start.
  std::vector<Pointer> late(std::int64_t now_ns) const;
  // Return the earliest deadline of these operations, or the largest number without one.
  std::int64_t next_deadline_ns() const;

 private:
  std::vector<Pointer> held_;
  std::deque<Pointer> queued_;
  std::vector<Pointer> any_source_;
  Started started_;
};

}  // namespace slackline
