// The rate of a connection, as the median of the latest samples that TCP has measured.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace slackline {

// Single samples can be many times the rate of the wire: where a token bucket lets a burst pass, or
// where acknowledgements arrive together.
class MedianRate {
 public:
  // Note a sample, in bytes per second. The kernel repeats a sample until it has a better one, so a
  // sample that is equal to the previous one is ignored, as is 0.
  void note(std::uint64_t bytes_per_second) {
    if (bytes_per_second == 0 || bytes_per_second == latest_) return;
    latest_ = bytes_per_second;
    samples_[count_++ % samples_.size()] = bytes_per_second;
  }

  // Return the median of the latest five samples, the lower one of two; 0 without samples.
  std::uint64_t value() const {
    if (count_ == 0) return 0;
    auto sorted = samples_;
    const auto known = static_cast<std::ptrdiff_t>(std::min(count_, samples_.size()));
    std::sort(sorted.begin(), sorted.begin() + known);
    return sorted[static_cast<std::size_t>((known - 1) / 2)];
  }

 private:
  std::array<std::uint64_t, 5> samples_{};
  std::uint64_t latest_ = 0;
  std::size_t count_ = 0;
};

}  // namespace slackline
