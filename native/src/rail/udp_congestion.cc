#include "udp_congestion.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace slackline {
namespace {

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
// least this share of the value after the cut: 0.5 costs 14 % of a wire of 200 Mbit/s at a round
// trip of 2 ms, 0.9 leaves flows that begin together unequal.
constexpr double kStandAside = 0.8;
// After this many cuts in a row, each of which has emptied this rail's part of the queue and left
// the queue above the target, another flow fills the queue, or the path has become longer.
constexpr int kCutsInVain = 4;
// A loss counts as one from a full queue if the queueing delay near it was above this many targets;
// any other loss is taken for a random one. The shortest queue that is recognised holds 1.5 to 3
// ms.
constexpr double kGrown = 2;
// The path is measured once in this many rounds while the rail contends. A measurement costs two
// rounds of this rail's share.
constexpr std::int64_t kContendRounds = 30;
// Above this share of the path the rail yields to the flow beside it, by this factor at most at one
// measurement; below the small share the window is in a hurry.
constexpr double kFairShare = 0.5;
constexpr double kMostYield = 0.3;
constexpr double kSmallShare = 1.0 / 3;
// After the rail has ceased to contend, its rate may not fall below this part of its fair share
// while the probation lasts. Otherwise it contends again with its former rate, but at most with the
// given part of the fastest rate that the path has shown, and the next trial waits twice as long.
constexpr std::int64_t kProbationNs = 30'000'000'000;
constexpr double kSqueezed = 0.8;
constexpr double kRestored = 0.7;
constexpr int kMostBackOff = 5;    // doublings: 64 s on short paths
constexpr double kDecay = 0.9998;  // of the fastest rate, each round
constexpr double kIncrease = 1;    // packets per round
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
  latest_ns_ = rtt;
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

// --- sharing with flows that fill the queue ---

void UdpCongestion::lost(std::size_t bytes, std::uint64_t number) {
  lost_ += bytes;
  // The packets that passed the queue near a lost one show how full it was.
  if (static_cast<double>(latest_ns_ - base_ns_) > kGrown * static_cast<double>(target_ns()))
    congested_ = number + 1;
}

void UdpCongestion::confirmed(std::uint64_t number, std::uint64_t next, std::uint64_t in_flight,
                              std::int64_t now_ns) {
  keep_base_fresh(next, in_flight, now_ns);
  if (contending_) follow_cubic(next, now_ns);
  round_bytes_ += confirmed_bytes_;
  confirmed_bytes_ = 0;
  if (number < round_end_) return;
  if (round_start_ns_ != 0 && now_ns > round_start_ns_)
    fastest_ = std::max(fastest_ * kDecay, static_cast<double>(round_bytes_) /
                                               static_cast<double>(now_ns - round_start_ns_));
  round_start_ns_ = now_ns;
  round_bytes_ = 0;
  if (round_shortest_ns_ != 0) {
    pace_round_trip_ns_ = round_shortest_ns_;
    decide(now_ns);
  }
  round_end_ = next;
  round_shortest_ns_ = 0;
  limited_before_ = limited_;
  limited_ = false;
  if (drain_ == Drain::kMeasuring && number >= drain_end_) end_drain(now_ns);
}

void UdpCongestion::follow_cubic(std::uint64_t next, std::int64_t now_ns) {
  if (drain_ != Drain::kNo) return;
  if (congested_ > recovery_) {
    if (cubic_.starting()) base_seen_ns_ = 0;  // measure the share that the start has reached
    cubic_.reduce();
    recovery_ = next;
  } else if (limited_ || limited_before_) {
    cubic_.grow(static_cast<double>(confirmed_bytes_) / packet_, now_ns, smoothed_ns_);
  }
  window_ =
      std::clamp(cubic_.window() * packet_, least_window(), std::max(kMostBytes, least_window()));
}

// Follow CUBIC from now on, because cuts do not shorten the queue.
void UdpCongestion::contend(double bytes) {
  contending_ = true;
  cubic_.begin(bytes / packet_);
  cubic_.hurry(true);
  measured_ = false;
  congested_ = 0;
  settling_ = cuts_in_a_row_ = roomy_rounds_ = 0;
  slow_start_ = false;
}

// Contend with the former rate again, because the flow that filled the queue is still there.
void UdpCongestion::contend_again() {
  probation_end_ns_ = 0;
  back_off_ = std::min(back_off_ + 1, kMostBackOff);
  const double rate = std::min(former_rate_, kRestored * fastest_);
  contend(std::max(window_, rate * static_cast<double>(smoothed_ns_)));
  cubic_.leave_start();
  cubic_.hurry(false);
}

// Return whether the rail gets too little since it ceased to contend.
bool UdpCongestion::squeezed(std::int64_t now_ns) {
  if (probation_end_ns_ == 0) return false;
  if (now_ns > probation_end_ns_) {
    probation_end_ns_ = back_off_ = 0;
    return false;
  }
  return window_ / static_cast<double>(round_shortest_ns_) <
         kSqueezed * std::min(former_rate_, kFairShare * fastest_);
}

void UdpCongestion::end_drain(std::int64_t now_ns) {
  drain_ = Drain::kNo;
  base_seen_ns_ = now_ns;
  if (drain_shortest_ns_ == 0) return;
  if (contending_) {
    judge_share(now_ns);
  } else {
    learn_base(drain_shortest_ns_, now_ns);
  }
}

// Judge what is left of the path's queue when this rail leaves it. All that is in flight on the
// path takes one round trip, so the part by which the round trip has shrunk is this rail's share.
// If the rail has found the shortest known round trip, the queue was its own and it ceases to
// contend.
void UdpCongestion::judge_share(std::int64_t now_ns) {
  const std::int64_t tolerance = target_ns() / 2;
  // A flow that fills the queue leaves another length of it each time. The path itself does not.
  if (std::abs(drain_shortest_ns_ - last_drained_ns_) < tolerance / 2)
    base_ns_ = drain_shortest_ns_;
  last_drained_ns_ = drain_shortest_ns_;
  const double share =
      1 - static_cast<double>(drain_shortest_ns_) / static_cast<double>(before_drain_ns_);
  cubic_.hurry(share < kSmallShare);
  const bool first = !std::exchange(measured_, true);
  if (first || std::abs(drain_shortest_ns_ - base_before_drain_ns_) > tolerance) {
    if (share > kFairShare) cubic_.scale(std::max((1 - share) / share, kMostYield));
    return;
  }
  contending_ = false;
  former_rate_ = window_ / static_cast<double>(before_drain_ns_);
  window_ = std::max(least_window(), former_rate_ * static_cast<double>(base_ns_));
  peak_ = window_;
  probation_end_ns_ = now_ns + kProbationNs;
}

// Refresh the shortest round trip. The queues of other flows hide the true round trip from a flow
// that joins them. When no flow has seen the shortest round trip for long, all flows that share the
// queue notice this and reduce their windows together, so that the queue empties.
void UdpCongestion::keep_base_fresh(std::uint64_t next, std::uint64_t in_flight,
                                    std::int64_t now_ns) {
  const std::int64_t rounds = contending_ ? kContendRounds : kBaseAgeRounds;
  const std::int64_t age = std::max(kBaseAgeNs, rounds * smoothed_ns_);
  if (drain_ == Drain::kNo && now_ns - base_seen_ns_ > (contending_ ? age << back_off_ : age)) {
    drain_ = Drain::kEmptying;
    before_drain_ns_ = smoothed_ns_;
    base_before_drain_ns_ = base_ns_;
  }
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
  if (contending_) return;
  if (squeezed(now_ns)) return contend_again();
  const auto rtt = static_cast<double>(round_shortest_ns_);
  const auto target = static_cast<double>(target_ns());
  const double queue = rtt - static_cast<double>(base_ns_);
  roomy_rounds_ = queue < target / 4 ? roomy_rounds_ + 1 : 0;
  if (queue > target) {
    cut(rtt, target);
  } else {
    cuts_in_a_row_ = 0;
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
void UdpCongestion::cut(double rtt, double target) {
  slow_start_ = false;
  if (settled_) peak_ = window_;
  settled_ = false;
  if (++cuts_in_a_row_ >= kCutsInVain) {
    if (probation_end_ns_ != 0) return contend_again();
    return contend(std::max(peak_, least_window()));
  }
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
  roomy_rounds_ = cuts_in_a_row_ = settling_ = back_off_ = 0;
  probation_end_ns_ = 0;
  contending_ = false;
  drain_ = Drain::kNo;
}

}  // namespace slackline
