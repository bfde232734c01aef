// How much of a UDP rail may be in flight, and how fast it may leave.
//
// Delay is the signal, not loss. What a packet waits in queues is its round trip less the shortest
// that the path has shown. Once in every round (the time until a packet sent at its start is
// confirmed) the window grows while the least wait in that round is below a target; above it the
// window is cut to what the path holds without a queue, and for a moment less. Packets that are
// lost at random are sent again and change nothing; only a large share of lost ones (a queue too
// short to show as delay, or a policer) shrinks the window too. docs/design.md gives the constants'
// reasons.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slackline {

class UdpCongestion {
 public:
  explicit UdpCongestion(std::size_t packet_bytes);

  // Bytes that may be in flight.
  std::uint64_t window() const;
  // The path takes packets of this size now.
  void resize(std::size_t packet_bytes) { packet_ = static_cast<double>(packet_bytes); }

  // Whether the pace allows a packet now; when not, pace_due_ns() is when it will.
  bool may_send(std::int64_t now_ns);
  std::int64_t pace_due_ns() const { return gate_ns_; }
  void sent(std::size_t bytes, std::int64_t now_ns);
  void took_back(std::size_t bytes);
  // There was more to send than the window or the pace allowed.
  void was_limited() { limited_ = true; }

  void acked(std::size_t bytes) { acked_ += bytes; }
  void lost(std::size_t bytes) { lost_ += bytes; }
  void found(std::size_t bytes) { lost_ -= lost_ < bytes ? lost_ : bytes; }  // it was not lost
  // A round trip, without the time that the peer took to answer.
  void sample(std::int64_t round_trip_ns, std::int64_t now_ns);
  // All packets up to `number` are past; the next to be sent has the number `next`.
  void confirmed(std::uint64_t number, std::uint64_t next, std::uint64_t in_flight,
                 std::int64_t now_ns);
  // Nothing was confirmed for so long that the path has to be learnt anew.
  void silent();

  std::int64_t smoothed_ns() const { return smoothed_ns_; }
  std::int64_t deviation_ns() const { return deviation_ns_; }
  std::int64_t shortest_ns() const { return base_ns_; }
  std::int64_t target_ns() const;  // of waiting in queues

 private:
  double judge_losses();
  void decide(std::int64_t now_ns);
  void cut(double rtt, double target, std::int64_t now_ns);
  void grow(double queue, double target);
  void learn_base(std::int64_t round_trip_ns, std::int64_t now_ns);
  void keep_base_fresh(std::uint64_t next, std::uint64_t in_flight, std::int64_t now_ns);
  double least_window() const;
  double ns_for(std::size_t bytes) const;  // at the pace

  double packet_;
  double window_;
  bool slow_start_ = true;
  bool limited_ = false;
  double stand_aside_ = 1;
  int settling_ = 0;         // rounds left of those that follow a decrease
  std::uint64_t acked_ = 0;  // since the loss share was last judged
  std::uint64_t lost_ = 0;
  std::uint64_t round_end_ = 0;
  std::int64_t round_shortest_ns_ = 0;  // 0: no sample in this round
  int roomy_rounds_ = 0;                // in a row with next to no queue
  double peak_ = 0;                     // the window before it was cut
  bool settled_ = true;                 // it grew since
  int in_vain_ = 0;                     // cuts in a row at the least window

  std::int64_t smoothed_ns_ = 0;
  std::int64_t deviation_ns_ = 0;
  std::int64_t pace_round_trip_ns_ = 0;  // the shortest of the last round
  std::int64_t base_ns_ = 0;
  std::int64_t base_seen_ns_ = 0;  // when a round trip was last about that short

  enum class Drain : std::uint8_t { kNo, kEmptying, kMeasuring };
  Drain drain_ = Drain::kNo;
  std::uint64_t drain_end_ = 0;
  std::int64_t drain_shortest_ns_ = 0;

  double next_ns_ = 0;  // when the pace has room for the next packet
  std::int64_t gate_ns_ = 0;
};

}  // namespace slackline
