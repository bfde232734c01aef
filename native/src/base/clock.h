// Monotonic time in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace slackline {

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Return the time `ns` after `now`, or the largest representable time when the sum overflows.
inline std::int64_t later(std::int64_t now, std::int64_t ns) {
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  return ns > kEnd - now ? kEnd : now + ns;
}

}  // namespace slackline
