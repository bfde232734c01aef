// The links of an engine: their table, the counts of their rails, and the events of rails that
// callers wait for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "clock.h"
#include "link.h"
#include "memory.h"
#include "operations.h"
#include "rail_status.h"
#include "rings.h"
#include "sleep.h"

namespace slackline {

// The table of an engine's links. A link is made late: its first rail comes when an operation needs
// the peer. All calls are made under the engine's lock; next_event() releases the lock while it
// waits.
class Links {
 public:
  struct Uses {
    Clock& clock;
    Memory& memory;
    Sleep& sleep;  // watches the sockets of rails
    const Operations& operations;
  };

  explicit Links(const Uses& uses) : uses_(uses), rings_(uses.memory.arena()) {}
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Add a link without a rail, and return its number.
  int add(const Link::Uses& uses, std::string name, const LinkOptions& options);
  // Return the link with this number. Throws std::out_of_range.
  Link& at(int number) const { return *links_.at(static_cast<std::size_t>(number)); }
  // Return whether no link is in the table, which is so once the engine is closed.
  bool empty() const { return links_.empty(); }
  // Return the links that have or had a rail, in the order of their first rails.
  const std::vector<Link*>& made() const { return made_; }
  void note_made(Link& link) { made_.push_back(&link); }  // needs no memory
  // Return whether every link is down or has nothing left to send.
  bool idle() const;
  // Destroy all links.
  void clear();
  // Close the descriptors of all rails in a forked child, so that the peers see the end of the
  // parent when it ends. The links themselves stay alive there, since groups point to them.
  void leave_to_parent();

  // Mark a link as having frames to send, until take_dirty().
  void mark_dirty(Link& link) noexcept;
  bool any_dirty() const { return !dirty_.empty(); }
  // Return the links that were marked, in the order of the marks, and remove the marks. The result
  // is valid until the next call.
  const std::vector<Link*>& take_dirty() {
    taken_dirty_.clear();
    taken_dirty_.swap(dirty_);
    return taken_dirty_;
  }

  // Send all that may be sent on the links that are marked.
  void send();
  // Prepare the links for a sleep. Return false if one of them has something to do.
  bool ready_to_sleep();

  // Watch the socket of a new rail.
  void rail_added(const Link& link, int rail, const WireRail& wire);
  // Stop watching the socket of a rail that ends.
  void rail_removed(const WireRail& wire);
  // Watch for the end of the process that shares memory with this one, by this socket.
  void watch_process(const Link& link, int fd) {
    uses_.sleep.loop().watch_control(fd, link.index());
  }
  void unwatch_process(int fd) { uses_.sleep.loop().unwatch(fd); }
  // Watch for room in the socket of a rail if it is full, and only then.
  void watch_room(const Link& link, int rail, WireRail& wire);
  // Return whether a rail leads to another host.
  bool far() const { return far_rails_ > 0; }
  // Return whether one question to the event loop is cheaper than a read of each socket.
  bool many_rails() const { return wire_rails_ > kFewRails; }
  // Return the time in nanoseconds between two probes of a rail. An engine with many rails probes
  // each less often, so that the number of probes does not grow with the ranks.
  std::int64_t probe_pause_ns() const;
  // Return the next time at which a rail needs its tick() or a link its watch(); WireRail::kNever
  // when nothing is due.
  std::int64_t due_ns() const;

  Rings& rings() { return rings_; }
  // Unmap the memory of the peer of a link that has ended, and free the ring of this link.
  void unmap(Link& link);

  // Queue an event about a rail, or about the link if `rail` is -1, for next_event().
  void announce(const Link& link, int rail, const char* what, std::string reason);
  // Wait for an event and return it. Return nothing once no event is left and `ended` is true.
  std::optional<RailEvent> next_event(std::unique_lock<std::mutex>& lock, const bool& ended);
  // Let the threads that wait in next_event() look at `ended` again.
  void wake_readers() { event_.notify_all(); }
  // Return the state of every rail, rails of lost links included.
  std::vector<RailStatus> rails() const;
  // Add the counts of all links to `counts`.
  void count(Port::Counts& counts) const;

 private:
  static constexpr int kFewRails = 2;

  std::int64_t due_of(const Link& link) const;

  const Uses uses_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Link*> made_;
  std::vector<Link*> dirty_, taken_dirty_;  // both have room for all links
  int wire_rails_ = 0, far_rails_ = 0;
  Rings rings_;
  std::deque<RailEvent> events_;
  std::condition_variable event_;
};

}  // namespace slackline
