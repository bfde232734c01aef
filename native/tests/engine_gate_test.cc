// Tests of gates: words of memory that the engine writes at the end of operations.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::size_t kCount = 1000;
constexpr std::uint32_t kOpen = 7;

std::uint32_t read(std::uint32_t& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

struct Reduction {
  std::vector<float> values = std::vector<float>(kCount, 1.0f);
  std::shared_ptr<Request> request;
};

std::unique_ptr<Reduction> post(Ranks& ranks, int rank) {
  auto posted = std::make_unique<Reduction>();
  float* data = posted->values.data();
  const Operation operation = reduction(mesh(2, rank), data, data, kCount, -1);
  posted->request = ranks.engine(rank).post(ranks.group(rank), operation, false);
  return posted;
}

TEST("a gate opens when the last of its operations has ended") {
  for (const Kind kind : {Kind::kStream, Kind::kShared, Kind::kDatagram}) {
    Ranks ranks(2, kind);
    Engine& engine = ranks.engine(0);
    std::uint32_t word = 0, first_word = 0;
    const auto first = post(ranks, 0), second = post(ranks, 0);
    CHECK(engine.open_at_end({first->request.get(), second->request.get()}, word, kOpen));
    CHECK(engine.open_at_end({first->request.get()}, first_word, kOpen));
    const auto other_first = post(ranks, 1);
    finish(ranks.engine(1), other_first->request);
    finish(engine, first->request);
    CHECK_EQUAL(read(first_word), kOpen);
    CHECK_EQUAL(read(word), 0u);
    const auto other_second = post(ranks, 1);
    finish(ranks.engine(1), other_second->request);
    finish(engine, second->request);
    CHECK_EQUAL(read(word), kOpen);
    CHECK_EQUAL(second->values.back(), 2.0f);
  }
}

TEST("a gate is open before the end of its operation can be seen") {
  Ranks ranks(2, Kind::kShared);
  on_every_rank(2, [&](int rank) {
    std::uint32_t word = 0;
    for (std::uint32_t round = 1; round <= 20'000; ++round) {
      const auto posted = post(ranks, rank);
      const bool opens = ranks.engine(rank).open_at_end({posted->request.get()}, word, round);
      while (!posted->request->finished()) std::this_thread::yield();
      // From now on the owner of the word may use it for another gate.
      if (opens) CHECK_EQUAL(read(word), round);
      finish(ranks.engine(rank), posted->request);
    }
  });
}

TEST("operations that have ended open no gate, and one that runs opens it alone") {
  Ranks ranks(2, Kind::kStream);
  Engine& engine = ranks.engine(0);
  std::uint32_t word = 0;
  const auto first = post(ranks, 0), second = post(ranks, 0);
  const auto other_first = post(ranks, 1);
  finish(ranks.engine(1), other_first->request);
  finish(engine, first->request);
  CHECK(!engine.open_at_end({first->request.get()}, word, kOpen));
  CHECK(engine.open_at_end({first->request.get(), second->request.get()}, word, kOpen));
  CHECK_EQUAL(read(word), 0u);
  const auto other_second = post(ranks, 1);
  finish(ranks.engine(1), other_second->request);
  finish(engine, second->request);
  CHECK_EQUAL(read(word), kOpen);
}

TEST("a gate stays closed when one of its operations fails") {
  Ranks ranks(2, Kind::kStream);
  Engine& engine = ranks.engine(0);
  std::uint32_t word = 0;
  const auto first = post(ranks, 0), second = post(ranks, 0);
  CHECK(engine.open_at_end({first->request.get(), second->request.get()}, word, kOpen));
  engine.cancel(*first->request, slackline::Failure{Fault::kTimeout, "stopped", 0, -1, -1, -1});
  CHECK(engine.wait(*first->request, -1));
  CHECK(first->request->failure);
  const auto other_first = post(ranks, 1), other_second = post(ranks, 1);
  CHECK(ranks.engine(1).wait(*other_first->request, -1));
  finish(ranks.engine(1), other_second->request);
  finish(engine, second->request);
  CHECK_EQUAL(read(word), 0u);
  CHECK(!engine.open_at_end({first->request.get()}, word, kOpen));
}

}  // namespace
}  // namespace slackline::test
