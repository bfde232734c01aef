// Sums in a fixed binary tree over leaves that the ranks have in runs: the tree's nodes, their
// sums, and the ranks' parts of the plan, as slackline.plan.collective generates them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../src/engine/split.h"
#include "ranks.h"

namespace slackline::test {

// A node of the binary tree over `leaves` leaves: leaves [index << level, (index + 1) << level) as
// far as they exist.
struct Node {
  int level, index;
  int begin() const { return index << level; }
  int end(int leaves) const { return std::min((index + 1) << level, leaves); }
  bool operator==(const Node&) const = default;
};

// Return the fewest nodes whose leaves are [first, last).
inline std::vector<Node> cover(int leaves, int first, int last) {
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
inline std::vector<int> sums_of(int leaves, const std::vector<Node>& nodes) {
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
inline std::vector<float> sum_of(const std::vector<std::vector<float>>& leaves, const Node& node) {
  const int count = static_cast<int>(leaves.size());
  if (node.level == 0) return leaves[static_cast<std::size_t>(node.index)];
  const Node left{node.level - 1, 2 * node.index}, right{node.level - 1, 2 * node.index + 1};
  std::vector<float> sum = sum_of(leaves, left);
  if (right.begin() >= count) return sum;
  const std::vector<float> other = sum_of(leaves, right);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  return sum;
}

inline Node root_of(int leaves) {
  int level = 0;
  while ((1 << level) < leaves) ++level;
  return {level, 0};
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

  // Return the chunks of a rank. `at[node]` is the memory of each of its own nodes, with `count`
  // elements of `item` bytes; null for the nodes of others.
  std::vector<ChunkMemory> chunks(const std::vector<std::byte*>& at, std::byte* target,
                                  std::size_t count, std::size_t item) const {
    std::vector<ChunkMemory> all;
    for (int part = 0; part < size; ++part) {
      const Part cut = split(count, size, item, part);
      const auto from = [&](std::byte* base) {
        return base == nullptr ? nullptr : base + cut.offset * item;
      };
      for (std::size_t node = 0; node < nodes.size(); ++node) {
        std::byte* result = node == 0 ? target : nullptr;
        if (at[node] == nullptr && result == nullptr) continue;
        all.push_back({static_cast<std::uint32_t>(part + size * static_cast<int>(node)),
                       from(at[node]), from(result), cut.count});
      }
    }
    return all;
  }

  // Return the tree for plans in which each rank's one node is in the chunks of the plan.
  Tree tree() const { return {leaves, ranks, sums_of(leaves, nodes), 0, false}; }
  int owner(int node) const { return ranks[static_cast<std::size_t>(node)]; }

  int leaves, size;
  std::vector<Node> nodes;
  std::vector<int> ranks;
};

// Return the tree of the aggregator of so many workers, who have one node each.
inline Tree even_tree(int workers) {
  return Runs(workers, std::vector<int>(static_cast<std::size_t>(workers), 1)).tree();
}

}  // namespace slackline::test
