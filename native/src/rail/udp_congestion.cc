#include "udp_congestion.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace slackline {
namespace {

constexpr double kLeastPackets = 2;
constexpr double kFirstPackets = 16;
constexpr double kFirstBytes = 64 << 10;
constexpr double kMostBytes = 8 << 20;

// Target of the queueing delay. The constant part keeps the bottleneck busy between two bursts of
// this sender. The other part is larger for small windows, so that each of many flows into one port
// keeps at least a packet in the queue.
constexpr double kTargetNs = 500e3;
constexpr double kTargetShareNs = 2e6;  // divided by the root of the window in packets

constexpr double kMostDecrease = 1.0 / 8;  // the smallest factor
// For the two rounds after a cut the window is smaller by two targets of queueing delay, but at
// least this share of the value after the cut.
constexpr double kStandAside = 0.5;
// At the smallest window, after this many cuts the path is taken to have become longer.
constexpr int kCutsInVain = 2;
constexpr double kIncrease = 1;  // packets per round
constexpr double kRoomyIncrease = 1.25;
constexpr int kRoomyRounds = 3;

// Random loss below this share is repaired by resending and otherwise ignored.
constexpr double kLossShare = 0.12;
constexpr double kLossJudged = 20;  // packets needed to judge the share of losses

// Age of the shortest round trip after which the sender empties its queue for a round to measure it
// again.
constexpr std::int64_t kBaseAgeNs = 2'000'000'000;
constexpr std::int64_t kBaseAgeRounds = 100;
constexpr double kDrainPackets = 4;

// Time that a late timer may catch up on.
constexpr double kBurstNs = 1e6;
// Amount sent at once when the pace limits (or 64 KiB if less).
constexpr double kQuantumNs = 250e3;
constexpr double kQuantumBytes = 64 << 10;

}  // namespace

UdpCongestion::UdpCongestion(std::size_t packet_bytes)
    : packet_(static_cast<double>(packet_bytes)),
      window_(std::min(kFirstPackets * packet_, std::max(kFirstBytes, 2 * packet_))) {}

double UdpCongestion::least_window() const { return kLeastPackets * packet_; }

std::uint64_t UdpCongestion::window() const {
  double window = window_;
  if (settling_ > 0) window = std::max(least_window(), window_ * stand_aside_);
  if (drain_ != Drain::kNo) window = std::min(window, kDrainPackets * packet_);
  return static_cast<std::uint64_t>(window);
}

std::int64_t UdpCongestion::target_ns() const {
  return static_cast<std::int64_t>(kTargetNs + kTargetShareNs / std::sqrt(window_ / packet_));
}

double UdpCongestion::ns_for(std::size_t bytes) const {
  if (pace_round_trip_ns_ == 0) return 0;
  // Send somewhat faster than one window per round trip, so that the window is the limit and not
  // the pace.
  const double gain = slow_start_ ? 2 : 1.25;
  return static_cast<double>(bytes) * static_cast<double>(pace_round_trip_ns_) /
         (gain * static_cast<double>(window()));
}

bool UdpCongestion::may_send(std::int64_t now_ns) {
  if (now_ns < gate_ns_) return false;
  if (next_ns_ <= static_cast<double>(now_ns)) return true;
  // Wait until several packets may be sent together, because timers and system calls are expensive.
  const double quantum = std::min(kQuantumNs, ns_for(static_cast<std::size_t>(kQuantumBytes)));
  gate_ns_ = static_cast<std::int64_t>(std::ceil(next_ns_ + quantum));
  limited_ = true;
  return false;
}

void UdpCongestion::sent(std::size_t bytes, std::int64_t now_ns) {
  next_ns_ = std::max(next_ns_, static_cast<double>(now_ns) - kBurstNs) + ns_for(bytes);
}

void UdpCongestion::took_back(std::size_t bytes) { next_ns_ -= ns_for(bytes); }

void UdpCongestion::learn_base(std::int64_t round_trip_ns, std::int64_t now_ns) {
  base_ns_ = round_trip_ns;
  base_seen_ns_ = now_ns;
}

void UdpCongestion::sample(std::int64_t round_trip_ns, std::int64_t now_ns) {
  const std::int64_t rtt = std::max<std::int64_t>(round_trip_ns, 1000);
  if (smoothed_ns_ == 0) {
    smoothed_ns_ = rtt;
    deviation_ns_ = rtt / 2;
  } else {
    deviation_ns_ += (std::abs(smoothed_ns_ - rtt) - deviation_ns_) / 4;
    smoothed_ns_ += (rtt - smoothed_ns_) / 8;
  }
  if (base_ns_ == 0 || rtt <= base_ns_) {
    learn_base(rtt, now_ns);
  } else if (rtt <= base_ns_ + target_ns() / 8) {
    base_seen_ns_ = now_ns;
  }
  if (round_shortest_ns_ == 0 || rtt < round_shortest_ns_) round_shortest_ns_ = rtt;
  if (drain_ == Drain::kMeasuring && (drain_shortest_ns_ == 0 || rtt < drain_shortest_ns_))
    drain_shortest_ns_ = rtt;
}

