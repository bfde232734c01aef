#include "udp_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../base/descriptor.h"
#include "udp_device.h"

namespace slackline {
namespace {

// Constants that older system headers lack.
constexpr int kUdpSegment = 103;
constexpr int kUdpGro = 104;

constexpr int kReceiveBytes = 8 << 20;
// Bytes that may wait at the sending interface.
constexpr int kSendBytes = 1 << 20;

// Upper bound of the headers of a packet on its way to the interface.
constexpr std::size_t kHeaders = 64;
constexpr std::size_t kUdpOverIp4 = 28;
constexpr std::size_t kUdpOverIp6 = 48;

template <class T>
bool set(int fd, int level, int name, T value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

int get(int fd, int level, int name, int otherwise) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : otherwise;
}

}  // namespace

UdpSocket::UdpSocket(int fd) : fd_(fd), memory_(new std::byte[kSlots * kSlotBytes]) {
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
  v6_ = get(fd_, SOL_SOCKET, SO_DOMAIN, AF_INET) == AF_INET6;
  // Let the kernel fragment datagrams that are longer than the path's MTU. Such datagrams exist for
  // a moment when the path changes, because frames that were begun keep the size of their
  // fragments.
  if (v6_)
    set(fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, int{IPV6_PMTUDISC_WANT});
  else
    set(fd_, IPPROTO_IP, IP_MTU_DISCOVER, int{IP_PMTUDISC_WANT});
  // Root may exceed net.core.rmem_max. Other users get less, and receive_window() reports the
  // actual size.
  if (!set(fd_, SOL_SOCKET, SO_RCVBUFFORCE, kReceiveBytes))
    set(fd_, SOL_SOCKET, SO_RCVBUF, kReceiveBytes);
  set(fd_, SOL_SOCKET, SO_SNDBUF, kSendBytes);
  set(fd_, SOL_SOCKET, SO_TIMESTAMPNS, int{1});
  // Old kernels refuse the option; datagrams then arrive one by one.
  set(fd_, IPPROTO_UDP, kUdpGro, int{1});
  message_bytes_ = std::clamp(largest_uncut_packet(fd_), kUdpMinPacket + 2 * kHeaders,
                              kMessageBytes + kHeaders) -
                   kHeaders;
  segments_ = get(fd_, IPPROTO_UDP, kUdpSegment, -1) >= 0;
  if (!segments_) ++segment_refusals_;
}

UdpSocket::~UdpSocket() {
  if (owned_) close_once(fd_);
}

void UdpSocket::leave_to_parent() { close_once(fd_); }

std::size_t UdpSocket::packet_bytes() const {
  const int mtu = v6_ ? get(fd_, IPPROTO_IPV6, IPV6_MTU, 1500) : get(fd_, IPPROTO_IP, IP_MTU, 1500);
  const std::size_t around = v6_ ? kUdpOverIp6 : kUdpOverIp4;
  return std::clamp(static_cast<std::size_t>(std::max(mtu, 0)), kUdpMinPacket + around,
                    kUdpMaxPacket + around) -
         around;
}

std::uint64_t UdpSocket::receive_window() const {
  // The kernel reports twice the requested size and counts its own overhead too: a packet of 1472
  // bytes takes 2304.
  return static_cast<std::uint64_t>(std::max(get(fd_, SOL_SOCKET, SO_RCVBUF, 0), 256 << 10)) / 2;
}

// Return the number of packets, starting at `first`, that can be sent as one message. All have the
// same size, except that the last may be shorter.
std::size_t UdpSocket::group(std::span<const UdpPacket> packets, std::size_t first) const {
  const std::size_t unit = packets[first].bytes();
  std::size_t n = 1;
  if (!segments_) return n;
  const std::size_t most = std::clamp(message_bytes_ / unit, std::size_t{1}, kSegments);
  while (n < most && first + n < packets.size() && packets[first + n].bytes() <= unit) {
    if (packets[first + n++].bytes() < unit) break;
  }
  return n;
}

UdpSocket::Sent UdpSocket::send(std::span<const UdpPacket> packets) {
  struct Control {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> bytes;
  };
  std::array<mmsghdr, kBatch> messages;
  std::array<std::size_t, kBatch> ends;
  std::array<Control, kBatch> controls;
  std::array<iovec, 3 * kBatch> parts;
  std::size_t used = 0;
  std::size_t count = 0;
  for (std::size_t first = 0; first < packets.size(); ++count) {
    const std::size_t n = group(packets, first);
    msghdr& message = messages[count].msg_hdr;
    message = msghdr{};
    message.msg_iov = &parts[used];
    for (const UdpPacket& packet : packets.subspan(first, n)) {
      parts[used++] = {const_cast<UdpHeader*>(&packet.header), sizeof packet.header};
      for (const auto& part : packet.parts) {
        if (!part.empty()) parts[used++] = {const_cast<std::byte*>(part.data()), part.size()};
      }
    }
    message.msg_iovlen = static_cast<std::size_t>(&parts[used] - message.msg_iov);
    if (n > 1) {
      message.msg_control = controls[count].bytes.data();
      message.msg_controllen = controls[count].bytes.size();
      cmsghdr* control = CMSG_FIRSTHDR(&message);
      control->cmsg_level = IPPROTO_UDP;
      control->cmsg_type = kUdpSegment;
      control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
      const auto unit = static_cast<std::uint16_t>(packets[first].bytes());
      std::memcpy(CMSG_DATA(control), &unit, sizeof unit);
    }
    first += n;
    ends[count] = first;
  }
  std::size_t done = 0;
  while (done < count) {
    const int n = ::sendmmsg(fd_, messages.data() + done, static_cast<unsigned>(count - done),
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    ++system_calls_;
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    const int error = errno;
    const std::size_t before = done == 0 ? 0 : ends[done - 1];
    const bool cut = messages[done].msg_hdr.msg_controllen > 0;
    if (!cut || (error != EINVAL && error != EIO && error != EOPNOTSUPP && error != EMSGSIZE))
      return {before, error};
    // The interface never supports segmentation, or the path's MTU has shrunk below these packets.
    ++segment_refusals_;
    segments_ = false;
    Sent rest = send(packets.subspan(before));
    rest.packets += before;
    segments_ = packets[before].bytes() > packet_bytes();
    return rest;
  }
  return {packets.size(), 0};
}

std::span<const UdpSocket::Arrival> UdpSocket::receive(int* error, bool* drained) {
  struct Control {
    alignas(cmsghdr) std::array<char, kControlBytes> bytes;
  };
  std::array<mmsghdr, kSlots> messages;
  std::array<iovec, kSlots> parts;
  std::array<Control, kSlots> controls;
  for (std::size_t i = 0; i < slots_; ++i) {
    parts[i] = {memory_.get() + i * kSlotBytes, kSlotBytes};
    messages[i].msg_hdr = msghdr{};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_control = controls[i].bytes.data();
    messages[i].msg_hdr.msg_controllen = kControlBytes;
  }
  *error = 0;
  const int n =
      ::recvmmsg(fd_, messages.data(), static_cast<unsigned>(slots_), MSG_DONTWAIT, nullptr);
  ++system_calls_;
  if (n < 0) {
    *error = errno;
    *drained = true;
    return {};
  }
  *drained = static_cast<std::size_t>(n) < slots_;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::size_t length = std::min<std::size_t>(messages[i].msg_len, kSlotBytes);
    bytes += length;
    Arrival& arrival = arrivals_[i];
    arrival = {{memory_.get() + i * kSlotBytes, length}, length, 0};
    msghdr& header = messages[i].msg_hdr;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == kUdpGro) {
        int unit = 0;
        std::memcpy(&unit, CMSG_DATA(c), sizeof unit);
        if (unit > 0) arrival.unit = static_cast<std::size_t>(unit);
      } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
        timespec time;
        std::memcpy(&time, CMSG_DATA(c), sizeof time);
        arrival.time_ns = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
      }
    }
  }
  slots_ = bytes > static_cast<std::size_t>(n) * kSlotBytes / 8 ? kFewSlots : kSlots;
  return {arrivals_.data(), static_cast<std::size_t>(n)};
}

}  // namespace slackline
