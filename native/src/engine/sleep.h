// The sleep of a thread that drives an engine.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "../rail/shm.h"
#include "event_loop.h"
#include "slackline/arena.h"

namespace slackline {

// The place where at most one thread of an engine sleeps until something happens: the descriptors
// that wake it, and the word in shared memory by which peers know that it sleeps. All calls are
// made under the engine's lock, which wait() releases meanwhile.
class Sleep {
 public:
  // The word is the arena's first allocation and is never freed.
  explicit Sleep(Arena& arena);
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  EventLoop& loop() { return loop_; }
  // Return whether a thread sleeps.
  bool asleep() const { return asleep_; }
  // Return the time by which the sleeping thread wakes by itself.
  std::int64_t until_ns() const { return until_ns_; }
  // Return the number of sleeps so far.
  std::uint64_t count() const { return count_; }

  // Tell the peers in shared memory that this rank is about to sleep. A frame that comes after this
  // call ends the sleep, so the caller looks for earlier frames now.
  void announce();
  // Tell the peers that this rank is awake.
  void revoke();
  // Sleep from `now_ns` until an event or the time `until_ns` comes. Return false if the time came
  // first. The events, but for the doorbell's, are in ended_by() and later in reported().
  bool wait(std::unique_lock<std::mutex>& lock, std::int64_t now_ns, std::int64_t until_ns);
  // Return the events of the sleep that has just ended.
  const std::vector<LoopEvent>& ended_by() const { return ended_by_; }
  // Keep the events of the sleep that has just ended for the next round of work.
  void report() { reported_.swap(ended_by_); }
  std::vector<LoopEvent>& reported() { return reported_; }
  // Return to the state without a sleep, after an exception in its middle.
  void interrupted() noexcept;

 private:
  EventLoop loop_;
  Doorbell* doorbell_;
  bool asleep_ = false;
  std::int64_t until_ns_ = 0;
  std::uint64_t count_ = 0;
  // Each has room for all events of one wait.
  std::vector<LoopEvent> ended_by_, reported_;
};

}  // namespace slackline
