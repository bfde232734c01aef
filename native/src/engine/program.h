// The part of a plan that one rank carries out, compiled for the engine: for each chunk, the list
// of steps that every segment of the chunk passes through.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

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
    StepList& step_list = at(chunk);
    Step step{opcode, last, static_cast<std::uint16_t>(opcode == Opcode::kReduceAll ? rank : peer),
              false, !step_list.writes};
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
  int chunks() const { return static_cast<int>(local_.size()); }

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
  std::vector<StepList> step_lists;

 private:
  std::vector<int> local_;
};

}  // namespace slackline
