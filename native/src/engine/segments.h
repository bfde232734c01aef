// The sizes that sender and receiver of a segment must agree on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "job.h"

namespace slackline {

// Segments of a peer's own data that may wait here before they are folded; grants follow.
inline constexpr std::uint64_t kWindowSegments = 8;

// An aggregator needs no more under way than the path holds: what queues at a worker's port delays
// the acknowledgements of its results.
inline constexpr std::uint64_t kServiceWindow = 128u << 10;
// As many of the longest segments fit into that.
inline constexpr std::uint32_t kGatedSegments = 2;

// Elements of `segment`: all but the last are full.
inline std::size_t elements_in(const Chunk& chunk, std::size_t segment) {
  const std::size_t first = segment * chunk.segment_count;
  return std::min(chunk.segment_count, chunk.count - std::min(chunk.count, first));
}

}  // namespace slackline
