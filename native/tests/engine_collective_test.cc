// Tests of collectives between engines in one process, over sockets, shared memory and both.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "../src/engine/split.h"
#include "frames.h"

namespace slackline::test {
namespace {

// Return options with 64 KiB segments, which divide a chunk into many segments even in short tests.
constexpr std::size_t kSizes[] = {0, 1, 15, 17, 1000, 2049, 20'000, 100'003, 400'000};

void check_all_sizes(Ranks& ranks, const Plan& plan, bool in_place, bool blocking) {
  on_every_rank(ranks.size(), [&](int rank) {
    const auto program = plan.make(ranks.size(), rank);
    for (const std::size_t count : kSizes) {
      const std::vector<float> source = contributions(rank, count);
      std::vector<float> target = in_place ? source : std::vector<float>(count, -1);
      const Operation operation =
          reduction(program, in_place ? target.data() : source.data(), target.data(), count);
      finish(ranks.engine(rank), ranks.engine(rank).post(ranks.group(rank), operation, blocking));
      check_sum(target.data(), count, ranks.size());
      if (!in_place) CHECK(source == contributions(rank, count));
    }
  });
}

TEST("every plan reduces every size over sockets") {
  for (const int size : {2, 3, 4}) {
    Ranks ranks(size, Kind::kStream, 1, short_segments());
    for (const Plan& plan : plans()) check_all_sizes(ranks, plan, size == 3, size != 4);
  }
}

TEST("every plan reduces every size over datagrams") {
  for (const int size : {2, 3, 4}) {
    Ranks ranks(size, Kind::kDatagram, 1, short_segments());
    for (const Plan& plan : plans()) check_all_sizes(ranks, plan, size == 3, size != 4);
  }
}

TEST("every plan reduces every size through shared memory") {
  for (const int size : {2, 3, 4}) {
    Ranks ranks(size, Kind::kShared, 1, short_segments());
    for (const Plan& plan : plans()) check_all_sizes(ranks, plan, size == 3, size != 4);
  }
}

TEST("ranks on two hosts reduce over both kinds of rails") {
  const auto kind = [](int a, int b) { return a / 2 == b / 2 ? Kind::kShared : Kind::kStream; };
  Ranks ranks(4, kind, 2, short_segments());
  for (const Plan& plan : plans()) {
    check_all_sizes(ranks, plan, false, true);
    check_all_sizes(ranks, plan, true, false);
  }
}

TEST("registered memory is read in place, and nothing is staged") {
  Ranks ranks(3, Kind::kShared);
  constexpr std::size_t kCount = 300'000;
  for (const Plan& plan : {plans()[1], plans()[2]}) {
    on_every_rank(3, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      auto* values = reinterpret_cast<float*>(engine.arena().allocate(kCount * sizeof(float)));
      for (std::size_t i = 0; i < kCount; ++i) values[i] = contribution(rank, i);
      const Operation operation = reduction(plan.make(3, rank), values, values, kCount);
      finish(engine, engine.post(ranks.group(rank), operation, true));
      check_sum(values, kCount, 3);
      CHECK(engine.arena().free(reinterpret_cast<std::byte*>(values)));
    });
  }
  CHECK_EQUAL(ranks.counter("shm_staged_bytes"), 0u);
  CHECK(ranks.counter("shm_reference_bytes") > 0);
}

TEST("rank order gives the bits of a sum in rank order, whatever rails it ran over") {
  constexpr std::size_t kCount = 50'000;
  constexpr int kRanks = 3;
  std::vector<std::vector<float>> sources;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::normal_distribution<float> normal(0, 1000);
    std::vector<float> values(kCount);
    for (float& v : values) v = normal(random);
    sources.push_back(std::move(values));
  }
  std::vector<float> expected = sources[0];
  for (int rank = 1; rank < kRanks; ++rank) {
    for (std::size_t i = 0; i < kCount; ++i)
      expected[i] += sources[static_cast<std::size_t>(rank)][i];
  }
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(kRanks, kind, 1, short_segments(), true);
    for (const Plan& plan : plans()) {
      if (!plan.rank_ordered) continue;
      on_every_rank(kRanks, [&](int rank) {
        std::vector<float> target(kCount);
        Operation operation =
            reduction(plan.make(kRanks, rank), sources[static_cast<std::size_t>(rank)].data(),
                      target.data(), kCount);
        finish(ranks.engine(rank), ranks.engine(rank).post(ranks.group(rank), operation, true));
        CHECK(std::memcmp(target.data(), expected.data(), kCount * sizeof(float)) == 0);
      });
    }
  }
}

