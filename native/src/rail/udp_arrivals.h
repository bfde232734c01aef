// The record of the packets that have arrived on a UDP rail, and the ACK that reports them.
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
  // Return whether the packet has not arrived before. Return false for a packet too old for the
  // record.
  bool is_new(std::uint64_t number) const;
  // Record that a packet of `bytes` bytes arrived at `arrival_ns` and was accepted. `ends` tells
  // whether it completed its frame.
  void add(std::uint64_t number, std::size_t bytes, std::int64_t arrival_ns, bool ends);

  // Return whether an ACK should be sent now; due_ns() is the time at which it should be sent,
  // kNever when there is nothing to report.
  bool urgent(std::int64_t now_ns) const { return due_ns() <= now_ns; }
  std::int64_t due_ns() const { return due_ns_; }
  bool pending() const { return due_ns_ != kNever; }
  // Fill in the ACK except for its checksum. The packet points to this object's map of arrived
  // numbers, which stays valid until the next call of a function of this object.
  void acknowledge(UdpPacket& packet, std::uint64_t window, std::int64_t now_ns);
  // Make the ACK due again because it was not sent after all.
  void again() { due_ns_ = 0; }

 private:
  // The delay of the ACK for a single short packet. This rank often replies to such a packet, and
  // the ACK then travels with the reply. The sender's operation ends with the ACK, so the delay is
  // only as long as the program takes from one operation to the next.
  static constexpr std::int64_t kDelayNs = 50'000;
  static constexpr std::size_t kShortBytes = 1024;
  static constexpr int kShortPackets = 4;
  // The delay of the ACK while a frame is incomplete: its other packets are on their way, and one
  // ACK reports all that arrive together. It is short, since a small window of the sender may wait
  // for this ACK.
  static constexpr std::int64_t kPartDelayNs = 25'000;
  static constexpr int kPartPackets = 16;
  // The number of ACKs that report each arrival. An arrival stays unreported only if all of them
  // are lost.
  static constexpr std::size_t kRepeats = 8;
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

  bool test(std::uint64_t number) const {
    return (seen_[number / 64 % seen_.size()] >> (number % 64) & 1) != 0;
  }

  const std::size_t map_bits_;
  std::uint64_t next_;  // one more than the highest number that arrived
  bool any_ = false;
  std::int64_t latest_ns_ = 0;  // arrival time of packet next_ - 1
  std::array<std::uint64_t, kUdpMapBits / 64> seen_{};
  std::int64_t due_ns_ = kNever;
  int packets_ = 0;  // packets since the last ACK
  std::size_t bytes_ = 0;
  std::uint64_t lowest_ = kNone;
  std::array<std::uint64_t, kRepeats> lowest_then_{kNone, kNone, kNone, kNone,
                                                   kNone, kNone, kNone, kNone};
  std::size_t turn_ = 0;
  std::array<std::byte, kUdpMapBits / 8> map_;
};

}  // namespace slackline