void UdpCongestion::confirmed(std::uint64_t number, std::uint64_t next, std::uint64_t in_flight,
                              std::int64_t now_ns) {
  keep_base_fresh(next, in_flight, now_ns);
  if (number < round_end_) return;
  if (round_shortest_ns_ != 0) {
    pace_round_trip_ns_ = round_shortest_ns_;
    decide(now_ns);
  }
  round_end_ = next;
  round_shortest_ns_ = 0;
  limited_ = false;
  if (drain_ == Drain::kMeasuring && number >= drain_end_) {
    if (drain_shortest_ns_ != 0) learn_base(drain_shortest_ns_, now_ns);
    drain_ = Drain::kNo;
    base_seen_ns_ = now_ns;
  }
}

// Refresh the shortest round trip. The queues of other flows hide the true round trip from a flow
// that joins them. When no flow has seen the shortest round trip for long, all flows that share the
// queue notice this and reduce their windows together, so that the queue empties.
void UdpCongestion::keep_base_fresh(std::uint64_t next, std::uint64_t in_flight,
                                    std::int64_t now_ns) {
  if (drain_ == Drain::kNo &&
      now_ns - base_seen_ns_ > std::max(kBaseAgeNs, kBaseAgeRounds * smoothed_ns_))
    drain_ = Drain::kEmptying;
  if (drain_ == Drain::kEmptying && static_cast<double>(in_flight) <= kDrainPackets * packet_) {
    drain_ = Drain::kMeasuring;
    drain_end_ = next;
    drain_shortest_ns_ = 0;
  }
}

// Return the factor by which a large share of losses reduces the window; 1 for none.
double UdpCongestion::judge_losses() {
  const auto judged = static_cast<double>(acked_ + lost_);
  if (judged < kLossJudged * packet_) return 1;
  const double share = static_cast<double>(lost_) / judged;
  acked_ = lost_ = 0;
  return share > kLossShare ? 1 - share / 2 : 1;
}

void UdpCongestion::decide(std::int64_t now_ns) {
  const double loss_factor = judge_losses();
  if (drain_ != Drain::kNo || (settling_ > 0 && --settling_ > 0)) return;
  const auto rtt = static_cast<double>(round_shortest_ns_);
  const auto target = static_cast<double>(target_ns());
  const double queue = rtt - static_cast<double>(base_ns_);
  roomy_rounds_ = queue < target / 4 ? roomy_rounds_ + 1 : 0;
  if (queue > target) {
    cut(rtt, target, now_ns);
  } else {
    in_vain_ = 0;
    if (loss_factor < 1) {
      window_ *= loss_factor;
      slow_start_ = false;
      roomy_rounds_ = 0;
    } else if (limited_) {
      grow(queue, target);
    }
  }
  window_ = std::clamp(window_, least_window(), std::max(kMostBytes, least_window()));
}

// Cut the window to the amount that the path holds without a queue, and below that for two rounds.
// The queue then empties, and flows that joined while it existed can measure the true round trip.
void UdpCongestion::cut(double rtt, double target, std::int64_t now_ns) {
  slow_start_ = false;
  if (window_ <= least_window() * 1.5 && ++in_vain_ >= kCutsInVain) {
    // The window is at its minimum and the delay is still long, so the path itself has become
    // longer.
    learn_base(round_shortest_ns_, now_ns);
    window_ = peak_ / 2;
    slow_start_ = true;
    in_vain_ = 0;
    return;
  }
  if (settled_) peak_ = window_;
  settled_ = false;
  window_ = std::max(least_window(),
                     window_ * std::max(kMostDecrease, static_cast<double>(base_ns_) / rtt));
  settling_ = 2;
  stand_aside_ = std::max(kStandAside, 1 - 2 * target / rtt);
  pace_round_trip_ns_ = base_ns_;
}

void UdpCongestion::grow(double queue, double target) {
  settled_ = true;
  if (slow_start_ && queue > target / 2) slow_start_ = false;
  const auto smoothed = static_cast<double>(smoothed_ns_);
  if (slow_start_) {
    window_ *= 2;
  } else if (roomy_rounds_ < kRoomyRounds) {
    window_ += kIncrease * packet_;
  } else {
    // Add at most half a target of queueing delay, unless the window was larger before the last
    // cut.
    const double step = window_ * kRoomyIncrease < peak_ ? 1 : target / (2 * smoothed);
    window_ += std::max(packet_, window_ * std::min(step, kRoomyIncrease - 1));
  }
}

void UdpCongestion::silent() {
  window_ = std::min(window_, std::max(kFirstBytes, 2 * packet_));
  slow_start_ = true;
  acked_ = lost_ = 0;
  roomy_rounds_ = in_vain_ = settling_ = 0;
  drain_ = Drain::kNo;
}

}  // namespace slackline
