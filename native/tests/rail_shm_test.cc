#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "../src/rail/shm.h"
#include "frames.h"
#include "parts.h"

namespace slackline::test {
namespace {

// An end of a shared-memory rail: an arena with its doorbell word, an eventfd and a ring to read.
struct End {
  End() : arena(4u << 20), bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    doorbell = new (arena.allocate(sizeof(Doorbell))) Doorbell{};
    ring = make_ring(arena);
  }
  ~End() { ::close(bell); }
  bool rung() const {
    std::uint64_t count = 0;
    return ::read(bell, &count, sizeof count) == sizeof count;
  }

  Arena arena;
  int bell;
  Doorbell* doorbell;
  std::uint64_t ring;
};

struct Pair {
  Pair() : link(parts.add("test")) {
    const auto [x, y] = socket_pair();
    left_rail = join(left, right, x);
    right_rail = join(right, left, y);
  }
  static std::unique_ptr<ShmRail> join(const End& own, const End& peer, int control) {
    return std::make_unique<ShmRail>(
        own.arena, std::make_unique<PeerArena>(peer.arena.fd(), peer.arena.capacity()),
        ::dup(peer.bell), control, own.ring, peer.ring);
  }
  bool push(std::uint32_t sequence, std::size_t bytes) {
    wire::Header h = header_of(wire::FrameKind::kData);
    h.sequence = sequence;
    h.length = static_cast<std::uint32_t>(bytes);
    const Bytes payload = pattern(bytes, sequence);
    return left_rail->push(h, payload.data(), bytes);
  }
  void check_received(std::uint32_t sequence, std::size_t bytes) {
    const Frame& frame = sink.frames.at(sequence - 1);
    CHECK_EQUAL(frame.header.sequence, sequence);
    CHECK(frame.payload == pattern(bytes, sequence));
  }

