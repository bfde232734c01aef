// The system calls of a UDP rail. Each call transfers many datagrams; where the kernel supports it,
// the kernel cuts (UDP_SEGMENT) and joins (UDP_GRO) them.
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
  static constexpr std::size_t kBatch = 128;  // packets per call

  // Use `fd`, which must be connected, and make it non-blocking.
  explicit UdpSocket(int fd);
  // Take ownership of the descriptor: the destructor closes it. An object that fails to be made
  // leaves it to the caller.
  void own() { owned_ = true; }
  ~UdpSocket();
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int fd() const { return fd_; }
  // Close the socket in a forked child.
  void leave_to_parent();
  // Return the size of the longest datagram that the path takes uncut, as far as the kernel knows;
  // at most kUdpMaxPacket.
  std::size_t packet_bytes() const;
  // Return the bytes that the peer may have in flight to us without overflowing the socket's
  // buffer.
  std::uint64_t receive_window() const;
  // Return whether the kernel cuts datagrams; segment_refusals() counts how often it refused to.
  bool segments() const { return segments_; }
  std::uint64_t segment_refusals() const { return segment_refusals_; }
  std::uint64_t system_calls() const { return system_calls_; }

  struct Sent {
    std::size_t packets = 0;
    int error = 0;  // why the remaining packets were not sent
  };
  Sent send(std::span<const UdpPacket> packets);

  struct Arrival {
    std::span<const std::byte> bytes;
    std::size_t unit;      // size of each datagram; the last may be shorter
    std::int64_t time_ns;  // CLOCK_REALTIME of arrival in the kernel; 0: unknown
  };
  // Return the datagrams that have arrived, valid until the next call. Sets `*error` when there is
  // none, and
  // `*drained` when no more were waiting.
  std::span<const Arrival> receive(int* error, bool* drained);

 private:
  static constexpr std::size_t kSlotBytes = 64u << 10;
  static constexpr std::size_t kSlots = 32;
  // Used while the kernel joins many datagrams in each slot.
  static constexpr std::size_t kFewSlots = 4;
  static constexpr std::size_t kControlBytes = 128;
  static constexpr std::size_t kSegments = 64;  // per message; the original UDP_MAX_SEGMENTS
  static constexpr std::size_t kMessageBytes = 65'000;  // IPv4 allows 65,507

  std::size_t group(std::span<const UdpPacket> packets, std::size_t first) const;

  int fd_;
  bool owned_ = false;
  bool v6_ = false;
  bool segments_ = true;
  // Limit of a message that crosses the network stack uncut.
  std::size_t message_bytes_ = kMessageBytes;
  std::uint64_t segment_refusals_ = 0;
  std::uint64_t system_calls_ = 0;
  std::size_t slots_ = kSlots;
  std::unique_ptr<std::byte[]> memory_;
  std::array<Arrival, kSlots> arrivals_;
};

}  // namespace slackline
