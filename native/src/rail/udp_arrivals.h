// Which packets have arrived on a UDP rail, and the ACK that tells of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "udp_packet.h"

namespace slackline {

class UdpArrivals {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  UdpArrivals(std::size_t packet_bytes, std::uint64_t first_number)
      : map_bits_(std::min(kUdpMapBits, (packet_bytes - sizeof(UdpHeader)) * 8)),
        next_(first_number) {}

  std::uint64_t expand(std::uint32_t low) const { return udp_expand(low, next_); }
  // Whether the packet is neither one that came before nor so old that nobody knows.
  bool is_new(std::uint64_t number) const;
  // A packet of `bytes` came at `arrival_ns` and was taken.
  void add(std::uint64_t number, std::size_t bytes, std::int64_t arrival_ns);

  // An ACK should go now, and if not: when, kNever without anything to tell.
  bool urgent(std::int64_t now_ns) const { return due_ns() <= now_ns; }
  std::int64_t due_ns() const { return due_ns_; }
  bool pending() const { return due_ns_ != kNever; }
  // Fills in all but the checksum. The map is valid until the next call.
  void acknowledge(UdpPacket& packet, std::uint64_t window, std::int64_t now_ns);
  // The ACK was not sent after all.
  void again() { due_ns_ = 0; }

 private:
  // A lone short packet may be followed by an answer of ours that the ACK can travel with: it
  // waits.
  static constexpr std::int64_t kDelayNs = 1'000'000;
  static constexpr std::size_t kShortBytes = 1024;
  static constexpr int kShortPackets = 4;
  // Every arrival is told in that many ACKs: all of them would have to be lost.
  static constexpr std::size_t kRepeats = 8;
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

  bool test(std::uint64_t number) const {
    return (seen_[number / 64 % seen_.size()] >> (number % 64) & 1) != 0;
  }

  const std::size_t map_bits_;
  std::uint64_t next_;  // the highest number that came, and one
  bool any_ = false;
  std::int64_t latest_ns_ = 0;  // arrival of next_ - 1
  std::array<std::uint64_t, kUdpMapBits / 64> seen_{};
  std::int64_t due_ns_ = kNever;
  int packets_ = 0;  // since the last ACK
  std::size_t bytes_ = 0;
  std::uint64_t lowest_ = kNone;
  std::array<std::uint64_t, kRepeats> lowest_then_{kNone, kNone, kNone, kNone,
                                                   kNone, kNone, kNone, kNone};
  std::size_t turn_ = 0;
  std::array<std::byte, kUdpMapBits / 8> map_;
};

}  // namespace slackline
