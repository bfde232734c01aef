// A fuzzer for a whole engine whose peers share memory with it: frames of any content in its rings,
// references to any address, releases at any time. Every operation must end, and the engine must
// stay within mapped memory.
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "../src/rail/shm.h"
#include "play.h"

namespace slackline::fuzz {
namespace {

constexpr std::size_t kArena = 4u << 20;
constexpr std::size_t kHome = 256u << 10;  // bytes of the peer's tensors

// A peer: its arena and its end of the rail. The peer checks the frames that it receives and may
// release their memory.
struct Peer final : FrameSink {
  Peer(Engine& engine, int rank)
      : rank(rank), arena(kArena), bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    new (arena.allocate(sizeof(Doorbell))) Doorbell{};
    home = arena.offset_of(arena.allocate(kHome));
    const std::uint64_t to_us = make_ring(arena);
    const std::uint64_t to_engine = engine.connections().new_ring();
    const auto [x, y] = test::socket_pair();
    link = engine.connections().add_link("the fuzzer");
    engine.connections().add_shm_rail(link, ::dup(arena.fd()), kArena, ::dup(bell), x, to_engine,
                                      to_us);
    rail = std::make_unique<ShmRail>(
        arena, std::make_unique<PeerArena>(engine.arena().fd(), engine.arena().capacity()),
        ::dup(engine.connections().doorbell_fd()), y, to_us, to_engine);
  }
  ~Peer() override { ::close(bell); }

  std::byte* direct_placement(Link&, const wire::Header&, Request**) override { return nullptr; }
  void arrive(Link&, const wire::Header& header, const Payload& payload) override {
    if ((header.flags & wire::kFlagReference) == 0) return;
    Reference reference;
    CHECK_EQUAL(payload.length, sizeof reference);
    std::memcpy(&reference, payload.data, sizeof reference);
    CHECK(rail->peer_memory(reference.offset, 1) != nullptr);
    wire::Header release = header;
    release.kind = static_cast<std::uint8_t>(wire::FrameKind::kRelease);
    release.source = static_cast<std::uint16_t>(rank);
    release.length = 0;
    if (releases) rail->push(release, nullptr, 0);
  }
  std::byte* take_buffer(std::size_t) override { test::fail("a ring takes no buffers"); }
  void give_buffer(std::byte*) override { test::fail("a ring takes no buffers"); }
  bool lock_wanted() const override { return false; }

  int rank;
  bool releases = false;
  Arena arena;
  int bell;
  std::uint64_t home = 0;
  int link = 0;
  std::unique_ptr<ShmRail> rail;
};

struct Memory : Play {
  explicit Memory(std::uint8_t how) {
    std::vector<int> links{-1};
    const std::size_t before = engine.arena().used();
    for (int rank = 1; rank < kRanks; ++rank) {
      Peer& peer =
          *(peers[static_cast<std::size_t>(rank - 1)] = std::make_unique<Peer>(engine, rank));
      links.push_back(peer.link);
    }
    ring_bytes = (engine.arena().used() - before) / peers.size();
    open(std::move(links), (how & 4) != 0, (how & 3) == 2 ? 2'000'000 : 60 * test::kSecond);
  }
  ~Memory() { engine.close(0); }
  void hang_up(Peer& peer) {
    if (peer.rail != nullptr) rings_left_behind += ring_bytes;
    peer.rail.reset();
  }

  std::array<std::unique_ptr<Peer>, kRanks - 1> peers;
};

enum Act : std::uint8_t { kPost, kFrame, kRefer, kWritten, kRead, kHangUp, kActs };

std::uint64_t place(const Peer& peer, Choices& choices) {
  switch (choices.below(6)) {
    case 0:
      return choices.number(8);
    case 1:
      return kArena - choices.number(2);
    case 2:
      return Reference::kNowhere;
    default:
      return peer.home + choices.byte() * 16u;
  }
}

void frame(Memory& play, Peer& peer, Act act, Choices& choices) {
  std::size_t length = 0;
  wire::Header h = play.honest(peer.rank, choices, &length);
  play.spoil(h, choices, &length);
  Bytes payload;
  if (act == kRefer) {
    const Reference reference{place(peer, choices), place(peer, choices)};
    h.flags |= wire::kFlagReference;
    payload.resize(sizeof reference);
    std::memcpy(payload.data(), &reference, sizeof reference);
  } else if (act == kWritten) {
    h.flags |= wire::kFlagWritten;
  } else {
    payload = test::pattern(std::min<std::size_t>(length, ShmRail::kInlineBytes), 1);
  }
  h.length = static_cast<std::uint32_t>(payload.size());
  peer.rail->push(h, payload.data(), payload.size());
}

void run(Choices& choices) {
  const std::uint8_t how = choices.byte();
  Memory play(how);
  for (int steps = 0; !choices.used_up() && steps < 200; ++steps) {
    const auto act = static_cast<Act>(choices.byte() % kActs);
    if (act == kPost) {
      play.post(choices);
      continue;
    }
    Peer& peer = *play.peers[choices.below(play.peers.size())];
    if (peer.rail == nullptr) continue;
    if (act == kRead) {
      peer.releases = choices.byte() % 4 != 0;
      peer.rail->poll(some_link(), peer);
    } else if (act == kHangUp) {
      if (choices.byte() % 8 == 0) play.hang_up(peer);
    } else {
      frame(play, peer, act, choices);
    }
    play.go_on();
  }
  if ((how & 3) == 3) {
    for (auto& peer : play.peers) play.hang_up(*peer);
  }
  play.end(how);
}

Bytes good_peers(std::uint64_t how, std::uint64_t count, std::uint64_t dtype) {
  Script script;
  script.byte(how);
  for (std::uint64_t what = 0; what < 8; ++what) {
    script.byte(kPost).byte(what + 32 * (what % 2)).byte(count).byte(dtype).byte(what % 3);
    script.byte(kRead).byte(what % 2).byte(1);
    for (std::uint64_t peer = 0; peer < 2; ++peer) {
      for (std::uint64_t part = 0; part < 6; ++part) {
        script.byte(count < 4 ? kFrame : kRefer).byte(peer).byte(what).byte(part % 3);
        script.byte(part / 3).byte(part % 2).byte(0);
        if (count >= 4) script.byte(4).byte(part).byte(part % 2 == 0 ? 4 : 2).byte(part);
      }
    }
    script.byte(kWritten).byte(0).byte(what).byte(0).byte(0).byte(0).byte(0);
    script.byte(kRead).byte(0).byte(1).byte(kRead).byte(1).byte(1);
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
