// A slow reference model of a UDP rail: the datagrams that the rail accepts, the frames that
// result, and the data that the rail may consider received by its peer. The model is slow because
// it keeps every fragment and every sequence number that it has seen.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "../src/rail/udp_packet.h"
#include "choices.h"

namespace slackline::fuzz {

constexpr std::int64_t kFrameHeader = sizeof(wire::Header);

// Return the number closest to `near` whose low 32 bits are `low`.
inline std::int64_t number_near(std::uint32_t low, std::int64_t near) {
  return near + static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near));
}

// The packets and frames that the peer sends, by number.
class UdpArrivalsModel {
 public:
  enum class Verdict { kRefused, kTaken, kRepeated };

  explicit UdpArrivalsModel(std::int64_t first) : next_packet_(first), first_frame_(first) {}

  // Process a DATA or SKIP packet with a correct checksum.
  Verdict read(const UdpHeader& packet, const Bytes& body) {
    const std::int64_t number = number_near(packet.number, next_packet_);
    const bool forgotten =
        number < 0 ||
        (number < next_packet_ && (packets_.empty() || next_packet_ - number > kRemembered));
    if (forgotten || packets_.contains(number)) return Verdict::kRepeated;
    if (!(packet.kind == UdpKind::kSkip ? skip(packet, body) : take(packet, body)))
      return Verdict::kRefused;
    packets_.insert(number);
    next_packet_ = std::max(next_packet_, number + 1);
    return Verdict::kTaken;
  }
  // Check that an ACK reports exactly the packets that arrived.
  void check_told(const UdpHeader& ack, const Bytes& map) const {
    CHECK(ack.unit > 0 && map.size() == (ack.unit + 7u) / 8);
    CHECK_EQUAL(ack.number, static_cast<std::uint32_t>(next_packet_ - 1));
    for (std::int64_t i = 0; i < 8 * static_cast<std::int64_t>(map.size()); ++i) {
      const bool told =
          (map[static_cast<std::size_t>(i / 8)] >> (i % 8) & std::byte{1}) != std::byte{0};
      CHECK_EQUAL(told, i < ack.unit && packets_.contains(next_packet_ - ack.unit + i));
    }
  }
  std::uint64_t held_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [number, frame] : partial_) bytes += frame.bytes.size();
    return bytes;
  }

  std::vector<test::Frame> frames;  // completed frames

 private:
  static constexpr std::int64_t kRemembered = kUdpMapBits;

  struct Partial {
    std::uint32_t unit;
    Bytes bytes;
    std::set<std::uint32_t> got;  // offsets of received fragments
  };

  // Return whether the frame may still need data. If not, set `taken` to the value that the caller
  // must return.
  bool wanted(std::int64_t frame, bool* taken) const {
    *taken = frame < first_frame_ || done_.contains(frame);
    return !*taken && frame - first_frame_ < kUdpOpenFrames;
  }
  bool skip(const UdpHeader& packet, const Bytes& body) {
    if (!body.empty()) return false;
    const std::int64_t frame = number_near(packet.frame, first_frame_);
    bool taken = false;
    if (!wanted(frame, &taken)) return taken;
    finish(frame);
    return true;
  }
  bool take(const UdpHeader& packet, const Bytes& body) {
    const bool possible =
        packet.unit >= kUdpMinUnit && packet.unit <= kUdpMaxPacket &&
        packet.total >= kFrameHeader && packet.total <= kFrameHeader + kMaxPayload &&
        packet.offset < packet.total && packet.offset % packet.unit == 0 &&
        body.size() == std::min<std::uint32_t>(packet.unit, packet.total - packet.offset);
    if (!possible) return false;
    const std::int64_t frame = number_near(packet.frame, first_frame_);
    bool taken = false;
    if (!wanted(frame, &taken)) return taken;
    if (packet.offset == 0 && !begins_a_frame(body, packet.total)) return false;
    const auto known = partial_.find(frame);
    if (known == partial_.end()) {
      const bool whole = packet.total <= packet.unit;
      const std::uint64_t held = held_bytes();
      if (!whole && held > 0 && held + packet.total > kUdpOpenBytes) return false;
    } else if (known->second.bytes.size() != packet.total || known->second.unit != packet.unit) {
      return false;
    }
    Partial& partial =
        partial_.try_emplace(frame, Partial{packet.unit, Bytes(packet.total), {}}).first->second;
    if (!partial.got.insert(packet.offset).second) return true;
    std::copy(body.begin(), body.end(), partial.bytes.begin() + packet.offset);
    if (partial.got.size() < (packet.total + packet.unit - 1) / packet.unit) return true;
    test::Frame& out = frames.emplace_back();
    std::memcpy(&out.header, partial.bytes.data(), sizeof out.header);
    out.payload.assign(partial.bytes.begin() + kFrameHeader, partial.bytes.end());
    finish(frame);
    return true;
  }
  static bool begins_a_frame(const Bytes& body, std::uint32_t total) {
    wire::Header h;
    std::memcpy(&h, body.data(), sizeof h);
    return h.magic == wire::kMagic && h.version == wire::kVersion && h.job == test::kJobCode &&
           kFrameHeader + std::int64_t{h.length} == total && crc32c(0, &h, 60) == h.header_checksum;
  }
  void finish(std::int64_t frame) {
    partial_.erase(frame);
    done_.insert(frame);
    while (done_.contains(first_frame_)) ++first_frame_;
  }

  std::set<std::int64_t> packets_;
  std::int64_t next_packet_;
  std::map<std::int64_t, Partial> partial_;
  std::set<std::int64_t> done_;
  std::int64_t first_frame_;  // the first incomplete frame
};

