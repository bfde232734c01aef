// A fuzzer for a shared-memory ring whose other end writes arbitrary entries, headers, and head and
// tail positions. The rail must stay within the ring, lend no memory outside of it, and report the
// damage.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "../src/rail/shm.h"
#include "target.h"

#if defined(__SANITIZE_ADDRESS__)
#define SLACKLINE_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLACKLINE_POISONS 1
#endif
#endif
#ifdef SLACKLINE_POISONS
#include <sanitizer/asan_interface.h>
#endif

namespace slackline::fuzz {
namespace {

constexpr std::size_t kArena = 1u << 20;

// An arena in which only the doorbell and the ring may be accessed.
struct End {
  End() : arena(kArena), bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    new (arena.allocate(sizeof(Doorbell))) Doorbell{};
    at = make_ring(arena);
  }
  ~End() { ::close(bell); }
  Ring& ring() { return *reinterpret_cast<Ring*>(arena.at(at)); }

  Arena arena;
  int bell;
  std::uint64_t at = 0;
};

// A scope in which AddressSanitizer reports any access to a mapping outside of its doorbell and its
// ring.
class Watch {
 public:
  Watch([[maybe_unused]] std::byte* base, [[maybe_unused]] std::uint64_t ring) {
#ifdef SLACKLINE_POISONS
    begin_ = base;
    __asan_poison_memory_region(base + sizeof(Doorbell), ring - sizeof(Doorbell));
    __asan_poison_memory_region(base + ring + sizeof(Ring), kArena - ring - sizeof(Ring));
#endif
  }
  ~Watch() {
#ifdef SLACKLINE_POISONS
    __asan_unpoison_memory_region(begin_, kArena);
#endif
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

#ifdef SLACKLINE_POISONS

 private:
  std::byte* begin_;
#endif
};

struct Checker final : FrameSink {
  std::byte* direct_placement(Link&, const wire::Header&, Request**) override {
    test::fail("a ring asks for no direct placement");
  }
  void arrive(Link&, const wire::Header& header, const Payload& payload) override {
    CHECK(header.magic == wire::kMagic);
    CHECK(header.length == payload.length && payload.length <= ShmRail::kInlineBytes);
    CHECK(payload.owned == nullptr);
    CHECK(payload.data >= ring->data + sizeof header);
    CHECK(payload.data + payload.length <= ring->data + Ring::kBytes);
    crc = crc32c(crc, payload.data, payload.length);  // the whole payload must be readable
    ++arrived;
  }
  std::byte* take_buffer(std::size_t) override { test::fail("a ring takes no buffers"); }
  void give_buffer(std::byte*) override { test::fail("a ring takes no buffers"); }
  bool lock_wanted() const override { return false; }

  const Ring* ring = nullptr;
  std::uint32_t crc = 0;
  int arrived = 0;
};

struct Pair {
  Pair() {
    const auto [x, y] = test::socket_pair();
    left_rail = join(left, right, x);
    right_rail = join(right, left, y);
    checker.ring = &right.ring();
  }
  static std::unique_ptr<ShmRail> join(const End& own, const End& peer, int control) {
    return std::make_unique<ShmRail>(own.arena,
                                     std::make_unique<PeerArena>(peer.arena.fd(), kArena),
                                     ::dup(peer.bell), control, own.at, peer.at);
  }

