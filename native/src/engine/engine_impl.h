// The NIC engine: one lock, one thread at a time that makes progress, many concurrent operations.
//
// Any thread that holds the lock may make progress. A caller that waits drives the engine itself. A
// progress thread drives it while operations are outstanding that no caller waits for. See
// docs/design.md, "Who drives the engine".
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../rail/rail.h"
#include "aborted_operations.h"
#include "aggregation.h"
#include "buffers.h"
#include "completion_queue.h"
#include "completions.h"
#include "event_loop.h"
#include "group.h"
#include "headers.h"
#include "lent_memory.h"
#include "links.h"
#include "membership.h"
#include "offload.h"
#include "open_operations.h"
#include "operations.h"
#include "rail_status.h"
#include "slackline/arena.h"
#include "slackline/engine.h"
#include "split.h"
#include "unexpected_frames.h"

namespace slackline {

// The error of a process that was forked from the engine's own process and then used the engine.
struct Elsewhere : std::logic_error {
  using std::logic_error::logic_error;
};

// The way in which a peer left a group: by closing it, by an end of its process or of the link
// after all that it had sent was read, or by an abort.
enum class Leave : std::uint8_t { kOrderly, kLost, kBroken };

class Engine final : public FrameSink {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- any thread ---
  const EngineOptions& options() const { return options_; }
  OperationLog operation_log;
  Arena& arena() { return arena_; }
  int doorbell_fd() const { return loop_.doorbell_fd(); }
  std::uint64_t new_ring();
  // Free a ring that no rail has and no peer writes to. Return false when `offset` has no ring.
  bool free_ring(std::uint64_t offset);
  // Add a link to one peer, without a rail as yet. The first operation that needs the peer causes
  // the event "wanted" and waits for a rail. The other parameters are passed to Link.
  int add_link(std::string name, bool reconnect = false, std::uint32_t first_sequence = 1,
               bool shared = false);
  // Add a rail to a link and take ownership of `fd`. `rail` is the rail's index, the same at both
  // ends; an existing rail with that index is replaced. `job` is the job code that every frame
  // carries. `most_packet_bytes` limits the payload of a UDP packet to what the peer's NIC takes.
  void add_rail(int link, int rail, RailKind kind, int fd, std::uint32_t job, bool checksums = true,
                std::string name = {}, std::size_t most_packet_bytes = 65'535);
  void drop_rail(int link, int rail, const std::string& reason);
  void unreachable(int link, const std::string& reason);
  void hindered(int link, const std::string& why);  // why there is no first rail yet
  // Let a link that has had no rail use wires in place of the planned shared memory.
  void use_wires(int link);
  void set_fault(int link, int rail, const std::optional<FaultState>& state);
  // Block until a rail changes state. Return nothing once the engine is closed.
  std::optional<RailEvent> next_event();
  std::vector<RailStatus> rails();
  // Add a rail over a peer's arena that this process has mapped; take ownership of the descriptors.
  void add_shm_rail(int link, std::shared_ptr<PeerArena> arena, int doorbell_fd, int control_fd,
                    std::uint64_t receive_ring, std::uint64_t send_ring);
  // Map the peer's arena behind `arena_fd`, and add a rail over it.
  void add_shm_rail(int link, int arena_fd, std::size_t arena_bytes, int doorbell_fd,
                    int control_fd, std::uint64_t receive_ring, std::uint64_t send_ring);
  bool link_alive(int link);
  // Return whether a group with this epoch is open, or closed while a peer may still send its
  // frames.
  bool uses_epoch(std::uint32_t epoch);
  std::shared_ptr<Group> open_group(std::uint32_t epoch, int rank, const std::vector<int>& links,
                                    bool rank_order);
  // Make this rank, the last member of `group`, an aggregator. An aggregator posts no operations
  // itself: frames from the other members begin the operations, and the aggregator adds according
  // to its part of `program`. Addition starts when `onset` segments of every member have arrived.
  void serve(Group& group, std::shared_ptr<const Program> program, std::uint32_t onset);
  // Make `fallback` take over unfinished operations of `group` when the group's last member, an
  // aggregator, is lost. `program` is this rank's part of the plan that `fallback` then runs. Both
  // groups must be new.
  void fall_back(Group& group, std::shared_ptr<Group> fallback,
                 std::shared_ptr<const Program> program);
  // Attach, before the group's first operation, a device that adds for the group where it can.
  void attach(Group& group, std::string name);
  // Block until there is work for the group's device. Return nothing once the group or the engine
  // is closed.
  std::optional<DeviceWork> device_work(Group& group);
  // Accept results of the device: `frames` to send, in order; `completed` operations, whose whole
  // result is in their device memory; `released` operations, which were withdrawn earlier. The
  // device no longer uses the memory of either. Throws std::invalid_argument for an impossible
  // answer; the caller then calls device_failed().
  void device_answer(Group& group, std::span<const std::span<const std::byte>> frames,
                     std::span<const DeviceKey> completed, std::span<const DeviceKey> released);
  // Fail the group on every rank because its device will not answer any more.
  void device_failed(Group& group, const std::string& reason);
  // Declare, after the last device_work(), that the device is closed and uses no memory any more.
  void device_closed(Group& group);
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
  // Return the address of newly allocated registered memory, or null if the arena has no room.
  std::byte* allocate(std::size_t bytes);
  // Return the bytes of freed memory that cannot be allocated yet, by the name of the peer that may
  // still read or write the memory, because it has not taken note that an operation has failed.
  std::map<std::string, std::uint64_t> withheld();
  // Return the operations that have failed since the previous call.
  FailureLog::Taken failures();
  // Return the engine's counters. After close() the values no longer change.
  std::map<std::string, std::uint64_t> counters();
  // Throws Elsewhere in a process that was forked from the engine's own. Every call that takes the
  // lock makes this check.
  void check_process() const;
  // Return whether this process was forked from the engine's own.
  bool elsewhere() const { return elsewhere_; }

  // --- under the lock: for Link ---
  std::uint64_t eager_bytes(const Request& request) const;
  // Note that the memory of one sent segment is no longer in use.
  void send_finished(Request& request);
  // Note that a send has copied its data, so that a waiting REDUCE_ALL may overwrite the original.
  void copied(Request& request, std::uint32_t chunk, std::uint32_t segment);
  std::size_t slot_bytes() const {
    return std::max(options_.memory_segment_bytes, options_.wire_segment_bytes);
  }
  int take_slot();  // -1 when the arena has no room
  // Fail the request because the arena has no room for a staging slot.
  void lacks_slot(Request& request);
  std::byte* slot(int index) const { return slots_[static_cast<std::size_t>(index)]; }
  void release_slot(Request& request, Segment& segment);
  const std::byte* keep(Request& request, std::size_t offset, std::size_t bytes);
  // Return whether a REDUCE_ALL has stored the segment's result in the peer's memory already.
  bool answered(const Request& request, std::uint32_t chunk, std::uint32_t segment, int peer) const;
  // Clear the mark that answered() returns, once the peer has been notified of the result.
  void forget_answer(Request& request, std::uint32_t chunk, std::uint32_t segment, int peer);
  void tell_past(Link& link);

  // --- under the lock: FrameSink ---
  std::byte* direct_placement(Link& link, const wire::Header& header, Request** request) override;
  void arrive(Link& link, const wire::Header& header, const Payload& payload) override;
  std::byte* take_buffer(std::size_t bytes) override { return buffers_.take(bytes); }
  void give_buffer(std::byte* buffer) override { buffers_.give(buffer); }
  bool lock_wanted() const override { return wanting_.load(std::memory_order_relaxed) > 0; }

  // Memory reserved for error handling, enough to tell the peers of many operations why they
  // failed.
  static constexpr std::size_t kReserveBytes = 1u << 20;

 private:
  using Lock = std::unique_lock<std::mutex>;

  // post.cc
  std::shared_ptr<Request> build(Group& group, const Operation& operation);
  void lay_out(Request& request, const Operation& operation);
  static bool widens(const Request& request);
  std::byte* scratch(Request& request, std::size_t bytes);
  std::byte* room(Request& request, std::size_t bytes, const char* what);
  void start(const std::shared_ptr<Request>& request);
  void start_any_source(const std::shared_ptr<Request>& request);
  void bind_any_source(const std::shared_ptr<Request>& request, int peer);
  void promise(Request& request);

  // shares.cc
  static Part part_of(const Request& request, std::uint64_t count, int chunk);

  // deliver.cc
  std::shared_ptr<Group> finished_in(const Key& key) const;
  void handle(Link& link, const wire::Header& header, const Payload& payload);
  void drop_arriving() noexcept;
  std::shared_ptr<Request> find_or_bind(const Key& key, Link& link, int source);
  bool on_data(Link& link, const wire::Header& header, const Payload& payload);
  void accept(Request& request, Link& link, const wire::Header& header, const Payload& payload);
  void on_grant(Link& link, const wire::Header& header);
  void on_release(Link& link, const wire::Header& header);
  void advance(Request& request, std::uint32_t chunk, std::uint32_t segment);
  bool pass(Request& request, std::uint32_t chunk, std::uint32_t segment, const Step& step);

  // reduce.cc
  void reduce_all(Request& request, std::uint32_t chunk, std::uint32_t segment);
  void consume(Request& request, Chunk& chunk, std::uint32_t segment, PendingPayload* pending,
               const Step& step);
  void drop_pending(Request& request, Chunk& chunk, std::uint32_t segment, PendingPayload* pending);
  // Return the memory of a payload that is in no segment any more.
  void discard(PendingPayload* pending) noexcept;
  PendingPayload* take_pending(Segment& segment, int peer);
  std::uint64_t window_of(const Request& request, int peer) const;
  std::uint64_t promise_of(const Request& request, int peer, std::uint64_t from) const;
  void maybe_grant(Request& request, int peer);

  // engine.cc
  // Allocate arena memory under the lock.
  std::byte* allocate_room(std::size_t bytes);
  // Remove a staging slot from the table and return its memory, which the caller frees.
  std::byte* remove_slot(int index) noexcept;

  // finish.cc
  void maybe_finish(Request& request);
  void finish(Request& request, RequestState state);
  // Return all buffers and slots of a request that has ended.
  void retire(Request& request);
  void give_back_pending(Request& request);
  void withhold_lent(Request& request) noexcept;
  template <class Note>
  void each_lent(const Request& request, const Note& note) const;
  // Return whether this rank has left the group, or leaves all groups. Its peers may go on using
  // the data that it has sent.
  bool leaves(const Group& group) const { return group.closed || closing_; }

  // serve.cc
  void early(const Key& key);
  void serve(Group& group, const Key& key);
  bool begin(Group& group, const Key& key);
  void count_arrival(Request& request, int peer);
  void served(const Request& request);
  void report_results(const Group& group, const std::vector<std::uint64_t>& tags);

  // device.cc
  bool offload(Request& request, std::uint32_t chunk, std::uint32_t segment, const Step& step);
  // Give a peer's payload to the device. Return false when the payload has not arrived yet.
  bool hand(Request& request, std::uint32_t chunk, std::uint32_t segment, int peer, bool partial);
  void complete(Request& request, std::uint32_t chunk);
  void take_answer(const Group& group, std::span<const std::span<const std::byte>> frames,
                   std::span<const DeviceKey> completed);
  void close_device(Group& group);

  // fallback.cc
  void begin_replay_copy(Request& request);
  static bool may_divert(const Request& request, const Failure& failure);
  void abandon(Group& group, Failure failure);
  // Start an unfinished request again among the ranks themselves, after their aggregator was lost.
  void divert(Request& request);
  void help(Group& group, const Key& key);
  void watch_aggregators(std::int64_t now);
  void forget_replay_copies(const wire::Header& header, const Payload& payload);

  // fail.cc
  void fail(Request& request, Failure failure, bool tell_peers);
  void remember_abort(const Key& key, Failure failure);
  bool was_aborted(const Key& key) const;
  Failure no_room(const Request& request, std::size_t bytes, const char* what) const;
  void broke_down(const std::exception& error) noexcept;
  // Make a change that a caller has asked for. Without memory in its middle the change is half
  // done, so the engine fails; the exception goes on to the caller.
  template <class Change>
  void change(const Change& make) {
    try {
      make();
    } catch (const std::bad_alloc& error) {
      broke_down(error);
      throw;
    }
  }
  void tell_failure_of(Request& request, bool tell_peers, bool bound);
  // End an operation that may be in no table, after the engine has failed.
  void end_broken(Request& request) noexcept;
  void end_without_memory(Request& request) noexcept;
  void fail_without_memory() noexcept;
  void fail_everything(const Failure& failure);
  void tell_breakdown(const std::exception& error);
  void on_abort(Link& link, const wire::Header& header, const Payload& payload);
  void on_bye(Link& link, const wire::Header& header);
  void link_lost(Link& link);
  static bool needs(const Request& request, int rank);
  bool ends_with(const Request& request, int rank, Leave how) const;
  bool told_of_loss(Group& group, int rank, const Failure& failure);
  void end_told_losses(std::int64_t now);
  bool may_outlive_loss(const Request& request) const;
  static bool sends_to(const Request& request, int rank);
  void peer_left(Group& group, int rank, const Failure& failure, Leave how);
  void check_deadlines(std::int64_t now);
  void break_group(Group& group, const Failure& failure);

  // link_wanted.cc
  void tell_left(Link& link, const GroupNotice& notice);
  void tell_failure(const Group& group);
  static bool sparse(const Group& group);
  void pass_on(const Group& group, int culprit);

  // describe.cc
  Failure stray(const Group& group, const wire::Header& header) const;
  std::optional<Key> posted_instead(const Request& request, int rank) const;
  std::string describe(const Request& request) const;
  std::string waiting_for(const Request& request, int* peer) const;
  std::vector<MissingPart> missing(const Request& request) const;
  Failure mismatch(const Request& request, const wire::Header& header) const;

  // open_operations.cc
  OpenOperation open_operation(const Request& request) const;
  void note_failure(const Request& request);

  // rails.cc
  bool drop_ring(std::uint64_t offset);
  void release_memory(Link& link);
  bool reads_memory_of(const Link& link) const;

  std::map<std::string, std::uint64_t> count();

  // engine.cc
  void abort_over(Link& link, const GroupNotice& notice);
  void give_up(Group& group, const std::string& reason);
  Lock lock_for_post();

  // leave.cc
  void leave(Lock& lock, Group& group, std::int64_t until_ns);
  bool refuses(const Key& key) const;
  void refuse_message(Link& link, const Group& group, const wire::Header& header);
  static Failure closed_here(const Group& group);
  void end_group(Group& group);
  void interrupt(Request& request);
  void say_bye(Lock& lock, std::int64_t until_ns);

  // fork.cc
  // Register this engine for the handlers that run when the process forks.
  void register_at_fork();
  // Remove this engine from the handlers that run when the process forks.
  void unregister_at_fork();
  // Disable this engine in a forked child.
  void leave_to_parent();

  // drive.cc
  struct Driving;
  bool progress();
  void watch_links(std::int64_t now);
  // Release the lock for a moment if posting threads wait for it.
  void hand_over_lock(Lock& lock);
  // Send all that may be sent on the links that are marked dirty.
  void drain_dirty();
  void sleep(Lock& lock, std::int64_t until_ns);
  void wait_for_events(Lock& lock, std::int64_t until_ns);
  // Call `look` of the options without the lock if it is due. `due_ns`, 0 at the first call, is the
  // time of the next look.
  void look_around(Lock& lock, std::int64_t now, std::int64_t& due_ns) const;
  void run();
  void wake();
  void wake_for(const Request& request);
  bool poll_rail(Link& link, WireRail& wire);
  bool poll_sockets();
  bool serve_events(std::span<const LoopEvent> events);
  bool serve_rails(Link& link, bool poll);
  void drive(Lock& lock, Request& request, std::int64_t until_ns);
  void drive(Lock& lock, const CompletionQueue& queue, std::int64_t until_ns);
  template <class Ended>
  void drive_until(Lock& lock, const Ended& ended, std::int64_t until_ns, std::int64_t deadline_ns);
  void note_pause(std::int64_t slept_ns);

  friend class Group;
  friend struct Forks;
  friend struct EngineView;  // of tests

  const EngineOptions options_;
  Arena arena_;
  Buffers buffers_;
  EventLoop loop_;

  std::mutex mutex_;
  std::condition_variable work_;      // signals the progress thread
  std::condition_variable finished_;  // signals waiting callers
  Completions completions_;           // what next_completion() returns
  bool elsewhere_ = false;            // set in a forked child before its own code runs
  bool closing_ = false;
  bool stopped_ = false;
  int callers_driving_ = 0;
  int waiters_ = 0;
  // How long a waiting caller polls before it sleeps.
  std::int64_t spin_ns_ = std::int64_t{options_.spin_microseconds} * 1000;
  std::uint64_t inline_operations_ = 0;
  std::size_t async_open_ = 0;
  bool asleep_ = false;  // some thread is in loop_.wait()
  std::int64_t asleep_until_ = 0;
  bool caller_asleep_ = false;  // the sleeping thread is a caller, not the progress thread
  // Number of posting threads that want the lock; the driving thread releases it for them.
  std::atomic<int> wanting_{0};
  std::int64_t last_deadline_check_ = 0, last_watch_ = 0;
  std::int64_t next_told_loss_ns_ = WireRail::kNever;  // see Group::told_losses

  Links links_{loop_};
  // The events of the latest sleep that are not handled yet, those of the sleep in progress, and
  // those that a driving thread asks for. Each has room for all events of one wait.
  std::vector<LoopEvent> woken_by_, slept_for_, polled_;
  Membership membership_;
  Operations operations_;
  UnexpectedFrames unexpected_;
  AbortedOperations aborted_;
  std::vector<std::byte*> slots_;
  std::vector<int> free_slots_;
  std::vector<int> vacant_slots_;  // indices of `slots_` without memory
  LentMemory lent_{arena_};
  std::set<std::uint64_t> rings_;  // offsets in the arena
  std::vector<PendingPayload*> idle_pending_;
  std::size_t pending_made_ = 0;
  std::vector<const void*> reduce_sources_;  // sources and targets of the current reduction
  std::vector<void*> reduce_targets_;
  Durations durations_;
  FailureLog failures_;
  std::uint64_t posted_ = 0;  // operations, and messages, posted so far
  std::uint64_t ended_operations_ = 0;
  std::uint64_t bytes_reduced_ = 0;
  std::uint64_t sleeps_ = 0;
  OffloadCounters offloaded_;
  std::map<std::string, std::uint64_t> last_counters_;  // set by close()
  std::unique_ptr<std::byte[]> reserve_;                // memory for error handling after bad_alloc
  Failure breakdown_;  // why the engine has failed, so that nothing can be posted any more
  // The buffer of the frame that arrives at this moment, until it has an owner; null if none.
  std::byte* arriving_ = nullptr;

  std::thread thread_;
};

}  // namespace slackline