// The data that this end sends: the frames by sequence number, the packets by packet number, and
// the set of confirmed packets.
class UdpSentModel {
 public:
  explicit UdpSentModel(std::int64_t first) : first_packet_(first) {}

  struct Sent {
    std::uint32_t sequence;
    std::int64_t offset;
    std::size_t bytes;  // bytes of the frame in the packet
    bool confirmed = false;
  };

  void enqueue(std::uint32_t sequence, Bytes bytes) { frames_[sequence].bytes = std::move(bytes); }
  void release(std::uint32_t sequence) { frames_[sequence].released = true; }
  std::size_t packets() const { return packets_.size(); }
  void take_back() { packets_.pop_back(); }

  // Check that a sent packet is part of a known frame and has a new number.
  void send(const UdpHeader& packet, const Bytes& body) {
    CHECK_EQUAL(packet.number, static_cast<std::uint32_t>(next()));
    if (packet.kind == UdpKind::kData && packet.offset == 0) {
      wire::Header h;
      CHECK(body.size() >= sizeof h);
      std::memcpy(&h, body.data(), sizeof h);
      sequences_.try_emplace(packet.frame, h.sequence);
    }
    CHECK(sequences_.contains(packet.frame));
    const std::uint32_t sequence = sequences_[packet.frame];
    const Frame& frame = frames_.at(sequence);
    CHECK_EQUAL(frame.released, packet.kind == UdpKind::kSkip);
    if (packet.kind == UdpKind::kSkip) {
      CHECK(body.empty());
    } else {
      CHECK_EQUAL(packet.total, frame.bytes.size());
      CHECK_EQUAL(body.size(), std::min<std::size_t>(packet.unit, packet.total - packet.offset));
      CHECK(std::equal(body.begin(), body.end(), frame.bytes.begin() + packet.offset));
    }
    packets_.push_back(Sent{sequence, packet.offset, body.size()});
  }
  // Return whether an ACK is plausible, and apply it if so.
  bool read(const UdpHeader& ack, const Bytes& map) {
    const std::int64_t number = number_near(ack.number, next());
    const bool possible = number >= 0 && number < next() && ack.unit > 0 &&
                          ack.unit <= kUdpMapBits && map.size() == (ack.unit + 7u) / 8;
    if (!possible) return false;
    for (std::int64_t i = 0; i < ack.unit; ++i) {
      const std::int64_t n = number - ack.unit + 1 + i;
      const bool told =
          (map[static_cast<std::size_t>(i / 8)] >> (i % 8) & std::byte{1}) != std::byte{0};
      if (told && n >= first_packet_)
        packets_[static_cast<std::size_t>(n - first_packet_)].confirmed = true;
    }
    return true;
  }
  // Return the bytes of unreleased frames that no ACK has confirmed.
  std::uint64_t unconfirmed_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [sequence, frame] : frames_) {
      if (!frame.released) bytes += frame.bytes.size();
    }
    std::set<std::pair<std::uint32_t, std::int64_t>> counted;
    for (const Sent& sent : packets_) {
      if (sent.confirmed && !frames_.at(sent.sequence).released &&
          counted.emplace(sent.sequence, sent.offset).second)
        bytes -= sent.bytes;
    }
    return bytes;
  }

 private:
  struct Frame {
    Bytes bytes;
    bool released = false;
  };
  std::int64_t next() const { return first_packet_ + static_cast<std::int64_t>(packets_.size()); }

  const std::int64_t first_packet_;
  std::map<std::uint32_t, Frame> frames_;
  std::map<std::uint32_t, std::uint32_t> sequences_;  // by frame number
  std::vector<Sent> packets_;
};

}  // namespace slackline::fuzz
