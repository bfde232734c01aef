// The NIC engine: one lock, one thread at a time that makes progress, many concurrent operations.
//
// Any thread that holds the lock may make progress. A caller that waits drives the engine itself. A
// progress thread drives it while operations are outstanding that no caller waits for. See
// docs/design.md, "Who drives the engine".
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "completion_queue.h"
#include "connections.h"
#include "entry.h"
#include "group.h"
#include "machine.h"
#include "open_operations.h"
#include "operation_log.h"
#include "roles.h"
#include "slackline/arena.h"
#include "slackline/engine.h"

namespace slackline {

// Any thread may make any call.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Arena& arena() { return machine_.memory().arena(); }
  // The calls about links and rails (paths to peers).
  Connections& connections() { return connections_; }
  // The calls about aggregators, their workers and devices.
  Roles& roles() { return roles_; }
  OperationLog& operation_log() { return operation_log_; }
  // Return whether this process was forked from the engine's own.
  bool elsewhere() const { return entry_.elsewhere(); }

  // Return whether a group with this epoch is open, or closed while a peer may still send its
  // frames.
  bool uses_epoch(std::uint32_t epoch);
  std::shared_ptr<Group> open_group(std::uint32_t epoch, int rank, const std::vector<int>& links,
                                    bool rank_order);
  // Return the reason why the group cannot be used any more, or an empty string while it can.
  std::string broken(Group& group);
  // Post an operation. With `drive` the calling thread also drives the engine until the operation
  // has finished.
  std::shared_ptr<Request> post(Group& group, const Operation& operation, bool drive);
  // Set the weights of the ranks' shares (empty: equal shares), and start the operations that wait
  // for the weights. `number` identifies the weights in frames. `program` replaces the program of
  // each of these operations; weights need a program with a chunk for each rank. Throws
  // std::invalid_argument for wrong arguments.
  void set_shares(Group& group, Shares& shares, std::vector<std::uint32_t> weights, int number,
                  std::shared_ptr<const Program> program);
  // Fail the operations that wait for these shares, and all operations posted with these shares
  // later.
  void decline(Shares& shares, Failure failure);
  // Fail an operation on every rank; nothing happens if it has ended here.
  void cancel(Request& request, Failure failure);
  // Wait for an operation. Return false when `timeout_ns` passed first; a negative timeout leaves
  // the limit to the operation's own deadline.
  bool wait(Request& request, std::int64_t timeout_ns);
  // Let next_completion() return `request` once. Return true, and do nothing, if it has finished.
  bool watch(Request& request);
  // Write `value` to `word` when the last of the operations has ended, unless one of them fails.
  // The word is written before the end of the last operation can be seen. Return false, and do
  // nothing, if all of them have ended, or one has failed. The word must outlive the operations.
  bool open_at_end(const std::vector<Request*>& requests, std::uint32_t& word, std::uint32_t value);
  // Block until a watched operation finishes. Return null once the engine is closed.
  std::shared_ptr<Request> next_completion();
  // Make next(queue) return `request` once, even if the request has finished already.
  void watch(Request& request, std::shared_ptr<CompletionQueue> queue);
  // Drive the engine in the caller's thread until an operation of the queue has ended; return all
  // that have ended, or none after `timeout_ns` or once the engine is closed.
  std::vector<std::shared_ptr<Request>> next(CompletionQueue& queue, std::int64_t timeout_ns);
  // Leave the group. Receives whose message has not begun to arrive fail at once. Other operations
  // get up to `timeout_ns` to finish, and fail then.
  void close_group(Group& group, std::int64_t timeout_ns);
  void abort_group(Group& group, const std::string& reason);
  void close(std::int64_t timeout_ns);
  std::vector<OpenOperation> pending();  // the operations that have not ended, the oldest first
  // Return the operations that have failed since the previous call.
  FailureLog::Taken failures();
  // Return the address of newly allocated registered memory, or null if the arena has no room.
  std::byte* allocate(std::size_t bytes);
  // Return the bytes of freed memory that cannot be allocated yet, by the name of the peer that may
  // still read or write the memory, because it has not taken note that an operation has failed.
  std::map<std::string, std::uint64_t> withheld();
  // Return the engine's counters. After close() the values no longer change.
  std::map<std::string, std::uint64_t> counters();

 private:
  using Lock = Driver::Lock;

  void interrupt(Request& request);
  void finish_open(Lock& lock, Group& group, std::int64_t until_ns);
  std::map<std::string, std::uint64_t> count();

  const EngineOptions options_;
  OperationLog operation_log_;
  Machine machine_;
  Entry entry_{machine_};
  Connections connections_{entry_};
  Roles roles_{entry_};
  std::map<std::string, std::uint64_t> last_counters_;  // set by close()
};

}  // namespace slackline
