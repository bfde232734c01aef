// The part of a plan that one rank carries out, compiled for the engine: for each chunk, the list
// of steps that every segment of the chunk passes through.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slackline/crc32c.h"
#include "slackline/kernels.h"
#include "slackline/wire.h"

namespace slackline {

// The opcodes of steps. BUFFER buffers a payload of a peer until a REDUCE_ALL, which reduces all
// buffered payloads and the rank's own data in rank order.
enum class Opcode : std::uint8_t { kSend = 0, kAdd = 1, kCopy = 2, kBuffer = 3, kReduceAll = 4 };

// An instruction that is carried out for each segment of a chunk: send the segment to a peer, or
// use a payload received from the peer.
struct Step {
  Opcode opcode;
  bool last;           // an ADD that completes the chunk
  std::uint16_t peer;  // rank in the group; the own rank for REDUCE_ALL
  std::uint16_t chunk;
  // For a SEND: the state of the chunk on this rank when it reaches the step.
  bool complete;  // the chunk has its final value (else the rank's own data or a partial sum)
  bool own_data;  // no payload was received into the chunk before: read the source
  // A SEND that precedes a REDUCE_ALL of the same chunk. The reduction may overwrite the data
  // before the peer has read it, so the frame carries a copy.
  bool copied = false;
};

// The list of steps for one chunk of a plan on this rank.
struct StepList {
  std::uint16_t chunk;  // the chunk's number in the plan
  std::vector<Step> steps;
  bool writes = false;      // at least one step stores into the chunk
  std::uint16_t start = 0;  // in a chain around a ring, the rank whose data starts it
};

// A sum of several buffers of each rank in a fixed binary tree. A node is a buffer with the sum of
// a run of leaves; a rank has a few nodes, and lower ranks have lower leaves. The buffers are cut
// into as many parts as there are ranks; rank p reduces part p of all nodes. The chunks of the plan
// are the parts of the nodes: chunk p + ranks * n is part p of node n, and the result of part p has
// the number p.
//
// Where every rank has one node, these can also be the chunks of any other plan: a REDUCE_ALL then
// combines the ranks' data of its chunk in the tree's order.
struct Tree {
  int leaves = 0;  // of the whole tree; an average divides by them
  // For each node: the rank that has it, and the number of sums of two neighbours that follow the
  // node (see kernels::reduce_tree).
  std::vector<int> ranks;
  std::vector<int> sums;
  // A checksum, by which ranks with another tree are found; not 0. reduce_in() sets it.
  std::uint16_t digest = 0;
  bool apart = true;  // the parts of each node are chunks of their own
};

// The compiled program of one rank. A Program is immutable after construction and shared by all
// operations that run it.
struct Program {
  Program(wire::Collective collective, std::uint8_t plan, int ranks, int rank, int chunks,
          bool splits, bool forwards, bool adds)
      : collective(collective),
        plan(plan),
        ranks(ranks),
        rank(rank),
        splits(splits),
        forwards(forwards),
        adds(adds),
        local_(static_cast<std::size_t>(chunks), -1) {
    if (chunks < 1 || chunks > 65536)
      throw std::invalid_argument("chunks must be 1 to 65536, not " + std::to_string(chunks));
  }

  void append(Opcode opcode, int peer, int chunk, bool last) {
    if (chunk < 0 || chunk >= static_cast<int>(local_.size()))
      throw std::invalid_argument("chunk " + std::to_string(chunk) + " is not in the plan");
    if (opcode != Opcode::kReduceAll && (peer < 0 || peer >= ranks || peer == rank))
      throw std::invalid_argument("peer " + std::to_string(peer) + " is not another rank");
    // All nodes' payloads of a part wait in the list that reduces them.
    StepList& step_list = at(apart() && opcode == Opcode::kBuffer ? chunk % ranks : chunk);
    Step step{opcode,
              last,
              static_cast<std::uint16_t>(opcode == Opcode::kReduceAll ? rank : peer),
              static_cast<std::uint16_t>(chunk),
              false,
              !step_list.writes};
    const bool reduces = collective == wire::Collective::kAllReduce ||
                         collective == wire::Collective::kReduceScatter ||
                         collective == wire::Collective::kReduce ||
                         collective == wire::Collective::kBarrier;
    if (opcode == Opcode::kSend) {
      step.complete = !reduces;
      for (const Step& earlier : step_list.steps) {
        if (earlier.opcode == Opcode::kCopy || earlier.opcode == Opcode::kReduceAll ||
            (earlier.opcode == Opcode::kAdd && earlier.last))
          step.complete = true;
      }
    } else {
      step_list.writes = step_list.writes || opcode != Opcode::kBuffer;
      for (Step& earlier : step_list.steps)
        earlier.copied =
            earlier.copied || (opcode == Opcode::kReduceAll && earlier.opcode == Opcode::kSend);
    }
    step_list.steps.push_back(step);
  }