  Checker checker;
  End left, right;
  std::unique_ptr<ShmRail> left_rail, right_rail;
};

enum Act : std::uint8_t { kPush, kPoll, kPatch, kLength, kTail, kHead, kWaits, kPushBack, kActs };

void push(ShmRail& rail, Choices& choices) {
  constexpr std::array<std::size_t, 6> kSizes = {0, 1, 63, 1000, 8191, 8192};
  wire::Header h = test::header_of(wire::FrameKind::kData);
  const Bytes payload = test::pattern(choices.one_of(kSizes), 1);
  h.length = static_cast<std::uint32_t>(payload.size());
  rail.push(h, payload.data(), payload.size());
}

std::uint64_t place(Choices& choices, std::uint64_t now) {
  switch (choices.below(4)) {
    case 0:
      return now + choices.byte();
    case 1:
      return now - choices.byte();
    case 2:
      return now + 64 * choices.number(2);
    default:
      return choices.number(8);
  }
}

// Damage the ring that `right` reads, as a faulty writer or reader of the ring could.
void spoil(Ring& ring, Act act, Choices& choices) {
  const std::uint64_t head = ring.head.load();
  const std::size_t entry = head % Ring::kBytes;
  if (act == kPatch) {
    const Bytes bytes = choices.piece(1 + choices.below(64));
    const std::size_t at = (entry + choices.number(2)) % Ring::kBytes;
    std::copy_n(bytes.begin(), std::min(bytes.size(), Ring::kBytes - at), ring.data + at);
  } else if (act == kLength) {
    const auto length = static_cast<std::uint32_t>(choices.number(4));
    const std::size_t at = entry + offsetof(wire::Header, length);
    if (at + sizeof length <= Ring::kBytes) std::memcpy(ring.data + at, &length, sizeof length);
  } else if (act == kTail) {
    ring.tail.store(place(choices, ring.tail.load()));
  } else if (act == kHead) {
    ring.head.store(place(choices, head));
  } else {
    ring.producer_waits.store(choices.byte());
  }
}

void run(Choices& choices) {
  Link& link = some_link();
  Pair pair;
  const Watch of_right(pair.right.arena.at(0), pair.right.at);
  const Watch of_rights_view(pair.left_rail->peer_memory(0, kArena), pair.right.at);
  const Watch of_lefts_view(pair.right_rail->peer_memory(0, kArena), pair.left.at);
  bool honest = true;
  int pushed = 0;
  while (!choices.used_up()) {
    const auto act = static_cast<Act>(choices.byte() % kActs);
    if (act == kPush) {
      const std::uint64_t before = pair.left_rail->frames_sent;
      push(*pair.left_rail, choices);
      pushed += pair.left_rail->frames_sent > before ? 1 : 0;
    } else if (act == kPushBack) {
      push(*pair.right_rail, choices);
      if (choices.byte() % 2 == 0) spoil(pair.left.ring(), kHead, choices);
    } else if (act == kPoll) {
      const int before = pair.checker.arrived;
      pair.right_rail->poll(link, pair.checker);
      CHECK(pair.checker.arrived - before <= 64);
      pair.right_rail->notify();
    } else {
      spoil(pair.right.ring(), act, choices);
      honest = honest && act == kWaits;
    }
  }
  for (int turns = 0; pair.right_rail->poll(link, pair.checker); ++turns)
    CHECK(turns < 5000);  // at most as many frames as a ring holds
  if (honest) {
    CHECK(!pair.right_rail->failure());
    CHECK_EQUAL(pair.checker.arrived, pushed);
  }
  const int before = pair.checker.arrived;
  if (pair.right_rail->failure()) CHECK(!pair.right_rail->poll(link, pair.checker));
  CHECK_EQUAL(pair.checker.arrived, before);
}

}  // namespace

std::vector<Bytes> seeds() {
  Script around;
  for (int i = 0; i < 90; ++i) {
    around.byte(kPush).byte(static_cast<std::uint64_t>(i) % 6);
    if (i % 5 == 4) around.byte(kPoll);
  }
  std::vector<Bytes> all{around.bytes()};
  for (const Act act : {kPatch, kLength, kTail, kHead, kWaits}) {
    Script spoiled;
    spoiled.byte(kPush).byte(4).byte(kPush).byte(2).byte(act).byte(3);
    spoiled.number(0xFFFF'FFFF'FFFF'FFC0, 8).byte(kPoll).byte(kPushBack).byte(3).byte(0).byte(2);
    all.push_back(spoiled.bytes());
    Script later(around);
    later.byte(act).byte(1).number(77, 8).byte(kPush).byte(1).byte(kPoll);
    all.push_back(later.bytes());
  }
  return all;
}

}  // namespace slackline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  slackline::fuzz::Choices choices(data, size);
  slackline::fuzz::run(choices);
  return 0;
}