  Parts parts;
  Link& link;
  Recorder sink;
  End left, right;
  std::unique_ptr<ShmRail> left_rail, right_rail;
};

std::size_t some_size(std::uint32_t i) { return i * 2654435761u % (ShmRail::kInlineBytes + 1); }

TEST("frames of all sizes go around the end of a ring unharmed") {
  Pair pair;
  constexpr std::uint32_t kFrames = 2000;  // about 30 times around the ring
  for (std::uint32_t i = 1; i <= kFrames; ++i) {
    while (!pair.push(i, some_size(i))) CHECK(pair.right_rail->poll(pair.link, pair.sink));
    if (i % 7 == 0) pair.right_rail->poll(pair.link, pair.sink);
  }
  while (pair.right_rail->poll(pair.link, pair.sink)) {
  }
  CHECK_EQUAL(pair.sink.frames.size(), kFrames);
  for (std::uint32_t i = 1; i <= kFrames; ++i) pair.check_received(i, some_size(i));
}

TEST("two threads pass frames through a ring without a lock") {
  Pair pair;
  constexpr std::uint32_t kFrames = 5000;
  std::thread producer([&] {
    for (std::uint32_t i = 1; i <= kFrames; ++i) {
      while (!pair.push(i, some_size(i))) std::this_thread::yield();
    }
  });
  while (pair.sink.frames.size() < kFrames) {
    if (!pair.right_rail->poll(pair.link, pair.sink)) std::this_thread::yield();
  }
  producer.join();
  for (std::uint32_t i = 1; i <= kFrames; ++i) pair.check_received(i, some_size(i));
}

TEST("a full ring refuses, and its reader rings the sleeping writer once there is room") {
  Pair pair;
  std::uint32_t pushed = 0;
  while (pair.push(pushed + 1, 1000)) ++pushed;
  CHECK(pushed >= Ring::kBytes / 1100);
  CHECK(!pair.left_rail->room_again());
  pair.left.doorbell->sleeping.store(1);
  CHECK(!pair.left.rung());
  CHECK(pair.right_rail->poll(pair.link, pair.sink));
  pair.right_rail->notify();
  CHECK(pair.left.rung());
  CHECK(pair.left_rail->take_room_again());
  CHECK(!pair.left_rail->room_again());
  CHECK(pair.push(pushed + 1, 1000));
}

TEST("a fault holds frames back, in order, until they are due or it is over") {
  Pair pair;
  FaultState state;
  state.delay_ns = 3600 * kSecond;
  pair.left_rail->inject(state);
  CHECK(pair.push(1, 100));
  CHECK(pair.push(2, 200));
  CHECK(pair.left_rail->holds_back());
  CHECK(!pair.right_rail->poll(pair.link, pair.sink));
  const std::int64_t due = pair.left_rail->due_ns();
  pair.left_rail->tick(due - 1);
  CHECK(!pair.right_rail->poll(pair.link, pair.sink));
  state = FaultState{};
  state.down = true;
  pair.left_rail->inject(state);
  CHECK(pair.push(3, 0));
  pair.left_rail->tick(due + kSecond);
  CHECK(pair.right_rail->poll(pair.link, pair.sink));
  CHECK_EQUAL(pair.sink.frames.size(), 2u);
  pair.left_rail->inject(std::nullopt);
  CHECK(pair.push(4, 10));  // sent after the frames that still wait
  pair.left_rail->tick(0);
  CHECK(pair.right_rail->poll(pair.link, pair.sink));
  CHECK_EQUAL(pair.sink.frames.size(), 4u);
  for (std::uint32_t i = 0; i < 4; ++i) CHECK_EQUAL(pair.sink.frames[i].header.sequence, i + 1);
  CHECK(!pair.left_rail->holds_back());
}

TEST("only a sleeper is rung, and once") {
  Pair pair;
  CHECK(pair.push(1, 10));
  pair.left_rail->notify();
  CHECK(!pair.right.rung());
  pair.right.doorbell->sleeping.store(1);
  pair.left_rail->notify();  // nothing was pushed since the last call
  CHECK(!pair.right.rung());
  CHECK(pair.push(2, 10));
  CHECK(pair.push(3, 10));
  pair.left_rail->notify();
  CHECK(pair.right.rung());
  CHECK_EQUAL(pair.right.doorbell->sleeping.load(), 0u);
  CHECK(pair.push(4, 10));
  pair.left_rail->notify();
  CHECK(!pair.right.rung());
}

TEST("the end of the control socket tells that the peer is gone") {
  Pair pair;
  CHECK(!pair.right_rail->peer_gone());
  pair.left_rail.reset();
  CHECK(pair.right_rail->peer_gone());
}

TEST("an entry that cannot be is a frame error, and nothing beyond the ring is read") {
  for (const std::uint32_t length : {std::uint32_t{8193}, 1u << 20, ~0u}) {
    Pair pair;
    CHECK(pair.push(1, 10));
    auto* ring = reinterpret_cast<Ring*>(pair.right.arena.at(pair.right.ring));
    wire::Header h;
    std::memcpy(&h, ring->data, sizeof h);
    h.length = length;
    std::memcpy(ring->data, &h, sizeof h);
    CHECK(!pair.right_rail->poll(pair.link, pair.sink));
    CHECK(pair.right_rail->failure().fault == Fault::kFrame);
    CHECK(pair.sink.frames.empty());
  }
  Pair pair;
  CHECK(pair.push(1, 10));
  auto* ring = reinterpret_cast<Ring*>(pair.right.arena.at(pair.right.ring));
  std::memset(ring->data, 0x77, 64);
  CHECK(!pair.right_rail->poll(pair.link, pair.sink));
  CHECK(pair.right_rail->failure().fault == Fault::kFrame);
}

// Return the reason why a rail with this doorbell and this offset of the peer's ring is refused.
std::string refused(int doorbell, std::uint64_t ring, End& own, End& peer) {
  try {
    const ShmRail rail(own.arena, std::make_unique<PeerArena>(peer.arena.fd(), 4u << 20),
                       ::dup(doorbell), ::dup(doorbell), own.ring, ring);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST("a ring outside the peer's arena, or not at a line, is refused") {
  End own;
  End peer;
  const std::string outside = "a peer's ring lies outside its arena";
  CHECK_EQUAL(refused(peer.bell, peer.ring, own, peer), "");
  CHECK_EQUAL(refused(peer.bell, (4u << 20) - 64, own, peer), outside);
  CHECK_EQUAL(refused(peer.bell, std::uint64_t{1} << 63, own, peer), outside);
  CHECK_EQUAL(refused(peer.bell, peer.ring + 8, own, peer), "a peer's ring begins within a line");
}

TEST("a doorbell that is no eventfd, or to which a write may block, is refused") {
  End own;
  End peer;
  const std::string wrong = "a peer's doorbell must be an eventfd that does not block";
  const auto [x, y] = socket_pair();
  const int blocking = ::eventfd(0, EFD_CLOEXEC);
  CHECK_EQUAL(refused(x, peer.ring, own, peer), wrong);
  CHECK_EQUAL(refused(blocking, peer.ring, own, peer), wrong);
  for (const int fd : {x, y, blocking}) ::close(fd);
}

}  // namespace
}  // namespace slackline::test
