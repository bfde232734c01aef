#include "udp_cubic.h"

#include <algorithm>
#include <cmath>

namespace slackline {
namespace {

// The constants of RFC 9438, sections 4.1 to 4.6.
constexpr double kC = 0.4;     // packets per second to the third
constexpr double kBeta = 0.7;  // of the window after a reduction
constexpr double kAlpha = 3 * (1 - kBeta) / (1 + kBeta);
// A window in a hurry falls and grows like those of this many connections together. Two connections
// of CUBIC that begin one after the other still share 4 : 1 after 70 s with a queue of 200 ms.
constexpr double kHurry = 3;
constexpr double kHurriedBeta = 1 - (1 - kBeta) / kHurry;
// The factor for the growth at the start: 1.5 a round trip, since the excess over the queue is
// lost.
constexpr double kStartGrowth = 0.5;

}  // namespace

void UdpCubic::begin(double packets) {
  *this = UdpCubic{};
  window_ = packets;
}

double UdpCubic::cubic(double seconds) const {
  const double away = seconds - inflection_s_;
  return kC * away * away * away + most_;
}

void UdpCubic::grow(double packets, std::int64_t now_ns, std::int64_t round_trip_ns) {
  if (starting()) {
    window_ += kStartGrowth * packets;
    return;
  }
  if (epoch_ns_ == 0) {
    epoch_ns_ = now_ns;
    most_ = std::max(most_, window_);
    inflection_s_ = std::cbrt((most_ - window_) / kC);
    estimate_ = window_;
  }
  const double at = static_cast<double>(now_ns - epoch_ns_) / 1e9;
  const double soon = at + static_cast<double>(round_trip_ns) / 1e9;
  const double target = std::clamp(cubic(soon), window_, 1.5 * window_);
  estimate_ += (estimate_ >= prior_ ? 1 : kAlpha) * (hurries_ ? kHurry : 1) * packets / window_;
  window_ = cubic(at) < estimate_ ? std::max(window_, estimate_)
                                  : window_ + (target - window_) * std::min(packets / window_, 1.0);
}

void UdpCubic::scale(double factor) {
  window_ = std::max(kLeastPackets, window_ * factor);
  most_ = prior_ = threshold_ = window_;
  epoch_ns_ = 0;
}

void UdpCubic::reduce() {
  prior_ = window_;
  most_ = window_ < most_ ? window_ * (1 + kBeta) / 2 : window_;  // fast convergence
  window_ = std::max(kLeastPackets, window_ * (hurries_ ? kHurriedBeta : kBeta));
  threshold_ = window_;
  epoch_ns_ = 0;
}

}  // namespace slackline
