// Handmade frames, and a peer that the test plays at the other end of a stream socket.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "ranks.h"
#include "slackline/crc32c.h"
#include "slackline/wire.h"

namespace slackline::test {

using Bytes = std::vector<std::byte>;

struct Frame {
  wire::Header header{};
  Bytes payload;
};

inline Bytes pattern(std::size_t bytes, unsigned seed) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>((i * 31 + seed * 97 + (i >> 8)) & 0xFF);
  return out;
}

inline wire::Header header_of(wire::FrameKind kind) {
  wire::Header h{};
  h.magic = wire::kMagic;
  h.version = wire::kVersion;
  h.kind = static_cast<std::uint8_t>(kind);
  h.job = kJobCode;
  return h;
}

// Fill in the length and checksums of a frame and return its bytes.
inline Bytes seal(wire::Header header, const Bytes& payload = {}) {
  header.length = static_cast<std::uint32_t>(payload.size());
  header.payload_checksum = payload.empty() ? 0 : crc32c(0, payload.data(), payload.size());
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
  Bytes out(sizeof header + payload.size());
  std::memcpy(out.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(out.data() + sizeof header, payload.data(), payload.size());
  return out;
}

// Return the header of a point-to-point DATA frame from rank `source` that holds a whole message in
// one segment.
inline wire::Header message_header(std::uint32_t epoch, int source, int tag, std::uint32_t sequence,
                                   std::size_t bytes) {
  wire::Header h = header_of(wire::FrameKind::kData);
  h.epoch = epoch;
  h.source = static_cast<std::uint16_t>(source);
  h.dtype = static_cast<std::uint8_t>(wire::DType::kUint8);
  h.op = static_cast<std::uint8_t>(static_cast<unsigned>(wire::Collective::kPointToPoint) << 4);
  h.tag = std::uint64_t{2} << 56 | static_cast<std::uint64_t>(tag) << 32 | sequence;
  h.total = bytes;
  h.flags = wire::kFlagEager;
  return h;
}

// Return both ends of a TCP connection over the loopback interface.
inline std::pair<int, int> tcp_pair() {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&place);
  socklen_t size = sizeof place;
  const int door = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int caller = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(door, address, size) != 0 || ::listen(door, 1) != 0 ||
      ::getsockname(door, address, &size) != 0 || ::connect(caller, address, size) != 0)
    fail("a TCP connection over the loopback interface");
  const int called = ::accept4(door, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(door);
  return {caller, called};
}

// The far end of a stream rail, whose frames the test writes and reads itself.
class Hand {
 public:
  explicit Hand(int fd) : fd_(fd) {}
  ~Hand() { hang_up(); }
  Hand(const Hand&) = delete;
  Hand& operator=(const Hand&) = delete;

  void write(const Bytes& bytes) {
    if (!offer(bytes)) fail("the engine closed the rail");
  }
  // Write bytes and return true, or return false when the engine has closed the rail.
  bool offer(const Bytes& bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (n <= 0) return false;
      done += static_cast<std::size_t>(n);
    }
    return true;
  }
  // Return the next frame other than PROBE, or nothing when the stream ended or `milliseconds`
  // passed.
  std::optional<Frame> read(int milliseconds = 10'000) {
    for (;;) {
      std::optional<Frame> frame = read_any(milliseconds);
      if (!frame || frame->header.kind != static_cast<std::uint8_t>(wire::FrameKind::kProbe))
        return frame;
    }
  }
  std::optional<Frame> read_any(int milliseconds = 10'000) {
    Frame frame;
    if (!fill(&frame.header, sizeof frame.header, milliseconds)) return std::nullopt;
    frame.payload.resize(frame.header.length);
    if (!fill(frame.payload.data(), frame.payload.size(), milliseconds)) return std::nullopt;
    return frame;
  }
  // Return the next frame of a kind and drop others before it.
  Frame expect(wire::FrameKind kind) {
    for (;;) {
      std::optional<Frame> frame = read();
      if (!frame) fail("the frame did not come");
      if (frame->header.kind == static_cast<std::uint8_t>(kind)) return std::move(*frame);
    }
  }
  // End the stream cleanly. Closing a socket with unread data would reset the connection instead.
  void end() { ::shutdown(fd_, SHUT_WR); }
  void hang_up() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  bool fill(void* to, std::size_t bytes, int milliseconds) {
    for (std::size_t done = 0; done < bytes;) {
      pollfd wait{fd_, POLLIN, 0};
      if (::poll(&wait, 1, milliseconds) <= 0) return false;
      const ssize_t n = ::recv(fd_, static_cast<std::byte*>(to) + done, bytes - done, 0);
      if (n <= 0) return false;
      done += static_cast<std::size_t>(n);
    }
    return true;
  }
  int fd_;
};

// An engine as rank 0 whose only peer, rank 1, is played by the test over `rails` stream sockets.
struct Played {
  explicit Played(int rails = 1, const EngineOptions& options = small_engine(),
                  bool reconnect = false)
      : engine(options) {
    link = engine.connections().add_link("the hand", reconnect);
    for (int i = 0; i < rails; ++i) add_rail(i);
    group = engine.open_group(1, 0, {-1, link}, false);
  }
  Hand& add_rail(int rail) {
    const auto [ours, theirs] = socket_pair();
    engine.connections().add_rail(link, rail, RailKind::kTcp, ours, kJobCode);
    hands.push_back(std::make_unique<Hand>(theirs));
    return *hands.back();
  }
  Hand& hand(int rail = 0) { return *hands[static_cast<std::size_t>(rail)]; }

  Engine engine;
  int link = 0;
  std::vector<std::unique_ptr<Hand>> hands;
  std::shared_ptr<Group> group;
};

// Return the bytes of a frame with this sequence number on the link.
inline Bytes numbered(wire::Header h, std::uint32_t sequence, const Bytes& payload = {}) {
  h.sequence = sequence;
  return seal(h, payload);
}

inline Bytes numbered_message(std::uint32_t link_sequence, int tag, std::uint32_t sequence,
                              const Bytes& payload) {
  return numbered(message_header(1, 1, tag, sequence, payload.size()), link_sequence, payload);
}

inline bool acknowledges(Hand& hand, std::uint32_t next) {
  while (std::optional<Frame> frame = hand.read()) {
    if (frame->header.acknowledge >= next) return true;
  }
  return false;
}

// A sink that keeps a copy of every frame that a rail delivers.
struct Recorder final : FrameSink {
  std::byte* direct_placement(Link&, const wire::Header&, Request**) override { return placement; }
  void arrive(Link&, const wire::Header& header, const Payload& payload) override {
    frames.push_back(Frame{header, Bytes(payload.data, payload.data + payload.length)});
    if (payload.owned != nullptr) give_buffer(payload.owned);
  }
  bool lock_wanted() const override { return others_wait; }
  std::byte* take_buffer(std::size_t bytes) override {
    ++buffers_out;
    return new std::byte[bytes];
  }
  void give_buffer(std::byte* buffer) override {
    --buffers_out;
    delete[] buffer;
  }

  std::vector<Frame> frames;
  std::byte* placement = nullptr;
  int buffers_out = 0;
  bool others_wait = false;
};

}  // namespace slackline::test
