// The description of a simulated network: hosts with NICs and cores, and the framing on wires.
#pragma once

#include <cstdint>
#include <vector>

#include "clock.h"

namespace slackline::sim {

// Return the time in picoseconds, rounded up, that `units` take when `rate` units take
// `picoseconds`.
inline Time rounded_up(std::uint64_t units, std::uint64_t picoseconds, std::uint64_t rate) {
  // The product of fewer than 2^20 units and at most 8 * 10^12 ps fits in 64 bits.
  if (units < 1u << 20 && rate < std::uint64_t{1} << 62)
    return static_cast<Time>(
        std::min((units * picoseconds + rate - 1) / rate, static_cast<std::uint64_t>(kNever)));
  const auto wide = static_cast<unsigned __int128>(units) * picoseconds + rate - 1;
  return static_cast<Time>(std::min(wide / rate, static_cast<unsigned __int128>(kNever)));
}

// Return the picoseconds that `bytes` take at a rate in bits per second, rounded up.
inline Time transmission(std::uint64_t bytes, std::uint64_t rate_bps) {
  return rounded_up(bytes, 8'000'000'000'000, rate_bps);
}

// Return the picoseconds that `bytes` take at a rate in bytes per second, rounded up.
inline Time processing(std::uint64_t bytes, std::uint64_t bytes_per_second) {
  return rounded_up(bytes, 1'000'000'000'000, bytes_per_second);
}

struct Host {
  std::vector<std::uint64_t> rates_bps;  // of each NIC
  Time latency = 0;                      // of a cable to the switch
  std::uint32_t cores = 1;
  Time frame = 0;                             // processor time for a frame sent or received
  std::uint64_t reduce_bytes_per_second = 0;  // of one core; 0: reducing takes no time
  std::uint64_t memory_bytes_per_second = 0;  // between ranks of the host; 0: no limit
  Time memory_latency = 0;
  std::uint64_t burst_bytes = 0;  // that a NIC may send, and receive, ahead of its rate
  // Bytes to one other host that a NIC takes ahead, and that no other frame overtakes; 0: a frame
  // waits in the host's queue until the NIC can send it.
  std::uint64_t ahead_bytes = 0;

  Time reducing(std::uint64_t bytes) const {
    return reduce_bytes_per_second == 0 ? 0 : processing(bytes, reduce_bytes_per_second);
  }
};

struct Framing {
  std::uint64_t header_bytes = 0;
  std::uint64_t packet_bytes = 0;  // 0: a frame is one packet
  std::uint64_t packet_overhead_bytes = 0;

  std::uint64_t packets(std::uint64_t payload_bytes) const {
    if (packet_bytes == 0) return 1;
    return std::max<std::uint64_t>(
        1, (payload_bytes + header_bytes + packet_bytes - 1) / packet_bytes);
  }
  std::uint64_t wire_bytes(std::uint64_t payload_bytes) const {
    const auto overhead =
        static_cast<unsigned __int128>(packets(payload_bytes)) * packet_overhead_bytes;
    const auto whole = overhead + payload_bytes + header_bytes;
    return static_cast<std::uint64_t>(std::min(whole, static_cast<unsigned __int128>(kNever)));
  }
};

struct Fabric {
  std::vector<Host> hosts;
  Framing framing;
  // Bytes of a frame that the switch receives before it forwards them; with the largest value the
  // switch stores whole frames.
  std::uint64_t forwards_after_bytes = 0;
  Time resend = 0;
  std::uint32_t shared_cores = 0;  // cores that all hosts share; 0: each host has its own

  std::uint32_t nics() const { return static_cast<std::uint32_t>(hosts.front().rates_bps.size()); }
};

}  // namespace slackline::sim