  // Return the index of the chunk in `step_lists`, or -1 when this rank has no part in the chunk.
  int local(int chunk) const {
    return chunk < static_cast<int>(local_.size()) ? local_[static_cast<std::size_t>(chunk)] : -1;
  }
  // Return the index in `step_lists` of the list in which a payload of this chunk is used, or -1.
  int local_for(int chunk) const {
    const int own = local(chunk);
    return own < 0 && apart() ? local(chunk % ranks) : own;
  }
  int chunks() const { return static_cast<int>(local_.size()); }

  // Reduce in a tree. Must be called before the first append(). Throws std::invalid_argument.
  void reduce_in(Tree tree) {
    check(tree);
    tree_ = std::move(tree);
    std::uint32_t crc = crc32c(0, &tree_->leaves, sizeof tree_->leaves);
    for (const std::vector<int>* each : {&tree_->ranks, &tree_->sums})
      crc = crc32c(crc, each->data(), each->size() * sizeof(int));
    tree_->digest = std::max<std::uint16_t>(1, static_cast<std::uint16_t>(crc ^ crc >> 16));
    if (!apart()) return;
    // The own nodes' parts that this rank reduces have memory, and no steps of their own.
    for (std::size_t node = 0; node < tree_->ranks.size(); ++node) {
      if (tree_->ranks[node] == rank) at(rank + ranks * static_cast<int>(node));
    }
  }
  const std::optional<Tree>& tree() const { return tree_; }
  // Return whether the nodes of a tree have chunks of their own.
  bool apart() const { return tree_ && tree_->apart; }
  // Return the number of buffers that this rank contributes.
  int own_nodes() const {
    return apart() ? static_cast<int>(std::ranges::count(tree_->ranks, rank)) : 1;
  }

  StepList& at(int chunk) {
    int& index = local_[static_cast<std::size_t>(chunk)];
    if (index < 0) {
      index = static_cast<int>(step_lists.size());
      step_lists.push_back(StepList{static_cast<std::uint16_t>(chunk), {}, false, 0});
    }
    return step_lists[static_cast<std::size_t>(index)];
  }

  const wire::Collective collective;
  const std::uint8_t plan;
  const int ranks;
  const int rank;
  const bool splits;  // the chunks are parts of one buffer; else each has its own address
  // Properties of the whole plan, not only of this rank's part: all ranks must cut and widen a
  // chunk in the same way.
  const bool forwards;
  const bool adds;  // some rank produces a partial sum that is sent
  // At some rank a device adds. For an average, each rank then divides the complete sum itself.
  bool offloads = false;
  // A chunk that is pipelined is cut into about this many segments, unless the segments would
  // become tiny.
  std::size_t pieces = 8;
  // In bytes; the engine has its own limit as well.
  std::size_t longest_segment = ~std::size_t{0};
  // At a worker of an aggregator: the program that repeats the operation if the aggregator is lost;
  // null for the one that the group has for all.
  std::shared_ptr<const Program> repeated_by;
  std::vector<StepList> step_lists;

 private:
  void check(const Tree& tree) const {
    const std::size_t nodes = tree.ranks.size();
    const std::size_t chunks = tree.apart ? nodes * static_cast<std::size_t>(ranks) : local_.size();
    if (nodes != tree.sums.size() || nodes == 0 || chunks != local_.size())
      throw std::invalid_argument("a tree of " + std::to_string(nodes) + " nodes on " +
                                  std::to_string(ranks) + " ranks has not " +
                                  std::to_string(local_.size()) + " chunks");
    if (splits == tree.apart)
      throw std::invalid_argument(
          "the chunks of a tree are parts of one buffer only if no node has "
          "chunks of its own");
    if (!tree.apart && std::ranges::adjacent_find(tree.ranks) != tree.ranks.end())
      throw std::invalid_argument("a rank with several nodes needs chunks for each");
    if (!std::ranges::is_sorted(tree.ranks) || tree.ranks.front() < 0 || tree.ranks.back() >= ranks)
      throw std::invalid_argument("the nodes must be in the order of the ranks");
    int waiting = 0;
    for (const int sums : tree.sums) {
      if (++waiting > kernels::kMostWaiting || sums < 0 || sums >= waiting)
        throw std::invalid_argument("a node cannot be followed by " + std::to_string(sums) +
                                    " sums where " + std::to_string(waiting) + " nodes wait");
      waiting -= sums;
    }
    if (waiting != 1 || tree.leaves < static_cast<int>(nodes))
      throw std::invalid_argument("the sums of " + std::to_string(nodes) +
                                  " nodes do not end in one sum of " + std::to_string(tree.leaves) +
                                  " leaves");
  }

  std::vector<int> local_;
  std::optional<Tree> tree_;
};

}  // namespace slackline
