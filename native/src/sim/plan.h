// A collective's plan in the form that executions run. A strand is the list of steps of one chunk
// at one member; a cell is a pair of a segment and a step. Each SEND knows the step at the peer
// that receives its data.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace slackline::sim {

enum class StepKind : std::uint8_t { kSend = 0, kAdd = 1, kCopy = 2, kBuffer = 3, kReduceAll = 4 };

struct Instruction {
  StepKind kind;
  std::uint32_t peer;  // unused in a REDUCE_ALL
  std::uint32_t chunk;
  bool last;
};

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

struct Step {
  StepKind kind;
  bool last;
  bool partial;        // for a SEND: the value is not final
  std::uint32_t peer;  // the number in the plan; kNone in a REDUCE_ALL
  std::uint32_t chunk;
  // The number of earlier sends to, or receives from, the same peer about the same chunk: equal on
  // both sides, since messages about one chunk arrive in the order sent.
  std::uint32_t turn;
  // For a SEND, the receiving member, strand and step; the step is kNone if no step receives the
  // data.
  std::uint32_t to_member, to_strand, to_step;
};

// The steps that a member carries out, in order, for each segment of one chunk. The parts of a
// tree's nodes that a REDUCE_ALL combines are received in the strand of the result.
struct Strand {
  std::uint32_t chunk;
  std::uint32_t first_step, steps;
  std::uint64_t first_segment;  // index of the strand's first segment among the member's segments
  std::uint64_t first_cell;     // index of the strand's first cell among the member's cells
};

struct Program {
  std::vector<Step> steps;      // strand by strand
  std::vector<Strand> strands;  // in order of each chunk's first instruction
  std::uint64_t segments = 0;
  std::uint64_t cells = 0;
  std::uint32_t most_segments = 0;  // the largest number of segments of a strand
};

// The segments of a chunk: `full` segments of `most` elements each, then one segment of `rest`
// elements if `rest` is not 0 or `full` is 0.
struct Cut {
  std::uint64_t most, full, rest;
  std::uint32_t segments() const {
    return static_cast<std::uint32_t>(full) + (rest != 0 || full == 0 ? 1 : 0);
  }
  std::uint64_t elements(std::uint64_t segment) const { return segment < full ? most : rest; }
};

// A symmetry of a plan: with q ranks a host, renumbering every rank h * q + j as (h + 1) * q + j
// leaves the programs unchanged. Therefore only the ranks of host 0 are simulated, and each frame
// that they send to another host stands for a frame that they receive from another host.
struct Rotation {
  std::uint32_t hosts;
  std::uint32_t ranks_per_host;
  bool turns_chunks;  // whether the chunks are renumbered like the ranks

  std::uint32_t turned(std::uint32_t number, std::uint32_t by) const {
    const std::uint64_t host = (std::uint64_t{number} / ranks_per_host + by) % hosts;
    return static_cast<std::uint32_t>(host * ranks_per_host + number % ranks_per_host);
  }
};

struct PlanOptions {
  std::uint32_t ranks;
  std::vector<Cut> cuts;  // by chunk
  std::uint64_t itemsize;
  std::uint64_t widest_itemsize;  // bytes of an element of a partial sum
  std::uint64_t onset;
  std::int64_t priority;
  bool reduces;  // the operation is a reduction, so a rank's own data is a partial value
  // For a sum in a tree, the rank that has each node: chunk p + ranks * n is part p of node n, and
  // rank p reduces part p of all nodes. Otherwise empty.
  std::vector<std::uint32_t> nodes = {};
  std::optional<Rotation> rotation;
};

class CompiledPlan {
 public:
  // Throws std::invalid_argument if a SEND goes to a member that has no instruction for the chunk.
  CompiledPlan(PlanOptions options, const std::vector<std::vector<Instruction>>& programs);

  const PlanOptions& options() const { return options_; }
  std::uint32_t members() const { return static_cast<std::uint32_t>(programs_.size()); }
  const Program& program(std::uint32_t member) const { return programs_[member]; }
  const Cut& cut(const Strand& strand) const { return options_.cuts[strand.chunk]; }
  std::uint64_t payload_bytes(std::uint64_t elements, bool partial) const {
    return elements * (partial ? options_.widest_itemsize : options_.itemsize);
  }
  // Return whether a peer is on another host than host 0, which all members of a symmetric plan are
  // on.
  bool leaves_host(std::uint32_t peer) const {
    return options_.rotation && peer >= options_.rotation->ranks_per_host;
  }
  // Return the strand in which a member receives data of a chunk, or kNone if there is none.
  std::uint32_t receiving_strand(std::uint32_t member, std::uint32_t chunk) const;
  // Return the strand of a chunk at a member, or kNone if the member has no part in the chunk.
  std::uint32_t strand_of(std::uint32_t member, std::uint32_t chunk) const;

 private:
  struct Receive {
    std::uint32_t strand, peer, chunk, turn, step;
  };

  void lay_out(std::uint32_t member, const std::vector<Instruction>& instructions);
  void number_turns(std::vector<Step>& steps, const Strand& strand) const;
  void match(std::uint32_t member, const std::vector<std::vector<Receive>>& receives);

  PlanOptions options_;
  std::vector<Program> programs_;
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> strands_of_;  // sorted
};

}  // namespace slackline::sim
