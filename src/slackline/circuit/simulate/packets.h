// Packet sockets around a circuit with MACs: packets of real interfaces go in and out.
#pragma once

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

// The counters of all sockets since the circuit was opened, which `slackline.circuit` reads.
struct PacketCounts {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
  std::uint64_t unsent = 0;   // packets that an interface did not take
  std::uint64_t dropped = 0;  // packets that came while a port's queue was full, or too long
  std::uint64_t cycles = 0;   // simulated cycles
};

// A packet socket that is bound to an interface, with buffers for several packets at a time.
class PacketSocket {
 public:
  explicit PacketSocket(int descriptor) : descriptor_(descriptor) {
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      parts_[k] = {buffers_[k].data(), buffers_[k].size()};
      messages_[k].msg_hdr = {};
      messages_[k].msg_hdr.msg_iov = &parts_[k];
      messages_[k].msg_hdr.msg_iovlen = 1;
      messages_[k].msg_hdr.msg_name = &from_[k];
    }
  }

  int descriptor() const { return descriptor_; }

  // Call `take(packet, bytes)` for each packet that waits, without those that this host sent.
  template <typename Take>
  bool receive(Take take) {
    for (auto& each : messages_) each.msg_hdr.msg_namelen = sizeof(sockaddr_ll);
    const int count = recvmmsg(descriptor_, messages_.data(), kAtOnce, MSG_DONTWAIT, nullptr);
    for (int k = 0; k < count; ++k) {
      if (from_[k].sll_pkttype == PACKET_OUTGOING) continue;
      const bool whole = (messages_[k].msg_hdr.msg_flags & MSG_TRUNC) == 0;
      take(buffers_[k].data(), whole ? messages_[k].msg_len : 0);
    }
    return count > 0;
  }

  // Send a packet; return false if the interface does not take it.
  bool send(const std::vector<std::uint8_t>& packet) const {
    for (;;) {
      if (::send(descriptor_, packet.data(), packet.size(), MSG_NOSIGNAL) >= 0) return true;
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
      pollfd room{descriptor_, POLLOUT, 0};
      if (poll(&room, 1, kPatienceMs) <= 0) return false;
    }
  }

 private:
  static constexpr std::size_t kAtOnce = 32;
  static constexpr std::size_t kLongest = 9216;
  static constexpr int kPatienceMs = 100;

  int descriptor_;
  std::array<std::array<std::uint8_t, kLongest>, kAtOnce> buffers_;
  std::array<iovec, kAtOnce> parts_;
  std::array<mmsghdr, kAtOnce> messages_;
  std::array<sockaddr_ll, kAtOnce> from_;
};

// Return the port that a packet is addressed to: the distance of its destination from `address`, or
// port 0 for packets to all. A packet to any other address gets `ports`: no MAC would take it.
inline std::size_t port_of(const std::uint8_t* packet, std::uint64_t address, std::size_t ports) {
  std::uint64_t destination = 0;
  for (std::size_t k = 0; k < 6; ++k) destination = destination << 8 | packet[k];
  if (destination == 0xFFFFFFFFFFFF) return 0;
  const std::uint64_t distance = destination - address;
  return distance < ports ? distance : ports;
}
