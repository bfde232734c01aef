// The options of the NIC engine of one rank.
#pragma once

#include <cstddef>
#include <cstdint>
namespace slackline {

struct EngineOptions {
  // Limit of registered memory. The kernel provides pages when they are first touched.
  std::size_t arena_bytes = std::size_t{1} << 36;
  std::size_t wire_segment_bytes = 128u << 10;    // segment size on links over a wire
  std::size_t memory_segment_bytes = 256u << 10;  // segment size between processes of one host
  // Bytes of one operation that may be sent to a peer before that peer has posted the operation.
  std::uint64_t eager_bytes = 256u << 10;
  // A waiting caller polls for this long before it sleeps, and up to four times as long after short
  // sleeps.
  int spin_microseconds = 20;
  // Without a progress thread only the calling threads make progress, so the work of a
  // single-threaded caller happens in a fixed order.
  bool progress_thread = true;
  // A function that a thread calls about ten times a second while it is blocked in a call of the
  // engine, without the engine's lock. An exception of the function ends the call.
  void (*look)() = nullptr;
};

}  // namespace slackline
