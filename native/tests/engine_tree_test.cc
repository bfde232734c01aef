// Tests of sums of several buffers of each rank in one fixed binary tree: whatever the number of
// ranks and their runs of leaves, the bits are those of the tree on one rank.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../src/engine/split.h"
#include "ranks.h"
#include "slackline/kernels.h"

namespace slackline::test {
namespace {

// A node of the binary tree over `leaves` leaves: leaves [index << level, (index + 1) << level) as
// far as they exist.
struct Node {
  int level, index;
  int begin() const { return index << level; }
  int end(int leaves) const { return std::min((index + 1) << level, leaves); }
  bool operator==(const Node&) const = default;
};

// Return the fewest nodes whose leaves are [first, last).
std::vector<Node> cover(int leaves, int first, int last) {
  std::vector<Node> nodes;
  while (first < last) {
    int level = 0;
    while ((first & ((2 << level) - 1)) == 0 && (1 << level) < leaves &&
           std::min(first + (2 << level), leaves) <= last)
      ++level;
    nodes.push_back({level, first >> level});
    first = nodes.back().end(leaves);
  }
  return nodes;
}

// Return the number of sums after each node.
std::vector<int> sums_of(int leaves, const std::vector<Node>& nodes) {
  std::vector<int> sums;
  std::vector<Node> waiting;
  for (Node node : nodes) {
    sums.push_back(0);
    while ((1 << node.level) < leaves) {
      const Node left{node.level, node.index - 1};
      if (node.index % 2 == 1) {
        if (waiting.empty() || waiting.back() != left) break;
        waiting.pop_back();
        ++sums.back();
      } else if (((node.index + 1) << node.level) < leaves) {
        break;  // its neighbour comes later
      }
      node = {node.level + 1, node.index / 2};
    }
    waiting.push_back(node);
  }
  CHECK_EQUAL(waiting.size(), 1u);
  return sums;
}

// Return the sum of the leaves below a node.
std::vector<float> sum_of(const std::vector<std::vector<float>>& leaves, const Node& node) {
  const int count = static_cast<int>(leaves.size());
  if (node.level == 0) return leaves[static_cast<std::size_t>(node.index)];
  const Node left{node.level - 1, 2 * node.index}, right{node.level - 1, 2 * node.index + 1};
  std::vector<float> sum = sum_of(leaves, left);
  if (right.begin() >= count) return sum;
  const std::vector<float> other = sum_of(leaves, right);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  return sum;
}

Node root_of(int leaves) {
  int level = 0;
  while ((1 << level) < leaves) ++level;
  return {level, 0};
}

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

// A tree whose leaves are given to ranks in runs.
struct Runs {
  Runs(int leaves, const std::vector<int>& of_ranks) : leaves(leaves) {
    int first = 0;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      for (const Node& node : cover(leaves, first, first + of_ranks[rank])) {
        nodes.push_back(node);
        ranks.push_back(static_cast<int>(rank));
      }
      first += of_ranks[rank];
    }
    CHECK_EQUAL(first, leaves);
    size = static_cast<int>(of_ranks.size());
  }

  std::shared_ptr<Program> program(int rank) const {
    const int count = static_cast<int>(nodes.size());
    auto p = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{15}, size, rank,
                                       size * count, false, true, false);
    p->reduce_in(Tree{leaves, ranks, sums_of(leaves, nodes)});
    for (int k = 1; k < size; ++k) {
      const int part = (rank + k) % size;
      for (int node = 0; node < count; ++node) {
        if (owner(node) == rank) p->append(Opcode::kSend, part, part + size * node, false);
      }
      p->append(Opcode::kCopy, part, part, false);
    }
    for (int node = 0; node < count; ++node) {
      if (owner(node) != rank) p->append(Opcode::kBuffer, owner(node), rank + size * node, false);
    }
    p->append(Opcode::kReduceAll, rank, rank, false);
    for (int k = 1; k < size; ++k) p->append(Opcode::kSend, (rank + k) % size, rank, false);
    return p;
  }

  // Return the operation of a rank; `at[node]` is the memory of each of its own nodes.
  Operation operation(int rank, const std::vector<float*>& at, float* target, std::size_t count,
                      wire::ReduceOp op = wire::ReduceOp::kSum) const {
    Operation operation;
    operation.program = program(rank);
    operation.op = op;
    operation.total_bytes = count * sizeof(float);
    operation.timeout_ns = 60 * kSecond;
    const auto bytes = [](float* base, std::size_t offset) {
      return base == nullptr ? nullptr : reinterpret_cast<std::byte*>(base + offset);
    };
    for (int part = 0; part < size; ++part) {
      const Part cut = split(count, size, sizeof(float), part);
      for (std::size_t node = 0; node < nodes.size(); ++node) {
        float* source = at[node];
        float* result = node == 0 ? target : nullptr;
        if (source == nullptr && result == nullptr) continue;
        operation.chunks.push_back(
            {static_cast<std::uint32_t>(part + size * static_cast<int>(node)),
             bytes(source, cut.offset), bytes(result, cut.offset), cut.count});
      }
    }
    return operation;
  }

  int owner(int node) const { return ranks[static_cast<std::size_t>(node)]; }

  int leaves, size;
  std::vector<Node> nodes;
  std::vector<int> ranks;
};

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
           engine.post(ranks.group(rank), runs.operation(rank, at, target, count, op), true));
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
        ranks.group(rank), runs.operation(rank, at, result.data() + 1000 * rank, 1000), true);
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
