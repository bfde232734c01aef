// Tests of memory that was lent to a peer by an operation that failed: the memory is not used again
// before the peer has ended the operation, whenever the peer was stopped.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{8} << 20;

constexpr std::size_t kSmallArenaBytes = std::size_t{2} << 20;  // filled as a whole in each scene

EngineOptions stoppable(std::size_t arena_bytes = kArenaBytes) {
  EngineOptions options = one_thread(arena_bytes);
  options.memory_segment_bytes = 16u << 10;
  return options;
}

// Make one step of progress in the engine. An engine without a thread of its own that makes no step
// behaves as a process that was stopped.
void step(Engine& engine, Request& request) { engine.wait(request, 0); }

void drive_to_end(Engine& engine, Request& request) {
  until(
      [&] {
        step(engine, request);
        return request.finished();
      },
      "the end of an operation");
}

slackline::Failure stopped() {
  return slackline::Failure{Fault::kTimeout, "the peer does not answer", -1, -1, -1, -1};
}

// Registered memory of an engine that is filled with one value.
struct Grabbed {
  std::byte* memory;
  std::size_t bytes;
};

// Allocate all memory that is free in the engine's arena and fill it with `mark`.
std::vector<Grabbed> grab_all(Engine& engine, std::byte mark) {
  std::vector<Grabbed> all;
  for (std::size_t bytes = kArenaBytes; bytes >= 4096; bytes /= 2) {
    while (std::byte* memory = engine.allocate(bytes)) {
      std::memset(memory, static_cast<int>(mark), bytes);
      all.push_back({memory, bytes});
    }
  }
  return all;
}

void check_untouched(const std::vector<Grabbed>& all, std::byte mark, const std::string& scene) {
  for (const Grabbed& g : all) {
    const bool whole =
        std::all_of(g.memory, g.memory + g.bytes, [&](std::byte b) { return b == mark; });
    if (!whole) fail("a peer wrote into memory that was allocated again: " + scene);
  }
}

void free_all(Engine& engine, const std::vector<Grabbed>& all) {
  for (const Grabbed& g : all) CHECK(engine.arena().free(g.memory));
}

