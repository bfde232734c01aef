// The decision whether data on a TCP connection waits for a confirmation, and since when.
#pragma once

#include <algorithm>
#include <cstdint>

namespace slackline {

class StreamSilence {
 public:
  // The state of the connection according to the kernel.
  struct Sample {
    bool held = false;              // an injected fault keeps data back
    std::uint32_t unacked = 0;      // segments that were sent and not acknowledged
    std::uint32_t probes = 0;       // probes of the window since the last acknowledgement
    std::uint64_t acked_bytes = 0;  // acknowledged since the connection was made
    std::int64_t last_ack_ns = 0;   // arrival of the last acknowledgement, even of no new bytes
  };

  void look(const Sample& sample, std::int64_t now_ns) {
    // If this host drops its own packets, or has lost the route, the kernel does not count them as
    // sent. It keeps the data and sends probes, which do not reach the peer either. A peer that is
    // alive and reads nothing answers each probe, so such a peer does not count as silent.
    const bool probing = sample.unacked == 0 && sample.probes > 0;
    const bool in_flight = sample.held || sample.unacked > 0 || probing;
    const bool waited = in_flight_ && in_flight && sample.acked_bytes == acked_bytes_;
    if (!waited) quiet_since_ns_ = now_ns;
    if (probing && !sample.held) quiet_since_ns_ = std::max(quiet_since_ns_, sample.last_ack_ns);
    in_flight_ = in_flight;
    acked_bytes_ = sample.acked_bytes;
  }
  bool in_flight() const { return in_flight_; }
  // Return the time of the last confirmation, or of the first look that found data in flight.
  std::int64_t quiet_since_ns() const { return quiet_since_ns_; }

 private:
  bool in_flight_ = false;
  std::uint64_t acked_bytes_ = 0;
  std::int64_t quiet_since_ns_ = 0;
};

}  // namespace slackline
