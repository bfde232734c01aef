// A fuzzer for a whole engine with links over wires: well-formed frames of any content, in any
// order, over rails that may end, for operations of every kind. Every operation must end.
#include <fcntl.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "play.h"

namespace slackline::fuzz {
namespace {

using test::kJobCode;

// The far end of a rail; its calls never block.
struct Far {
  explicit Far(int fd) : fd(fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }
  ~Far() { hang_up(); }
  Far(const Far&) = delete;
  Far& operator=(const Far&) = delete;
  void hang_up() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  // Return false when the engine has closed the connection or does not read.
  bool write(const Bytes& bytes) {
    return fd >= 0 && ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                          static_cast<ssize_t>(bytes.size());
  }
  // Read the data that the engine wrote, and track the highest frame number that begins in it.
  void read() {
    std::array<std::byte, 16384> buffer;
    for (ssize_t n = 0; fd >= 0 && (n = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0;)
      seen.insert(seen.end(), buffer.begin(), buffer.begin() + n);
    while (seen.size() >= sizeof(wire::Header)) {
      wire::Header h;
      std::memcpy(&h, seen.data(), sizeof h);
      CHECK(h.magic == wire::kMagic && crc32c(0, &h, 60) == h.header_checksum);
      if (seen.size() < sizeof h + h.length) break;
      CHECK(h.length == 0 || crc32c(0, seen.data() + sizeof h, h.length) == h.payload_checksum);
      last = std::max(last, h.sequence);
      seen.erase(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(sizeof h + h.length));
    }
  }

  int fd;
  Bytes seen;
  std::uint32_t last = 0;
};

// A peer: its rails and its frame numbers.
struct Peer {
  int rank = 0;
  std::vector<std::unique_ptr<Far>> rails;
  std::uint32_t next = 1;

  std::uint32_t number(Choices& choices) {
    switch (choices.below(12)) {
      case 0:
        return 0;
      case 1:
        return static_cast<std::uint32_t>(choices.number(4));
      case 2:
        return next + choices.byte() % 4;
      case 3:
        return next - choices.byte() % 4;
      default:
        return next++;
    }
  }
  std::uint32_t acknowledge(Choices& choices) const {
    std::uint32_t last = 0;
    for (const auto& rail : rails) last = std::max(last, rail->last);
    const std::uint8_t how = choices.byte() % 8;
    if (how == 0) return static_cast<std::uint32_t>(choices.number(4));
    return how < 4 ? 0 : last + 1;
  }
};

struct Wires : Play {
  explicit Wires(std::uint8_t how) {
    std::vector<int> links{-1};
    for (int rank = 1; rank < kRanks; ++rank) {
      links.push_back(engine.connections().add_link("the fuzzer"));
      Peer& peer = peers[static_cast<std::size_t>(rank - 1)];
      peer.rank = rank;
      for (int rail = 0; rail < rank; ++rail) {
        const auto [ours, theirs] = test::socket_pair();
        engine.connections().add_rail(links.back(), rail, RailKind::kTcp, ours, kJobCode);
        peer.rails.push_back(std::make_unique<Far>(theirs));
      }
    }
    open(std::move(links), (how & 4) != 0, (how & 3) == 2 ? 2'000'000 : 60 * test::kSecond);
  }
  void hang_up() {
    for (Peer& peer : peers) {
      for (auto& rail : peer.rails) rail->hang_up();
    }
  }

  std::array<Peer, kRanks - 1> peers;
};

enum Act : std::uint8_t { kPost, kFrame, kFrame2, kFrame3, kRead, kDamage, kHangUp, kActs };

void frame(Wires& play, Peer& peer, Far& rail, bool damaged, Choices& choices) {
  std::size_t length = 0;
  wire::Header h = play.honest(peer.rank, choices, &length);
  play.spoil(h, choices, &length);
  h.job = kJobCode;
  h.sequence = peer.number(choices);
  h.acknowledge = peer.acknowledge(choices);
  Bytes bytes = test::seal(h, test::pattern(length, h.sequence));
  if (damaged) bytes[choices.number(2) % bytes.size()] ^= std::byte{8};
  if (!rail.write(bytes)) rail.hang_up();  // part of a frame may be in flight
}

void run(Choices& choices) {
  const std::uint8_t how = choices.byte();
  Wires play(how);
  for (int steps = 0; !choices.used_up() && steps < 200; ++steps) {
    const auto act = static_cast<Act>(choices.byte() % kActs);
    if (act == kPost) {
      play.post(choices);
      continue;
    }
    Peer& peer = play.peers[choices.below(play.peers.size())];
    Far& rail = *peer.rails[choices.below(peer.rails.size())];
    if (act == kRead) {
      rail.read();
    } else if (act == kHangUp) {
      if (choices.byte() % 4 == 0) rail.hang_up();
    } else {
      frame(play, peer, rail, act == kDamage && choices.byte() % 4 == 0, choices);
    }
    play.go_on();
  }
  if ((how & 3) == 3) play.hang_up();
  play.end(how);
}

// Post one operation of each kind and answer each as a correct peer would.
Bytes good_peers(std::uint64_t how, std::uint64_t count, std::uint64_t dtype) {
  Script script;
  script.byte(how);
  for (std::uint64_t what = 0; what < 8; ++what) {
    script.byte(kPost).byte(what).byte(count).byte(dtype).byte(what % 3);
    script.byte(kRead).byte(what % 2).byte(0);
    for (std::uint64_t peer = 0; peer < 2; ++peer) {
      for (std::uint64_t part = 0; part < 6; ++part) {
        script.byte(kFrame).byte(peer).byte(part).byte(what).byte(part % 3).byte(part / 3);
        script.byte(part % 2).byte(0).byte(5).byte(5);
      }
    }
  }
  return script.bytes();
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint64_t how = 0; how < 8; ++how) {
    for (std::uint64_t count = 0; count < 7; count += 2)
      all.push_back(good_peers(how, count, how % 4));
  }
  return all;
}

}  // namespace slackline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  slackline::fuzz::Choices choices(data, size);
  slackline::fuzz::run(choices);
  return 0;
}