// An operation of every rank of a group, on registered or ordinary memory.
class Scene {
 public:
  explicit Scene(unsigned seed)
      : random_(seed),
        size_(2 + static_cast<int>(below(2))),
        half_(below(4) == 0),
        ranks(size_, Kind::kShared, 1, stoppable(kSmallArenaBytes), half_ || below(2) == 0) {
    plan_ = below(5);
    count_ = 1 + below(60'000);
    for (int rank = 0; rank < size_; ++rank) {
      before.push_back(ranks.engine(rank).arena().used());
      registered_.push_back(below(3) > 0);
    }
    victim = static_cast<int>(below(static_cast<unsigned>(size_)));
    says_ = "seed " + std::to_string(seed);
  }

  std::size_t below(unsigned n) { return random_() % n; }
  const std::string& describe() const { return says_; }
  int size() const { return size_; }

  void post_all() {
    for (int rank = 0; rank < size_; ++rank) {
      buffers.emplace_back(count_ * sizeof(float));
      memory.push_back(nullptr);
      if (registered_[index(rank)])
        memory[index(rank)] = ranks.engine(rank).allocate(buffers.back().size());
      std::byte* at = memory[index(rank)] ? memory[index(rank)] : buffers.back().data();
      const std::vector<float> values = contributions(rank, count_);
      std::memcpy(at, values.data(), buffers.back().size());
      requests.push_back(ranks.engine(rank).post(ranks.group(rank), operation(rank, at), false));
    }
  }
  // Let ranks make steps in a random order.
  void go(std::size_t steps) {
    for (; steps > 0; --steps) {
      const auto rank = static_cast<int>(below(static_cast<unsigned>(size_)));
      step(ranks.engine(rank), *requests[index(rank)]);
    }
  }
  // Check the result of a rank whose operation succeeded.
  void check(int rank) {
    const auto at = index(rank);
    if (requests[at]->failure || half_ || plan_ == 4) return;
    const std::byte* data = memory[at] ? memory[at] : buffers[at].data();
    check_sum(reinterpret_cast<const float*>(data), count_, size_);
  }
  void free(int rank) {
    if (memory[index(rank)] == nullptr) return;
    CHECK(ranks.engine(rank).arena().free(memory[index(rank)]));
    memory[index(rank)] = nullptr;
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

 private:
  Operation operation(int rank, std::byte* at) {
    auto* values = reinterpret_cast<float*>(at);
    if (plan_ == 4) {
      if (rank >= 2) return receive_from(0, at, 0, 1);
      return rank == 0 ? send_to(1, at, count_ * sizeof(float)) : receive_from(0, at, count_ * 4);
    }
    Operation made = reduction(plans()[plan_].make(size_, rank), values, values, count_);
    if (half_) {
      made.dtype = wire::DType::kBfloat16;
      made.count = 2 * count_;
    }
    return made;
  }

  std::mt19937 random_;
  int size_;
  bool half_;
  std::size_t plan_ = 0;
  std::size_t count_ = 0;
  std::vector<bool> registered_;
  std::string says_;

 public:
  Ranks ranks;
  int victim = 0;
  std::vector<std::size_t> before;
  std::vector<Bytes> buffers;
  std::vector<std::byte*> memory;
  std::vector<std::shared_ptr<Request>> requests;
};

// Stop one rank at a random point of a random operation. The other ranks cancel the operation, free
// its memory and use the memory again; then the stopped rank continues.
void stop_a_rank(unsigned seed) {
  Scene scene(seed);
  scene.post_all();
  scene.go(scene.below(40));
  std::map<int, std::vector<Grabbed>> grabbed;
  for (int rank = 0; rank < scene.size(); ++rank) {
    if (rank == scene.victim) continue;
    Engine& engine = scene.ranks.engine(rank);
    const auto request = scene.requests[Scene::index(rank)];
    for (std::size_t more = scene.below(4); more > 0; --more) step(engine, *request);
    engine.cancel(*request, stopped());
    CHECK(request->finished());
    scene.check(rank);
    scene.free(rank);
    grabbed[rank] = grab_all(engine, std::byte{0x5A});
  }
  // The stopped rank goes on. An operation that hears of no failure waits for a rank in vain.
  Engine& late = scene.ranks.engine(scene.victim);
  const auto request = scene.requests[Scene::index(scene.victim)];
  for (int i = 0; i < 100 && !request->finished(); ++i) step(late, *request);
  late.cancel(*request, stopped());
  scene.check(scene.victim);  // an operation that succeeds late has used the right bytes
  scene.free(scene.victim);
  for (const auto& [rank, all] : grabbed) {
    check_untouched(all, std::byte{0x5A}, scene.describe());
    free_all(scene.ranks.engine(rank), all);
  }
  // Everything is given back once all ranks have heard of the failure.
  for (int round = 0; round < 4; ++round) {
    for (int rank = 0; rank < scene.size(); ++rank) {
      Engine& engine = scene.ranks.engine(rank);
      char none = 0;
      const auto idle = engine.post(scene.ranks.group(rank),
                                    receive_from((rank + 1) % scene.size(), &none, 0, 9), false);
      for (int i = 0; i < 8; ++i) step(engine, *idle);
      engine.cancel(*idle, stopped());
    }
  }
  for (int rank = 0; rank < scene.size(); ++rank) {
    Engine& engine = scene.ranks.engine(rank);
    const std::size_t slots =
        engine.counters()["slots"] *
        std::max(small_engine().memory_segment_bytes, small_engine().wire_segment_bytes);
    CHECK(engine.withheld().empty());
    CHECK_EQUAL(engine.arena().used() - slots, scene.before[Scene::index(rank)]);
  }
}

TEST("a rank that was stopped at any point writes only into memory of its own operation") {
  for (unsigned seed = 1; seed <= 30; ++seed) stop_a_rank(seed);
}

TEST("a peer that was stopped before it stored a result leaves memory alone that was freed") {
  Ranks ranks(2, Kind::kShared, 1, stoppable());
  constexpr std::size_t kCount = 200'000;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  Engine& early = ranks.engine(0);
  Engine& late = ranks.engine(1);
  auto* x = reinterpret_cast<float*>(early.allocate(kBytes));
  auto* y = reinterpret_cast<float*>(late.allocate(kBytes));
  std::fill_n(x, kCount, 1.0f);
  std::fill_n(y, kCount, 2.0f);
  const auto stopped_one = late.post(ranks.group(1), reduction(mesh(2, 1), y, y, kCount), false);
  step(late, *stopped_one);
  Operation operation = reduction(mesh(2, 0), x, x, kCount);
  operation.timeout_ns = kSecond / 50;
  const auto failed = early.post(ranks.group(0), operation, true);
  CHECK(failed->failure.fault == Fault::kTimeout);
  CHECK(early.arena().free(reinterpret_cast<std::byte*>(x)));
  CHECK(!early.arena().free(reinterpret_cast<std::byte*>(x)));
  const std::map<std::string, std::uint64_t> withheld = early.withheld();
  CHECK_EQUAL(withheld.at("rank 1"), Arena::rounded(kBytes));
  const std::vector<Grabbed> grabbed = grab_all(early, std::byte{7});
  drive_to_end(late, *stopped_one);
  check_untouched(grabbed, std::byte{7}, "all_reduce");
  CHECK(early.withheld().empty());
  CHECK(early.allocate(kBytes) == reinterpret_cast<std::byte*>(x));
}

TEST("an arena that is full of withheld memory says which peer withholds how much") {
  Ranks ranks(2, Kind::kShared, 1, stoppable());
  Engine& early = ranks.engine(0);
  std::byte* words = early.allocate(kArenaBytes / 2);
  const auto sent = early.post(ranks.group(0), send_to(1, words, kArenaBytes / 2), false);
  step(early, *sent);
  early.cancel(*sent, stopped());
  CHECK(early.arena().free(words));
  const std::vector<Grabbed> grabbed = grab_all(early, std::byte{1});
  const std::vector<std::byte> more(100'000);
  const auto refused = early.post(ranks.group(0), send_to(1, more.data(), more.size(), 3), true);
  CHECK(refused->failure.fault == Fault::kUsage);
  const std::string words_of_it = refused->failure.message;
  CHECK(words_of_it.find(", of which 4 MiB are freed but withheld, because rank 1 may still "
                         "write to them: it has not noticed yet that an operation has failed") !=
        std::string::npos);
  ranks.engine(1).close(0);  // as the end of the peer's process
  free_all(early, grabbed);
  until([&] { return early.allocate(kArenaBytes / 2 + 4096) != nullptr; }, "the memory");
}

TEST("thousands of operations that fail leave the arena as it was, once the peer answers") {
  Ranks ranks(2, Kind::kShared, 1, stoppable());
  Engine& early = ranks.engine(0);
  Engine& late = ranks.engine(1);
  const std::vector<std::byte> words(100'000);
  char none = 0;
  const auto idle = late.post(ranks.group(1), receive_from(0, &none, 0, 99), false);
  std::uint64_t most = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto sent = early.post(ranks.group(0), send_to(1, words.data(), words.size(), 5), false);
    step(early, *sent);
    early.cancel(*sent, stopped());
    step(late, *idle);
    if (i == 100) most = early.counters()["arena_bytes"];
  }
  CHECK_EQUAL(early.counters()["withheld_bytes"], 0u);
  CHECK(early.counters()["arena_bytes"] <= most);
}

TEST("what a rank sent before it left can still be read, and is withheld until then") {
  Ranks ranks(2, Kind::kShared, 1, stoppable());
  Engine& leaving = ranks.engine(0);
  Engine& reader = ranks.engine(1);
  constexpr std::size_t kBytes = 100'000;
  std::byte* words = leaving.allocate(kBytes);
  std::memset(words, 3, kBytes);
  const auto sent = leaving.post(ranks.group(0), send_to(1, words, kBytes), false);
  step(leaving, *sent);
  leaving.close_group(ranks.group(0), 0);
  CHECK(sent->failure.fault == Fault::kClosed);
  CHECK(leaving.arena().free(words));
  const std::vector<Grabbed> grabbed = grab_all(leaving, std::byte{9});
  CHECK_EQUAL(leaving.withheld().at("rank 1"), Arena::rounded(kBytes));
  std::vector<std::byte> got(kBytes);
  const auto received = reader.post(ranks.group(1), receive_from(0, got.data(), got.size()), false);
  drive_to_end(reader, *received);
  CHECK(!received->failure);
  CHECK(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{3}; }));
  ranks.open();  // a new group, in which the first rank reads the answers
  char none = 0;
  const auto idle = leaving.post(ranks.group(0), receive_from(1, &none, 0, 9), false);
  step(leaving, *idle);
  CHECK(leaving.withheld().empty());
}

}  // namespace
}  // namespace slackline::test