TEST("half precision travels as float32 partial sums under rank order") {
  constexpr std::size_t kCount = 70'000;
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(3, kind, 1, short_segments(), true);
    on_every_rank(3, [&](int rank) {
      // bfloat16 has 8 significant bits: 256 + 1 + 1 is 258 in float32, but 256 if each partial sum
      // is rounded.
      const std::uint16_t mine = rank == 0 ? 0x4380 : 0x3F80;
      std::vector<std::uint16_t> values(kCount, mine);
      Operation operation = reduction(reduce_broadcast(3, rank), nullptr, nullptr, kCount);
      operation.dtype = wire::DType::kBfloat16;
      operation.source = operation.target = reinterpret_cast<std::byte*>(values.data());
      operation.total_bytes = kCount * 2;
      finish(ranks.engine(rank), ranks.engine(rank).post(ranks.group(rank), operation, true));
      CHECK(std::ranges::all_of(values, [](std::uint16_t v) { return v == 0x4381; }));
    });
  }
}

TEST("threads of every rank post tagged reductions in orders of their own") {
  constexpr int kRanks = 3;
  constexpr int kThreads = 3;
  constexpr int kTags = 8;
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(kRanks, kind, 1, short_segments());
    on_every_rank(kRanks * kThreads, [&](int worker) {
      const int rank = worker / kThreads;
      Engine& engine = ranks.engine(rank);
      std::mt19937 random(static_cast<unsigned>(worker));
      std::vector<int> tags;
      for (int t = 0; t < kTags; ++t) tags.push_back(worker % kThreads * kTags + t);
      std::vector<std::vector<float>> values(kTags);
      const auto size_of = [](int tag) { return static_cast<std::size_t>(tag * tag) * 137 + 1; };
      for (int round = 0; round < 3; ++round) {
        std::ranges::shuffle(tags, random);
        std::vector<std::shared_ptr<Request>> requests;
        for (int t = 0; t < kTags; ++t) {
          const int tag = tags[static_cast<std::size_t>(t)];
          auto& buffer = values[static_cast<std::size_t>(t)];
          buffer = contributions(rank, size_of(tag));
          Operation operation =
              reduction(plans()[static_cast<std::size_t>(tag) % 4].make(kRanks, rank),
                        buffer.data(), buffer.data(), buffer.size(), tag);
          operation.priority = static_cast<int>(random() % 3);
          requests.push_back(engine.post(ranks.group(rank), operation, false));
        }
        for (const auto& request : requests) finish(engine, request);
        for (const auto& buffer : values) check_sum(buffer.data(), buffer.size(), kRanks);
      }
    });
  }
}

TEST("watched operations come out of next_completion, each once") {
  Ranks ranks(2, Kind::kShared);
  constexpr int kOperations = 40;
  on_every_rank(2, [&](int rank) {
    Engine& engine = ranks.engine(rank);
    std::vector<float> values(kOperations * 1000, 1.0f);
    std::vector<std::shared_ptr<Request>> watched;
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; i < kOperations; ++i) {
      float* part = values.data() + i * 1000;
      requests.push_back(
          engine.post(ranks.group(rank), reduction(direct(2, rank), part, part, 1000), false));
      if (!engine.watch(*requests.back())) watched.push_back(requests.back());
    }
    for (std::size_t left = watched.size(); left > 0; --left) {
      const std::shared_ptr<Request> request = engine.next_completion();
      CHECK(request != nullptr && request->finished());
      CHECK_EQUAL(std::erase(watched, request), 1u);
    }
    for (const auto& request : requests) finish(engine, request);
    CHECK(std::ranges::all_of(values, [](float v) { return v == 2.0f; }));
  });
}

