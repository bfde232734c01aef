// The sizes that sender and receiver of a segment must agree on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "job.h"

namespace slackline {

// Segments of a peer's own data that may wait here before they are folded; grants follow.
inline constexpr std::uint64_t kWindowSegments = 8;

// An aggregator has no more of a worker's data under way than the path holds, as far as is known:
// what its worker's port brought in this time, within these limits. What queues at the port delays
// the acknowledgements of results.
inline constexpr std::int64_t kServiceWindowNs = 2'500'000;
inline constexpr std::uint64_t kLeastServiceWindow = 64u << 10;
inline constexpr std::uint64_t kMostServiceWindow = 1u << 20;
// As many of the longest segments fit into the least.
inline constexpr std::uint32_t kGatedSegments = 2;

// Elements of `segment`: all but the last are full.
inline std::size_t elements_in(const Chunk& chunk, std::size_t segment) {
  const std::size_t first = segment * chunk.segment_count;
  return std::min(chunk.segment_count, chunk.count - std::min(chunk.count, first));
}

}  // namespace slackline
