// Packet sockets around a circuit with MACs: packets of real interfaces go in and out.
#pragma once

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

// The counters of all sockets since the circuit was opened, which `slackline.circuit` reads.
struct PacketCounts {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
  std::uint64_t unsent = 0;   // packets that an interface did not take
  std::uint64_t dropped = 0;  // packets that came while a port's queue was full, or too long
  std::uint64_t cycles = 0;   // simulated cycles
  // Processor time of the calling thread: for packets alone, and for the simulated cycles.
  std::uint64_t packet_ns = 0;
  std::uint64_t cycle_ns = 0;
};

// Return the processor time that the calling thread has used.
inline std::uint64_t thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

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

  // Keep a packet for the next call of `flush`.
  void keep(const std::vector<std::uint8_t>& packet) {
    if (kept_ == leaving_.size()) leaving_.emplace_back();
    leaving_[kept_++].assign(packet.begin(), packet.end());
  }

  // Send the packets that were kept, many with one system call; return the number of those that
  // the interface has not taken.
  std::size_t flush() {
    std::size_t done = 0, unsent = 0;
    while (done < kept_) {
      const std::size_t count = std::min(kept_ - done, kAtOnce);
      std::array<iovec, kAtOnce> parts;
      std::array<mmsghdr, kAtOnce> messages{};
      for (std::size_t k = 0; k < count; ++k) {
        parts[k] = {leaving_[done + k].data(), leaving_[done + k].size()};
        messages[k].msg_hdr.msg_iov = &parts[k];
        messages[k].msg_hdr.msg_iovlen = 1;
      }
      const int sent =
          sendmmsg(descriptor_, messages.data(), static_cast<unsigned>(count), MSG_NOSIGNAL);
      if (sent > 0) {
        done += static_cast<std::size_t>(sent);
      } else if (errno != EINTR && !waits_for_room()) {
        ++done;
        ++unsent;
      }
    }
    kept_ = 0;
    return unsent;
  }

 private:
  static constexpr std::size_t kAtOnce = 32;
  static constexpr std::size_t kLongest = 9216;
  static constexpr int kPatienceMs = 100;

  // Wait after an error of a call that sends; return false if the packet cannot be sent.
  bool waits_for_room() const {
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    pollfd room{descriptor_, POLLOUT, 0};
    return poll(&room, 1, kPatienceMs) > 0;
  }

  int descriptor_;
  std::array<std::array<std::uint8_t, kLongest>, kAtOnce> buffers_;
  std::array<iovec, kAtOnce> parts_;
  std::array<mmsghdr, kAtOnce> messages_;
  std::array<sockaddr_ll, kAtOnce> from_;
  std::vector<std::vector<std::uint8_t>> leaving_;  // only the first `kept_` are to be sent
  std::size_t kept_ = 0;
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
