// The events of an engine's rails and links, for the library above the engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "clock.h"
#include "rail_status.h"

namespace slackline {

class Link;

// The queue of events. All calls are made under the engine's lock; next() releases the lock while
// it waits.
class RailEvents {
 public:
  explicit RailEvents(Clock& clock) : clock_(clock) {}

  // Queue an event about a rail, or about the link if `rail` is -1.
  void announce(const Link& link, int rail, const char* what, std::string reason);
  // Wait for an event and return it. Return nothing once no event is left and `ended` is true.
  std::optional<RailEvent> next(std::unique_lock<std::mutex>& lock, const bool& ended);
  // Let the threads that wait in next() look at `ended` again.
  void wake_readers() { event_.notify_all(); }
  // Forget the waiting threads, which a forked child does not have.
  void forget_readers();

 private:
  Clock& clock_;
  std::deque<RailEvent> events_;
  std::condition_variable event_;
};

}  // namespace slackline
