// Tests of the faults that a stream rail (a path to a peer over TCP) injects into its own frames,
// in simulated time.
#include <vector>

#include "../src/base/clock.h"
#include "../src/base/injector.h"
#include "../src/rail/stream.h"
#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::int64_t kMs = 1'000'000;

Injector::Decision first_decision(const FaultState& state) {
  Injector injector(state);
  return injector.decide(0, 1000);
}

TEST("the decisions of a seed are always the same, and another seed has others") {
  FaultState state;
  state.loss = state.duplicate = state.corrupt = state.reorder = 0.5;
  state.jitter_ns = kMs;
  const auto decisions = [&](std::uint64_t seed) {
    state.seed = seed;
    Injector injector(state);
    std::vector<std::int64_t> seen;
    for (int i = 0; i < 100; ++i) {
      const Injector::Decision f = injector.decide(i, 100);
      seen.push_back(f.release_ns * 8 + f.drop * 4 + f.corrupt * 2 + f.copies);
    }
    return seen;
  };
  CHECK(decisions(7) == decisions(7));
  CHECK(decisions(7) != decisions(8));
}

TEST("delay and rate say when a packet leaves, and none leaves before the one before it") {
  FaultState state;
  state.delay_ns = 5 * kMs;
  state.rate = 1'000'000;  // a kilobyte per millisecond
  Injector injector(state);
  CHECK_EQUAL(injector.decide(0, 1000).release_ns, 6 * kMs);
  CHECK_EQUAL(injector.decide(0, 1000).release_ns, 7 * kMs);
  CHECK_EQUAL(injector.decide(10 * kMs, 2000).release_ns, 17 * kMs);
  state = FaultState{};
  state.jitter_ns = 3 * kMs;
  Injector jittery(state);
  std::int64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t release = jittery.decide(i * 1000, 100).release_ns;
    CHECK(release >= last && release <= i * 1000 + 3 * kMs);
    last = release;
  }
}

TEST("shares are kept: one in a hundred is lost, one in ten comes twice") {
  FaultState state;
  state.loss = 0.01;
  state.duplicate = 0.1;
  Injector injector(state);
  int lost = 0;
  int twice = 0;
  for (int i = 0; i < 100'000; ++i) {
    const Injector::Decision decision = injector.decide(0, 100);
    lost += decision.drop;
    twice += decision.copies == 2;
  }
  // The limits are five standard deviations of a binomial distribution: 157 and 474.
  CHECK(lost > 1000 - 160 && lost < 1000 + 160);
  CHECK(twice > 10'000 - 480 && twice < 10'000 + 480);
  CHECK(!first_decision(FaultState{}).drop);
}

struct Faulty {
  explicit Faulty(const FaultState& state) : pair(socket_pair()), rail(pair.first, kJobCode, true) {
    rail.inject(state);
  }
  // Send frame `sequence`. arrived() returns the frames that the peer has received.
  void send(std::uint32_t sequence) {
    wire::Header h = header_of(wire::FrameKind::kData);
    h.sequence = sequence;
    const Bytes sealed = seal(h);
    std::memcpy(&h, sealed.data(), sizeof h);
    rail.enqueue(h, nullptr, 0);
  }
  std::vector<std::uint32_t> arrived() {
    std::vector<std::uint32_t> sequences;
    while (const std::optional<Frame> frame = hand.read(0))
      sequences.push_back(frame->header.sequence);
    return sequences;
  }
  std::pair<int, int> pair;
  StreamRail rail;
  Hand hand{pair.second};
};

using Sequences = std::vector<std::uint32_t>;

TEST("a delayed frame leaves when it is due, and says when that is") {
  FaultState state;
  state.delay_ns = 3600 * kSecond;
  Faulty faulty(state);
  faulty.send(1);
  faulty.rail.flush(now_ns());
  CHECK(faulty.arrived().empty());
  const std::int64_t due = faulty.rail.due_ns();
  CHECK(due > now_ns() + 3500 * kSecond && due != WireRail::kNever);
  CHECK(!faulty.rail.blocked());
  faulty.rail.tick(due);
  faulty.rail.flush(due);
  CHECK(faulty.arrived() == Sequences{1});
  CHECK_EQUAL(faulty.rail.due_ns(), WireRail::kNever);
}

TEST("a rail that is down holds everything until it is up again") {
  FaultState state;
  state.down = true;
  Faulty faulty(state);
  faulty.send(1);
  faulty.send(2);
  faulty.rail.flush(now_ns());
  CHECK(faulty.arrived().empty());
  CHECK_EQUAL(faulty.rail.due_ns(), WireRail::kNever);
  faulty.rail.inject(std::nullopt);
  faulty.rail.flush(now_ns());
  CHECK((faulty.arrived() == Sequences{1, 2}));
}

TEST("frames come twice, overtake and arrive damaged as they are told to") {
  FaultState twice;
  twice.duplicate = 1;
  Faulty doubled(twice);
  doubled.send(1);
  doubled.send(2);
  doubled.rail.flush(now_ns() + kSecond);
  CHECK((doubled.arrived() == Sequences{1, 1, 2, 2}));

  FaultState late;
  late.reorder = 1;
  Faulty shuffled(late);
  shuffled.send(1);
  shuffled.send(2);
  shuffled.rail.flush(now_ns() + kSecond);
  CHECK((shuffled.arrived() == Sequences{2, 1}));

  FaultState damage;
  damage.corrupt = 1;
  Faulty damaged(damage);
  damaged.send(1);
  damaged.rail.flush(now_ns() + kSecond);
  const std::optional<Frame> frame = damaged.hand.read(0);
  CHECK(frame && crc32c(0, &frame->header, 60) != frame->header.header_checksum);
}

}  // namespace
}  // namespace slackline::test
