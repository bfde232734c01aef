// The limit of bytes that a rank sends to a peer before the peer has asked for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "slackline/wire.h"

namespace slackline {

// The eager bytes of both directions of a link, headers included, in totals since the link began.
// The receiver reports what has been consumed, so that a lost report is made up for by the next.
class EagerBytes {
 public:
  static constexpr std::uint64_t kPool = 4u << 20;  // that may wait for their operations at a time
  static constexpr std::uint64_t kFrame = sizeof(wire::Header);

  // Return whether a payload of this length may be sent.
  bool may_send(std::uint64_t bytes) const { return sent_ + bytes + kFrame - credited_ <= kPool; }
  void send(std::uint64_t bytes) { sent_ += bytes + kFrame; }
  // Take a report of the peer. An older one may arrive later, over another rail.
  void credit(std::uint64_t total) { credited_ = std::max(credited_, total); }
  // Count a payload that has arrived. Return the bytes that wait if they are more than may.
  std::optional<std::uint64_t> arrive(std::uint64_t bytes) {
    arrived_ += bytes + kFrame;
    const std::uint64_t waiting = arrived_ - consumed_;
    return waiting > kPool ? std::optional(waiting) : std::nullopt;
  }
  // Count a payload that has been consumed. Return the total to report, if it is time to.
  std::optional<std::uint64_t> consume(std::uint64_t bytes) {
    consumed_ += bytes + kFrame;
    if (consumed_ - reported_ < kPool / 4) return std::nullopt;
    return reported_ = consumed_;
  }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t credited_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t reported_ = 0;
};

}  // namespace slackline
