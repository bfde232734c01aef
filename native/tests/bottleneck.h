// The bottleneck of a simulated network: a queue before a wire.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace slackline::test {

// A queue that several flows share; it drops packets that arrive while it is full.
struct Bottleneck {
  double bytes_per_second = 125e6;
  std::int64_t buffer_bytes = 256 << 10;
  std::int64_t busy_until_ns = 0;
  std::uint64_t dropped = 0;
  std::int64_t longest_ns = 0;

  // Return the time at which the packet has passed the queue, or nothing when the queue is full.
  std::optional<std::int64_t> pass(std::size_t bytes, std::int64_t now_ns) {
    const std::int64_t waits = std::max<std::int64_t>(0, busy_until_ns - now_ns);
    const double queued = static_cast<double>(waits) * bytes_per_second / 1e9;
    if (queued + static_cast<double>(bytes) > static_cast<double>(buffer_bytes)) {
      ++dropped;
      return std::nullopt;
    }
    longest_ns = std::max(longest_ns, waits);
    busy_until_ns = std::max(busy_until_ns, now_ns) +
                    static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 / bytes_per_second);
    return busy_until_ns;
  }
};

}  // namespace slackline::test
