// The segment sizes and windows, which must be equal at the sender and the receiver of a segment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "request.h"

namespace slackline {

// Number of segments of a peer's own data that may wait here before a REDUCE_ALL consumes them.
// Grants follow consumption.
inline constexpr std::uint64_t kWindowSegments = 8;
// The promise to a peer that it may send all bytes of an operation.
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// Window of an aggregator for the data of one worker: the bytes that arrived from the worker within
// this time, clamped to these limits. A larger window would not add throughput, because the path
// holds no more, and queues at the aggregator's port would delay the acknowledgements of results.
inline constexpr std::int64_t kServiceWindowNs = 2'500'000;
inline constexpr std::uint64_t kLeastServiceWindow = 64u << 10;
inline constexpr std::uint64_t kMostServiceWindow = 1u << 20;
// The number of segments of the greatest length that fit into the smallest window.
inline constexpr std::uint32_t kGatedSegments = 2;

// Limit of the segments of one operation that are copied into slots for one peer on the same host,
// until the peer has read them.
inline constexpr int kSlotsPerPeer = 4;

// Return the number of elements in segment number `segment` of the chunk. All segments except the
// last are full.
inline std::size_t elements_in(const Chunk& chunk, std::size_t segment) {
  const std::size_t first = segment * chunk.segment_count;
  return std::min(chunk.segment_count, chunk.count - std::min(chunk.count, first));
}

}  // namespace slackline
