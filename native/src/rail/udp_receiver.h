// From fragments to frames: the receiving half of a UDP rail. Nothing that a packet says is
// believed: whatever would not fit, overlap or exceed what a frame may be is refused.
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

  // Takes the fragment of a DATA packet and hands its frame to `sink` when that is complete. False
  // when the packet contradicts itself or another, or asks for too much: it counts as not come.
  bool take(const UdpHeader& packet, std::span<const std::byte> data, Link& link, FrameSink& sink);
  // The rest of the frame will not come. False as above.
  bool skip(const UdpHeader& packet, FrameSink& sink);
  void forget(const Job* job, FrameSink& sink);
  void abandon(FrameSink& sink);

  std::uint64_t frames() const { return frames_; }          // handed over
  std::uint64_t bytes() const { return bytes_; }            // of frames, each counted once
  std::uint64_t held_bytes() const { return held_bytes_; }  // of frames that are not complete

 private:
  // Payloads up to this size are not led to where they belong: asking costs more than copying.
  static constexpr std::uint32_t kBulkBytes = 16u << 10;

  struct Partial {
    std::uint32_t total;
    std::uint16_t unit;
    std::uint32_t missing;
    UdpBits got;
    wire::Header header{};
    std::byte* payload = nullptr;
    bool owned = false;
    Job* job = nullptr;
  };
  struct Slot {
    bool done = false;
    std::unique_ptr<Partial> partial;
  };

  bool well_formed(const UdpHeader& packet, std::size_t bytes) const;
  bool check(const wire::Header& header, std::uint32_t total) const;
  // The frame's place from base_, kUdpOpenFrames when it is one that is done, more when refused.
  std::uint32_t place(std::uint32_t frame) const;
  bool begin(Slot& slot, const UdpHeader& packet);
  void finish(std::uint32_t place);

  const std::uint32_t job_;
  std::uint64_t base_;  // all frames before it are done
  std::deque<Slot> slots_;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t frames_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace slackline
