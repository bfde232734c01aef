// What can be set about the NIC engine of one rank.
#pragma once

#include <cstddef>
#include <cstdint>
namespace slackline {

struct EngineOptions {
  std::size_t arena_bytes = std::size_t{1}
                            << 36;  // limit of registered memory; pages are taken when touched
  std::size_t wire_segment_bytes = 128u << 10;    // segments on links over a wire
  std::size_t memory_segment_bytes = 256u << 10;  // segments between processes of one host
  std::uint64_t eager_bytes = 256u
                              << 10;  // of one operation, sent to a peer that has not posted it yet
  int spin_microseconds = 20;         // a waiting caller polls this long before it sleeps
  bool progress_thread = true;        // without one only callers drive, and what a single thread
                                      // does happens in one order
};

}  // namespace slackline
