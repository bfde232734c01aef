// The layout of the datagrams of a UDP rail. Numbers are little endian.
//
//  byte  | DATA                         | SKIP  | ACK                            | CLOSE
//  ------+------------------------------+-------+--------------------------------+------
//  0-3   | checksum: CRC32C over all bytes that follow, continued from the job code
//  4     | kUdpMagic
//  5     | 1                            | 2     | 3                              | 4
//  6-7   | unit: bytes of a fragment,   | 0     | bits of the map                | 0
//        | but for its frame's last     |       |                                |
//  8-11  | number: counts packets, every        | the number of the map's        | why
//        | transmission anew                    | last bit                       |
//  12-15 | frame: counts a rail's frames        | delay: ns from that packet's   | 0
//        |                                      | arrival to this ACK            |
//  16-19 | total: bytes of the frame,   | 0     | window: bytes that may be      | 0
//        | its header of 64 included    |       | in flight                      |
//  20-23 | offset of the first byte     | 0     | 0                              | 0
//  24-   | bytes of the frame           | -     | map: bit i in byte i / 8, from | -
//        |                              |       | the lowest; 1 = it arrived     |
//
// A fragment starts at a multiple of its frame's unit and has unit bytes, unless it is the last.
// Two fragments are therefore either the same or disjoint. DATA and SKIP are confirmed by ACK; ACK
// and CLOSE are not. SKIP states that the rest of a frame will not be sent. CLOSE gives a reason:
// the sender ends (0), or it gives up only this rail (1).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "rail.h"
#include "slackline/crc32c.h"
#include "slackline/wire.h"

namespace slackline {

enum class UdpKind : std::uint8_t { kData = 1, kSkip = 2, kAck = 3, kClose = 4 };

inline constexpr std::uint32_t kHeader = sizeof(wire::Header);  // of a frame
inline constexpr std::uint8_t kUdpMagic = 0xD5;

struct UdpHeader {
  std::uint32_t checksum = 0;
  std::uint8_t magic = kUdpMagic;
  UdpKind kind = UdpKind::kData;
  std::uint16_t unit = 0;    // in an ACK: the number of bits in the map
  std::uint32_t number = 0;  // in an ACK: the packet number of the last bit
  std::uint32_t frame = 0;   // in an ACK: delay_ns
  std::uint32_t total = 0;   // in an ACK: the window
  std::uint32_t offset = 0;
};
static_assert(sizeof(UdpHeader) == 24 && std::is_trivially_copyable_v<UdpHeader>);

// An MTU of 1500 bytes gives packets of 1472 bytes, of which 1448 belong to the frame; an MTU of
// 9000 gives 8972.
inline constexpr std::size_t kUdpMaxPacket = 8972;
inline constexpr std::size_t kUdpMinPacket = 548;  // 576 is the smallest MTU that IPv4 guarantees
inline constexpr std::size_t kUdpMinUnit = 512;

// Limits on the frames that a sender has begun and does not know to be complete. The receiver
// refuses more, which bounds the memory that reassembly may use.
inline constexpr std::uint32_t kUdpOpenFrames = 4096;
inline constexpr std::uint64_t kUdpOpenBytes = 32u << 20;
static_assert(kUdpOpenBytes > kMaxPayload + sizeof(wire::Header));

enum class UdpClose : std::uint32_t { kEnd = 0, kRail = 1 };

// Number of packets that one ACK can report: more than are ever in flight.
inline constexpr std::size_t kUdpMapBits = 8192;

// A datagram to be sent: the header and up to two spans of memory, which are not copied.
struct UdpPacket {
  UdpHeader header;
  std::array<std::span<const std::byte>, 2> parts;

  std::size_t bytes() const { return sizeof header + parts[0].size() + parts[1].size(); }
  void seal(std::uint32_t job) {
    std::uint32_t sum = crc32c(job, reinterpret_cast<const std::byte*>(&header) + 4, 20);
    for (const auto& part : parts) {
      if (!part.empty()) sum = crc32c(sum, part.data(), part.size());
    }
    header.checksum = sum;
  }
};

// Return whether a datagram is undamaged and belongs to this job, and read `header` from it.
inline bool udp_open(std::span<const std::byte> datagram, std::uint32_t job, UdpHeader* header) {
  if (datagram.size() < sizeof *header) return false;
  std::memcpy(static_cast<void*>(header), datagram.data(), sizeof *header);
  return header->magic == kUdpMagic &&
         crc32c(job, datagram.data() + 4, datagram.size() - 4) == header->checksum;
}

// Return the full packet number from its low 32 bits, as the number closest to the known number
// `near`.
inline std::uint64_t udp_expand(std::uint32_t low, std::uint64_t near) {
  return near + static_cast<std::uint64_t>(static_cast<std::int64_t>(
                    static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near))));
}

// A bitmap of the fragments of a frame that have arrived.
class UdpBits {
 public:
  explicit UdpBits(std::uint32_t count = 0) : words_(count > 64 ? (count + 63) / 64 : 0) {}
  bool test(std::uint32_t i) const { return (word(i) >> (i % 64) & 1) != 0; }
  // Set a bit. Return true when the bit was not set before.
  bool set(std::uint32_t i) {
    std::uint64_t& w = words_.empty() ? first_ : words_[i / 64];
    const std::uint64_t bit = std::uint64_t{1} << (i % 64);
    const bool fresh = (w & bit) == 0;
    w |= bit;
    return fresh;
  }

 private:
  std::uint64_t word(std::uint32_t i) const { return words_.empty() ? first_ : words_[i / 64]; }
  std::uint64_t first_ = 0;  // up to 64 bits need no separate memory
  std::vector<std::uint64_t> words_;
};

}  // namespace slackline
