// How a buffer is divided into a plan's chunks; the same rule as slackline.plan.collective.split.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace slackline {

struct Part {
  std::uint64_t offset;  // elements
  std::uint64_t count;
};

// Parts begin at multiples of 64 bytes; the first (lines % parts) are one line longer; the last
// lines may be short or missing.
inline Part split(std::uint64_t count, int parts, std::size_t item_size, int index) {
  const std::uint64_t line = 64 / item_size;
  const std::uint64_t lines = (count + line - 1) / line;
  const auto n = static_cast<std::uint64_t>(parts);
  const auto i = static_cast<std::uint64_t>(index);
  const std::uint64_t begin = lines / n * i + std::min(i, lines % n);
  const std::uint64_t length = lines / n + (i < lines % n ? 1 : 0);
  const std::uint64_t first = std::min(begin * line, count);
  return Part{first, std::min((begin + length) * line, count) - first};
}

}  // namespace slackline
