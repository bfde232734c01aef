// The datagrams of the peer of a UDP rail. The fuzzer chooses whether they are correct, wrong or
// malicious.
#pragma once

#include <array>
#include <vector>

#include "../src/rail/udp_packet.h"
#include "choices.h"

namespace slackline::fuzz {

constexpr std::array<std::uint16_t, 4> kUnits = {512, 1000, 1448, 8948};
constexpr std::array<std::size_t, 8> kLengths = {0, 1, 448, 1384, 3000, 9000, 20'000, 70'000};

// Return the bytes of a frame of the peer. Different variants of the same number contradict each
// other.
inline Bytes frame_bytes(std::uint32_t number, std::uint8_t variant) {
  wire::Header h = test::header_of(wire::FrameKind::kData);
  h.sequence = number;
  h.tag = variant;
  return test::seal(h, test::pattern(kLengths[variant % kLengths.size()], number + variant));
}

inline Bytes flat(const UdpPacket& packet) {
  Bytes bytes(sizeof packet.header);
  std::memcpy(bytes.data(), &packet.header, sizeof packet.header);
  for (const auto& part : packet.parts) bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

inline Bytes body_of(const Bytes& datagram) { return Bytes(datagram.begin() + 24, datagram.end()); }

inline Bytes sealed(const UdpHeader& header, const Bytes& body) {
  UdpPacket packet;
  packet.header = header;
  packet.parts[0] = body;
  packet.seal(test::kJobCode);
  return flat(packet);
}

class UdpPeer {
 public:
  UdpPeer(Choices& choices, std::int64_t first_number)
      : choices_(choices), first_number_(first_number) {}

  enum class Harm { kNone, kSpoiled, kDamaged };

  // Return datagrams of one frame: either the chosen fragment or all other fragments.
  std::vector<Bytes> fragments(bool others, Harm harm) {
    const std::uint32_t number = frame_number();
    const Bytes frame = frame_bytes(number, choices_.byte() % 32);
    const std::uint16_t unit = choices_.one_of(kUnits);
    const std::size_t count = (frame.size() + unit - 1) / unit;
    const std::size_t chosen = choices_.number(2) % count;
    std::vector<Bytes> datagrams;
    for (std::size_t i = 0; i < count; ++i) {
      if ((i == chosen) == others) continue;
      UdpHeader header = fragment(frame, number, unit, i);
      Bytes body = piece(frame, header);
      if (harm == Harm::kSpoiled) spoil(&header, &body);
      datagrams.push_back(sealed(header, body));
      if (harm == Harm::kDamaged) damage(&datagrams.back());
    }
    return datagrams;
  }
  Bytes skip() {
    UdpHeader header;
    header.kind = UdpKind::kSkip;
    header.number = packet_number();
    header.frame = frame_number();
    return sealed(header, Bytes(choices_.byte() % 8 == 7 ? 1 : 0));
  }
  Bytes close() {
    UdpHeader header;
    header.kind = UdpKind::kClose;
    header.number = choices_.byte() % 3;
    return sealed(header, Bytes(choices_.byte() % 8 == 7 ? 1 : 0));
  }
  // Return an ACK for some of the `sent` packets, or for packets that were never sent.
  Bytes acknowledgement(std::size_t sent) {
    UdpHeader header;
    header.kind = UdpKind::kAck;
    const std::uint8_t how = choices_.byte();
    const auto newest =
        static_cast<std::uint32_t>(first_number_ + static_cast<std::int64_t>(sent) - 1);
    header.number = how >= 240 ? static_cast<std::uint32_t>(choices_.number(4)) : newest - how % 16;
    header.unit = static_cast<std::uint16_t>(choices_.number(2));
    if (how % 2 == 0) header.unit %= 64;
    header.frame = static_cast<std::uint32_t>(choices_.number(how % 4));
    header.total = static_cast<std::uint32_t>(choices_.number(4));
    const std::size_t bytes = how % 32 == 31 ? choices_.byte() : (header.unit + 7u) / 8;
    const auto pattern = static_cast<std::byte>(choices_.byte());
    return sealed(header, Bytes(bytes, pattern));
  }
  Bytes any_bytes() {
    Bytes bytes = choices_.piece(24 + choices_.byte());
    if (bytes.size() < 24 || choices_.byte() % 4 == 0) return bytes;
    bytes[4] = std::byte{kUdpMagic};
    const std::uint32_t sum = crc32c(test::kJobCode, bytes.data() + 4, bytes.size() - 4);
    std::memcpy(bytes.data(), &sum, sizeof sum);
    return bytes;
  }

 private:
  // Return a packet number next to the previous ones, or occasionally any number.
  std::uint32_t packet_number() {
    const std::uint8_t choice = choices_.byte();
    if (choice >= 250) return static_cast<std::uint32_t>(choices_.number(4));
    const std::uint32_t number = static_cast<std::uint32_t>(first_number_) + packets_;
    if (choice >= 200) return number - choice % 32;
    packets_ += choice >= 190 ? 9000 : 1;
    return number;
  }
  std::uint32_t frame_number() {
    const std::uint8_t choice = choices_.byte();
    const auto near = static_cast<std::uint32_t>(first_number_) + choice % 16;
    return choice >= 250 ? near + static_cast<std::uint32_t>(choices_.number(2)) : near;
  }
  UdpHeader fragment(const Bytes& frame, std::uint32_t number, std::uint16_t unit,
                     std::size_t index) {
    UdpHeader header;
    header.unit = unit;
    header.number = packet_number();
    header.frame = number;
    header.total = static_cast<std::uint32_t>(frame.size());
    header.offset = static_cast<std::uint32_t>(index * unit);
    return header;
  }
  static Bytes piece(const Bytes& frame, const UdpHeader& header) {
    const std::size_t from = std::min<std::size_t>(header.offset, frame.size());
    const std::size_t to = std::min<std::size_t>(from + header.unit, frame.size());
    return Bytes(frame.begin() + static_cast<std::ptrdiff_t>(from),
                 frame.begin() + static_cast<std::ptrdiff_t>(to));
  }
  void spoil(UdpHeader* header, Bytes* body) {
    const auto value = static_cast<std::uint32_t>(choices_.number(4));
    switch (choices_.byte() % 6) {
      case 0:
        header->unit = static_cast<std::uint16_t>(value);
        break;
      case 1:
        header->total = value;
        break;
      case 2:
        header->offset = value;
        break;
      case 3:  // begin many long frames without completing them
        header->total = kMaxPayload - value % 4;
        header->offset = header->unit;
        body->resize(header->unit);
        break;
      case 4:
        body->resize(value % 9000);
        break;
      default:
        if (!body->empty()) (*body)[value % body->size()] ^= std::byte{1};
    }
  }
  void damage(Bytes* datagram) {
    const std::size_t at = choices_.number(2) % datagram->size();
    (*datagram)[at] ^= static_cast<std::byte>(1u << choices_.byte() % 8);
    if (choices_.byte() % 4 == 0) datagram->resize(at);
  }

  Choices& choices_;
  const std::int64_t first_number_;  // of packets and frames
  std::uint32_t packets_ = 0;
};

}  // namespace slackline::fuzz
