// The time of an engine.
#pragma once

#include <cstdint>

#include "../base/clock.h"

namespace slackline {

// The time as the parts of an engine see it: the same within one step of work, for example while
// the frames of one rail are handled. The driver and the calls of other threads begin the steps; no
// other part reads the system's clock. All calls are made under the engine's lock.
class Clock {
 public:
  using Source = std::int64_t (*)();

  explicit Clock(Source source = &now_ns) : source_(source) {}

  // Return the monotonic time of this step in nanoseconds, read when the step first asks for it.
  std::int64_t now() const {
    if (now_ == 0) now_ = source_();
    return now_;
  }
  // Return the time of this call. A frame that came after the step began has arrived after now().
  std::int64_t exact() const { return source_(); }
  void begin_step() { now_ = 0; }
  // Begin a step and return its time.
  std::int64_t next() {
    begin_step();
    return now();
  }

 private:
  const Source source_;
  mutable std::int64_t now_ = 0;
};

}  // namespace slackline
