// Tests of sums of several buffers of each rank in one fixed binary tree: whatever the number of
// ranks and their runs of leaves, the bits are those of the tree on one rank.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "slackline/kernels.h"
#include "trees.h"

namespace slackline::test {
namespace {

std::vector<std::vector<float>> random_leaves(int leaves, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> draw(-1.0f, 1.0f);
  std::vector<std::vector<float>> values(static_cast<std::size_t>(leaves),
                                         std::vector<float>(count));
  for (auto& leaf : values) {
    for (float& value : leaf) value = draw(random) * static_cast<float>(1u << (random() % 20));
  }
  return values;
}

// Return the operation of a rank; `at[node]` is the memory of each of its own nodes.
Operation operation_of(const Runs& runs, int rank, const std::vector<float*>& at, float* target,
                       std::size_t count, wire::ReduceOp op = wire::ReduceOp::kSum) {
  const auto bytes = [](float* values) { return reinterpret_cast<std::byte*>(values); };
  std::vector<std::byte*> memory;
  for (float* values : at) memory.push_back(bytes(values));
  Operation operation;
  operation.program = runs.program(rank);
  operation.op = op;
  operation.total_bytes = count * sizeof(float);
  operation.timeout_ns = 60 * kSecond;
  operation.chunks = runs.chunks(memory, bytes(target), count, sizeof(float));
  return operation;
}

// Reduce on all ranks, and check that each has the bits of the tree's sum. `registered`: the memory
// of the nodes is in the arena; `in_place`: the result replaces a rank's first node.
void check_sum(Ranks& ranks, const Runs& runs, std::size_t count, bool registered, bool in_place,
               wire::ReduceOp op = wire::ReduceOp::kSum) {
  const auto leaves = random_leaves(runs.leaves, count, static_cast<std::uint32_t>(count));
  std::vector<float> expected = sum_of(leaves, root_of(runs.leaves));
  if (op == wire::ReduceOp::kAvg) {
    for (float& value : expected) value /= static_cast<float>(runs.leaves);
  }
  on_every_rank(runs.size, [&](int rank) {
    Engine& engine = ranks.engine(rank);
    std::vector<std::vector<float>> memory;
    std::vector<std::byte*> blocks;
    const auto take = [&](const std::vector<float>& values) {
      if (!registered) return memory.emplace_back(values).data();
      blocks.push_back(engine.allocate(std::max<std::size_t>(4, count * sizeof(float))));
      CHECK(blocks.back() != nullptr);
      float* at = reinterpret_cast<float*>(blocks.back());
      std::ranges::copy(values, at);
      return at;
    };
    std::vector<float*> at(runs.nodes.size(), nullptr);
    float* target = nullptr;
    for (std::size_t node = 0; node < runs.nodes.size(); ++node) {
      if (runs.ranks[node] != rank) continue;
      at[node] = take(sum_of(leaves, runs.nodes[node]));
      if (target == nullptr && in_place) target = at[node];
    }
    if (target == nullptr) target = take(std::vector<float>(count, 7.0f));
    finish(engine,
           engine.post(ranks.group(rank), operation_of(runs, rank, at, target, count, op), true));
    for (std::size_t i = 0; i < count; ++i) {
      if (target[i] != expected[i])
        fail("element " + std::to_string(i) + " of " + std::to_string(count) + " on rank " +
             std::to_string(rank) + " is " + std::to_string(target[i]) + ", not " +
             std::to_string(expected[i]));
    }
    for (std::byte* block : blocks) engine.arena().free(block);
  });
}

TEST("a tree of any number of leaves is covered by the nodes of any runs") {
  for (int leaves = 1; leaves <= 33; ++leaves) {
    for (int first = 0; first < leaves; ++first) {
      for (int last = first + 1; last <= leaves; ++last) {
        std::vector<Node> nodes = cover(leaves, 0, first);
        for (const auto& [begin, end] : {std::pair{first, last}, std::pair{last, leaves}})
          std::ranges::copy(cover(leaves, begin, end), std::back_inserter(nodes));
        CHECK_EQUAL(sums_of(leaves, nodes).size(), nodes.size());
      }
    }
  }
}

TEST("a sum in a tree has the same bits on one to four ranks, over every kind of rails") {
  std::mt19937 random(48);
  for (const Kind kind : {Kind::kStream, Kind::kDatagram, Kind::kShared}) {
    for (int size = 1; size <= 4; ++size) {
      Ranks ranks(size, kind);
      for (int round = 0; round < 6; ++round) {
        const int leaves = size + static_cast<int>(random() % 10);
        std::vector<int> runs(static_cast<std::size_t>(size), 1);
        for (int rest = leaves - size; rest > 0; --rest)
          ++runs[random() % static_cast<std::size_t>(size)];
        const std::size_t count = std::vector<std::size_t>{
            0, 1, 7, 5'000, 60'001, 300'000}[static_cast<std::size_t>(round)];
        check_sum(ranks, Runs(leaves, runs), count, random() % 2 == 0, random() % 2 == 0);
      }
    }
  }
}

TEST("many nodes of one rank pass the window of its peer") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    for (const bool registered : {false, true}) {
      EngineOptions options = small_engine();
      options.wire_segment_bytes = options.memory_segment_bytes = 16u << 10;
      Ranks ranks(3, kind, 1, options);
      const Runs runs(64, {1, 62, 1});
      CHECK_EQUAL(runs.nodes.size(), 12u);  // ten of rank 1, more than its slots at a peer
      check_sum(ranks, runs, 60'000, registered, false);
    }
  }
}

TEST("an average in a tree divides once, by the number of leaves") {
  Ranks ranks(3, Kind::kStream);
  check_sum(ranks, Runs(7, {1, 5, 1}), 5'000, true, true, wire::ReduceOp::kAvg);
}

TEST("ranks with different runs learn of the mismatch") {
  Ranks ranks(2, Kind::kStream);
  const Runs one(8, {4, 4}), other(8, {5, 3});
  std::vector<float> values(1000, 1.0f), more(1000, 1.0f), result(2000);
  on_every_rank(2, [&](int rank) {
    const Runs& runs = rank == 0 ? one : other;
    std::vector<float*> at(runs.nodes.size(), nullptr);
    for (std::size_t node = 0; node < runs.nodes.size(); ++node) {
      if (runs.ranks[node] == rank) at[node] = rank == 0 ? values.data() : more.data();
    }
    Engine& engine = ranks.engine(rank);
    const auto request = engine.post(
        ranks.group(rank), operation_of(runs, rank, at, result.data() + 1000 * rank, 1000), true);
    CHECK(request->failure.fault == Fault::kMismatch);
  });
}

TEST("a tree that cannot be computed is refused") {
  const auto refuses = [](const Tree& tree, int chunks, bool splits = false) {
    try {
      Program program(wire::Collective::kAllReduce, std::uint8_t{15}, 2, 0, chunks, splits, true,
                      false);
      program.reduce_in(tree);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  const Tree good{2, {0, 1}, {0, 1}};
  CHECK(!refuses(good, 4));
  CHECK(refuses(good, 2) && refuses(good, 4, true));
  CHECK(refuses({2, {1, 0}, {0, 1}}, 4) && refuses({2, {0, 2}, {0, 1}}, 4));
  CHECK(refuses({2, {-1, 0}, {0, 1}}, 4) && refuses({2, {0, 1}, {0, 0}}, 4));
  CHECK(refuses({2, {0, 1}, {1, 0}}, 4) && refuses({2, {0, 1}, {0, 2}}, 4));
  CHECK(refuses({1, {0, 1}, {0, 1}}, 4) && refuses({2, {0, 1}, {0}}, 4) && refuses({0, {}, {}}, 0));
  std::vector<int> deep(17, 0), owners(17, 0);
  deep.back() = 16;
  CHECK(refuses({17, owners, deep}, 34));
}

TEST("the kernel of the tree adds in the tree's order, in every type, and fills each target") {
  const std::vector<std::vector<float>> leaves = random_leaves(5, 3000, 5);
  const std::vector<float> expected = sum_of(leaves, root_of(5));
  std::vector<const void*> sources;
  std::vector<std::vector<float>> inputs = leaves;
  for (const auto& input : inputs) sources.push_back(input.data());
  const std::vector<int> sums{0, 1, 0, 2, 1};
  std::vector<float> apart(3000);
  void* const targets[] = {apart.data(), inputs[1].data()};
  kernels::reduce_tree(wire::DType::kFloat32, wire::ReduceOp::kSum, sources.data(), sums.data(), 5,
                       targets, 2, 3000, 1);
  CHECK(apart == expected && inputs[1] == expected);
}

}  // namespace
}  // namespace slackline::test
