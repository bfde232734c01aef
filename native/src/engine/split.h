// The division of a buffer into a plan's chunks, by the same rules as
// slackline.plan.collective.split.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

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

// Return part number `index` of a buffer that is cut by weights, in elements. Part i begins at line
// floor(lines * W_i / W), where W_i is the sum of the weights before part i. The sum W of all
// weights must be positive and below 2^32.
inline Part split(std::uint64_t count, std::span<const std::uint32_t> weights,
                  std::size_t item_size, int index) {
  const std::uint64_t line = 64 / item_size;
  const std::uint64_t lines = (count + line - 1) / line;
  const auto sum = [&](std::size_t many) {
    return std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(many),
                           std::uint64_t{0});
  };
  const std::uint64_t whole = sum(weights.size());
  // With lines = q * whole + m, floor(lines * before / whole) is
  // q * before + floor(m * before / whole). No product exceeds 64 bits, since m and `before` are
  // below 2^32.
  const auto bound = [&](std::size_t many) {
    const std::uint64_t before = sum(many);
    return std::min((lines / whole * before + lines % whole * before / whole) * line, count);
  };
  const auto i = static_cast<std::size_t>(index);
  return Part{bound(i), bound(i + 1) - bound(i)};
}

}  // namespace slackline