TEST("a queue gives each watched operation once, however it ends") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind);
    constexpr int kOperations = 40;
    on_every_rank(2, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      const auto queue = std::make_shared<CompletionQueue>();
      std::vector<float> values(kOperations * 1000, 1.0f);
      std::vector<std::shared_ptr<Request>> watched;
      for (int i = 0; i < kOperations; ++i) {
        float* part = values.data() + i * 1000;
        watched.push_back(
            engine.post(ranks.group(rank), reduction(direct(2, rank), part, part, 1000), false));
        engine.watch(*watched.back(), queue);
      }
      while (!watched.empty()) {
        const auto ended = engine.next(*queue, 20 * kSecond);
        CHECK(!ended.empty());
        for (const auto& request : ended) {
          CHECK(request->finished() && !request->failure);
          CHECK_EQUAL(std::erase(watched, request), 1u);
        }
      }
      CHECK(std::ranges::all_of(values, [](float v) { return v == 2.0f; }));
      CHECK(engine.next(*queue, 0).empty());
      CHECK(engine.next(*queue, 1'000'000).empty());
    });
  }
}

TEST("a thread that waits on a queue learns that its operations failed") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind);
    std::vector<float> values(1000);
    const auto queue = std::make_shared<CompletionQueue>();
    const auto request = ranks.engine(0).post(
        ranks.group(0), reduction(direct(2, 0), values.data(), values.data(), 1000), false);
    ranks.engine(0).watch(*request, queue);
    on_every_rank(2, [&](int rank) {
      if (rank == 1) {
        ranks.engine(1).abort_group(ranks.group(1), "no more");
        return;
      }
      const auto ended = ranks.engine(0).next(*queue, 20 * kSecond);
      CHECK_EQUAL(ended.size(), 1u);
      CHECK(ended.front() == request);
      CHECK(request->failure.fault == Fault::kPeer);
    });
  }
}

TEST("ranks that post different sizes both learn of it") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind);
    on_every_rank(2, [&](int rank) {
      std::vector<float> values(rank == 0 ? 1000 : 2000);
      const auto request = ranks.engine(rank).post(
          ranks.group(rank),
          reduction(direct(2, rank), values.data(), values.data(), values.size()), true);
      CHECK(request->failure.fault == Fault::kMismatch);
      CHECK(request->failure.message.find("4000 bytes") != std::string::npos);
      CHECK(request->failure.message.find("8000 bytes") != std::string::npos);
    });
  }
}

TEST("parts begin at lines of 64 bytes, differ by one line at most and cover everything") {
  for (const std::size_t item : {1, 2, 4, 8}) {
    for (const std::uint64_t count :
         {0ull, 1ull, 7ull, 64ull, 65ull, 1000ull, 123'457ull, 5'000'000'000ull}) {
      for (const int parts : {1, 2, 3, 7, 64}) {
        std::uint64_t next = 0;
        std::uint64_t longest = 0;
        std::uint64_t shortest = ~0ull;
        for (int i = 0; i < parts; ++i) {
          const Part part = split(count, parts, item, i);
          CHECK(part.count == 0 || part.offset == next);
          CHECK_EQUAL(part.count == 0 ? 0 : part.offset * item % 64, 0u);
          const std::uint64_t lines = (part.count * item + 63) / 64;
          CHECK(lines <= shortest);  // a part is never longer than an earlier one
          longest = std::max(longest, lines);
          shortest = std::min(shortest, lines);
          next += part.count;
        }
        CHECK_EQUAL(next, count);
        CHECK(longest - shortest <= 1);
      }
    }
  }
}

}  // namespace
}  // namespace slackline::test
