// The receiving half of a UDP rail, which assembles frames from fragments. Every field of a packet
// is checked: a fragment that does not fit, overlaps another or exceeds the limits of a frame is
// refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "udp_packet.h"

namespace slackline {

class UdpReceiver {
 public:
  UdpReceiver(std::uint32_t job, std::uint64_t first_frame) : job_(job), base_(first_frame) {}

  // Store the fragment of a DATA packet, and pass the frame to `sink` once it is complete.
  // Return false when the packet contradicts itself or an earlier packet, or exceeds the limits;
  // the packet then counts as not received.
  bool take(const UdpHeader& packet, std::span<const std::byte> data, Link& link, FrameSink& sink);
  // Note that the rest of the frame will not be sent. Return false under the same conditions as
  // take().
  bool skip(const UdpHeader& packet, FrameSink& sink);
  void forget(const Request* owner, FrameSink& sink);
  void abandon(FrameSink& sink);

  std::uint64_t frames() const { return frames_; }          // frames passed to the sink
  std::uint64_t bytes() const { return bytes_; }            // bytes of frames, each counted once
  std::uint64_t held_bytes() const { return held_bytes_; }  // bytes of incomplete frames

 private:
  // Payloads up to this size are not stored directly at their destination, because a look-up of the
  // destination costs more than a copy of the payload.
  static constexpr std::uint32_t kBulkBytes = 16u << 10;

  struct Partial {
    std::uint32_t total;
    std::uint16_t unit;
    std::uint32_t missing;
    UdpBits got;
    wire::Header header{};
    std::byte* payload = nullptr;
    bool owned = false;
    Request* owner = nullptr;
  };
  struct Slot {
    bool done = false;
    std::unique_ptr<Partial> partial;
  };

  bool well_formed(const UdpHeader& packet, std::size_t bytes) const;
  bool check(const wire::Header& header, std::uint32_t total) const;
  // Return the frame's index relative to base_, kUdpOpenFrames for a frame that is complete, or
  // more for a frame that is refused.
  std::uint32_t place(std::uint32_t frame) const;
  bool begin(Slot& slot, const UdpHeader& packet);
  void finish(std::uint32_t place);

  const std::uint32_t job_;
  std::uint64_t base_;  // all frames before it are complete
  std::deque<Slot> slots_;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t frames_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace slackline
