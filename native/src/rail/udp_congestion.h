// Congestion control of a UDP rail: how many bytes may be in flight, and how fast they may be sent.
//
// Delay is the signal while no other flow fills the bottleneck's queue. The queueing delay of a
// packet is its round trip minus the shortest round trip that the path has shown. Once per round
// (the time until a packet sent at its start is confirmed) the window grows while the smallest
// queueing delay in that round is below a target. Above the target the window is cut to the amount
// that the path holds without a queue, and for two rounds to less. Randomly lost packets are resent
// and change nothing else. Only a large share of losses, from a queue too short to show as delay or
// from a policer, shrinks the window too.
//
// If several cuts in a row leave the queue long, another flow fills it, such as a TCP connection.
// The rail then contends: its window is that of CUBIC, which a loss reduces only if the queue near
// it had grown. From time to time the rail leaves the queue for a round and measures what share of
// the path it had, and whether another flow is still there. docs/design.md derives the constants.
#pragma once

#include <cstddef>
#include <cstdint>

#include "udp_cubic.h"

namespace slackline {

class UdpCongestion {
 public:
  explicit UdpCongestion(std::size_t packet_bytes);

  // Return the number of bytes that may be in flight.
  std::uint64_t window() const;
  // Adopt a new packet size after the path's MTU has changed.
  void resize(std::size_t packet_bytes) { packet_ = static_cast<double>(packet_bytes); }

  // Return whether the pace allows a packet now. If not, pace_due_ns() is the time at which the
  // pace allows the next packet.
  bool may_send(std::int64_t now_ns);
  std::int64_t pace_due_ns() const { return gate_ns_; }
  void sent(std::size_t bytes, std::int64_t now_ns);
  void took_back(std::size_t bytes);
  // Note that more data was ready than the window or the pace allowed.
  void was_limited() { limited_ = true; }

  void acked(std::size_t bytes) {
    acked_ += bytes;
    confirmed_bytes_ += bytes;
  }
  void lost(std::size_t bytes, std::uint64_t number);
  void found(std::size_t bytes) {
    lost_ -= lost_ < bytes ? lost_ : bytes;
  }  // corrects lost(): the bytes arrived late
  // Record a round trip, from which the peer's delay before its ACK has been subtracted.
  void sample(std::int64_t round_trip_ns, std::int64_t now_ns);
  // Note that all packets up to `number` are confirmed or lost; the next packet to be sent has the
  // number `next`.
  void confirmed(std::uint64_t number, std::uint64_t next, std::uint64_t in_flight,
                 std::int64_t now_ns);
  // Reset the estimates after nothing was confirmed for so long that the path must be measured
  // anew.
  void silent();

  std::int64_t smoothed_ns() const { return smoothed_ns_; }
  std::int64_t deviation_ns() const { return deviation_ns_; }
  std::int64_t shortest_ns() const { return base_ns_; }
  std::int64_t target_ns() const;  // the target of the queueing delay
  // Return whether the rail contends with a flow that fills the queue.
  bool contending() const { return contending_; }

 private:
  double judge_losses();
  void decide(std::int64_t now_ns);
  void cut(double rtt, double target);
  void grow(double queue, double target);
  void contend(double bytes);
  void contend_again();
  void follow_cubic(std::uint64_t next, std::int64_t now_ns);
  bool squeezed(std::int64_t now_ns);
  void end_drain(std::int64_t now_ns);
  void judge_share(std::int64_t now_ns);
  void learn_base(std::int64_t round_trip_ns, std::int64_t now_ns);
  void keep_base_fresh(std::uint64_t next, std::uint64_t in_flight, std::int64_t now_ns);
  double least_window() const;
  double ns_for(std::size_t bytes) const;  // at the current pace

  double packet_;
  double window_;
  bool slow_start_ = true;
  bool limited_ = false;         // in this round
  bool limited_before_ = false;  // in the round before
  double stand_aside_ = 1;
  int settling_ = 0;         // rounds left after a decrease
  std::uint64_t acked_ = 0;  // bytes since the share of losses was last judged
  std::uint64_t lost_ = 0;
  std::uint64_t round_end_ = 0;
  std::int64_t round_shortest_ns_ = 0;  // 0: no sample in this round
  int roomy_rounds_ = 0;                // consecutive rounds with almost no queue
  double peak_ = 0;                     // the window before it was last cut
  bool settled_ = true;                 // the window has grown since
  int cuts_in_a_row_ = 0;               // without a round below the target in between

  bool contending_ = false;  // the window is that of cubic_
  UdpCubic cubic_;
  std::uint64_t confirmed_bytes_ = 0;  // since the last call of confirmed()
  std::int64_t latest_ns_ = 0;         // the latest round trip
  std::uint64_t congested_ = 0;        // one more than the last packet that a full queue dropped
  std::uint64_t recovery_ = 0;         // the first packet sent after the last reduction
  bool measured_ = false;              // the share has been measured since the rail contends
  std::int64_t last_drained_ns_ = 0;   // the shortest round trip of the measurement before
  double fastest_ = 0;                 // the highest rate of a round, in bytes per ns
  std::int64_t round_start_ns_ = 0;
  std::uint64_t round_bytes_ = 0;
  double former_rate_ = 0;             // bytes per ns before the rail ceased to contend
  std::int64_t probation_end_ns_ = 0;  // 0: it did not cease lately
  int back_off_ = 0;                   // how often the rail ceased to contend too early

  std::int64_t smoothed_ns_ = 0;
  std::int64_t deviation_ns_ = 0;
  std::int64_t pace_round_trip_ns_ = 0;  // the shortest of the last round
  std::int64_t base_ns_ = 0;
  std::int64_t base_seen_ns_ = 0;  // when a round trip was last about as short as base_ns_

  enum class Drain : std::uint8_t { kNo, kEmptying, kMeasuring };
  Drain drain_ = Drain::kNo;
  std::uint64_t drain_end_ = 0;
  std::int64_t drain_shortest_ns_ = 0;
  std::int64_t before_drain_ns_ = 0;  // the smoothed round trip
  std::int64_t base_before_drain_ns_ = 0;

  double next_ns_ = 0;  // when the pace allows the next packet
  std::int64_t gate_ns_ = 0;
};

}  // namespace slackline
