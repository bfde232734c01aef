// Parsing of the frames that pass a switch: destination, size on a wire, and the bytes that a fault
// may corrupt.
//
// A frame here is a virtio-net header (IFF_VNET_HDR) followed by an Ethernet frame. With offload it
// may be a super-frame: up to 64 KiB of TCP data that a wire would carry as many packets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace slackline::lab {

using Frame = std::span<std::byte>;
using ConstFrame = std::span<const std::byte>;

// The header that the kernel puts before each frame of a TAP device (IFF_VNET_HDR): virtio 1.2,
// section 5.1.6. The kernel's own header file for it does not compile as C++.
struct Virtio {
  std::uint8_t flags = 0;     // 1: the device must compute the checksum
  std::uint8_t gso_type = 0;  // 0: one packet; else TCP that the device must segment
  std::uint16_t header_bytes = 0;
  std::uint16_t gso_size = 0;  // TCP payload of each packet
  std::uint16_t checksum_start = 0;
  std::uint16_t checksum_offset = 0;
};
static_assert(sizeof(Virtio) == 10);

inline constexpr std::uint8_t kNeedsChecksum = 1;
inline constexpr std::uint8_t kGsoTcp4 = 1;
inline constexpr std::size_t kVirtioBytes = sizeof(Virtio);
inline constexpr std::size_t kHeadBytes = kVirtioBytes + 14;  // with the Ethernet header

inline Virtio virtio_of(ConstFrame frame) {
  Virtio header;
  std::memcpy(&header, frame.data(), sizeof header);
  return header;
}

// Return whether the sender's network stack left work to the device: the checksum or the
// segmentation.
inline bool offloaded(ConstFrame frame) {
  const Virtio header = virtio_of(frame);
  return header.gso_type != 0 || (header.flags & kNeedsChecksum) != 0;
}

inline std::uint8_t byte_at(ConstFrame frame, std::size_t offset) {
  return std::to_integer<std::uint8_t>(frame[offset]);
}

inline bool is_group_address(ConstFrame frame) { return (byte_at(frame, kVirtioBytes) & 1) != 0; }

// Return the host that has the frame's destination address, if it is a host of the lab on this
// NIC. The address is 02:53:4c:NIC:HOST:HOST.
inline std::optional<int> target_of(ConstFrame frame, int nic) {
  const auto mac = [&](std::size_t i) { return byte_at(frame, kVirtioBytes + i); };
  if (mac(0) != 0x02 || mac(1) != 0x53 || mac(2) != 0x4c || mac(3) != nic) return std::nullopt;
  return mac(4) << 8 | mac(5);
}

struct Range {
  std::size_t begin;
  std::size_t end;
};

// Return the byte range of the IP payload, TCP or UDP header included. For other protocols the
// range is everything after the Ethernet header.
inline Range payload_of(ConstFrame frame) {
  const bool ip = byte_at(frame, kVirtioBytes + 12) == 0x08 && byte_at(frame, kHeadBytes - 1) == 0;
  if (!ip || frame.size() < kHeadBytes + 20) return {kHeadBytes, frame.size()};
  const std::size_t header = (byte_at(frame, kHeadBytes) & 15u) * 4u;
  const std::size_t total = byte_at(frame, kHeadBytes + 2) * 256u + byte_at(frame, kHeadBytes + 3);
  const std::size_t end = std::min(frame.size(), kHeadBytes + total);
  if (kHeadBytes + header >= end) return {kHeadBytes, frame.size()};
  return {kHeadBytes + header, end};
}

inline void flip_bit(Frame frame, std::size_t bit) {
  frame[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
}

// Return the bytes that the packets of this frame occupy on a wire, Ethernet headers included.
inline std::size_t wire_bytes(ConstFrame frame) {
  const std::size_t bytes = frame.size() - kVirtioBytes;
  const Virtio header = virtio_of(frame);
  const std::size_t tcp = payload_of(frame).begin;
  if (header.gso_type == 0 || header.gso_size == 0 || frame.size() < tcp + 20) return bytes;
  const std::size_t headers = tcp - kVirtioBytes + (byte_at(frame, tcp + 12) >> 4) * 4u;
  if (headers >= bytes) return bytes;
  const std::size_t packets = (bytes - headers + header.gso_size - 1) / header.gso_size;
  return bytes + (packets - 1) * headers;
}

}  // namespace slackline::lab
