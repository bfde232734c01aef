// The division of a buffer into a plan's chunks, by the same rule as
// slackline.plan.collective.split.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace slackline {

struct Part {
  std::uint64_t offset;  // elements
  std::uint64_t count;
};

// Return part number `index` of `parts`, in elements. Parts begin at multiples of 64 bytes
// (lines). The first (lines % parts) parts are one line longer than the others. The last lines may
// be short or missing.
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
