// The system calls of a UDP rail: many datagrams a call, where the kernel can in one piece that it
// cuts (UDP_SEGMENT) and joins (UDP_GRO) itself.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "udp_packet.h"

namespace slackline {

class UdpSocket {
 public:
  static constexpr std::size_t kBatch = 128;  // packets a call

  // Takes ownership of `fd`, which must be connected and becomes non-blocking.
  explicit UdpSocket(int fd);
  ~UdpSocket();
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int fd() const { return fd_; }
  // The longest datagram that the path takes in one piece, as far as the kernel knows; at most
  // kUdpMaxPacket.
  std::size_t packet_bytes() const;
  // Bytes that the peer may have on the way to us without the socket's buffer overflowing.
  std::uint64_t receive_window() const;
  // Whether the kernel cuts, and how often it refused to.
  bool segments() const { return segments_; }
  std::uint64_t segment_refusals() const { return segment_refusals_; }
  std::uint64_t system_calls() const { return system_calls_; }

  struct Sent {
    std::size_t packets = 0;
    int error = 0;  // why the others were not sent
  };
  Sent send(std::span<const UdpPacket> packets);

  struct Arrival {
    std::span<const std::byte> bytes;
    std::size_t unit;      // datagrams of that many bytes, the last may have fewer
    std::int64_t time_ns;  // CLOCK_REALTIME, when the kernel had it; 0 unknown
  };
  // What has come, valid until the next call. Sets `*error` when there is nothing, and `*drained`
  // when there was no more.
  std::span<const Arrival> receive(int* error, bool* drained);

 private:
  static constexpr std::size_t kSlotBytes = 64u << 10;
  static constexpr std::size_t kSlots = 32;
  static constexpr std::size_t kFewSlots = 4;  // while the kernel joins many in each
  static constexpr std::size_t kControlBytes = 128;
  static constexpr std::size_t kSegments = 64;  // of one message, as UDP_MAX_SEGMENTS was first
  static constexpr std::size_t kMessageBytes = 65'000;  // IPv4 takes 65,507

  std::size_t group(std::span<const UdpPacket> packets, std::size_t first) const;

  int fd_;
  bool v6_ = false;
  bool segments_ = true;
  std::size_t message_bytes_ = kMessageBytes;  // that cross the stack in one piece
  std::uint64_t segment_refusals_ = 0;
  std::uint64_t system_calls_ = 0;
  std::size_t slots_ = kSlots;
  std::unique_ptr<std::byte[]> memory_;
  std::array<Arrival, kSlots> arrivals_;
};

}  // namespace slackline
