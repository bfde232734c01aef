// The window of CUBIC (RFC 9438), in packets. A UDP rail follows it beside a flow that fills the
// queue, so that the two share the path as two TCP connections do.
#pragma once

#include <cstdint>
#include <limits>

namespace slackline {

// The smallest window that a loss leaves, in packets.
inline constexpr double kLeastPackets = 2;

class UdpCubic {
 public:
  // Begin with a window of this many packets, which grows by half in each round trip until
  // leave_start() or reduce().
  void begin(double packets);
  // Process the confirmation of `packets` packets while the window was the limit.
  void grow(double packets, std::int64_t now_ns, std::int64_t round_trip_ns);
  // Process a loss from a full queue, at most one for each round trip.
  void reduce();
  // Multiply the window by a factor below 1, and begin to grow anew from there.
  void scale(double factor);
  // Choose whether the window grows and falls like those of several connections together.
  void hurry(bool on) { hurries_ = on; }

  bool starting() const { return window_ < threshold_; }
  void leave_start() { threshold_ = window_; }
  double window() const { return window_; }

 private:
  double cubic(double seconds) const;

  double window_ = 0;
  bool hurries_ = false;
  double threshold_ = std::numeric_limits<double>::infinity();
  double most_ = 0;      // W_max: the window before the last reduction
  double prior_ = 0;     // cwnd_prior: the same, regardless of fast convergence
  double estimate_ = 0;  // W_est: the window that Reno would have
  double inflection_s_ = 0;
  std::int64_t epoch_ns_ = 0;  // 0: growth begins anew
};

}  // namespace slackline
