#include "plan.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace slackline::sim {
namespace {

using ChunkStrand = std::pair<std::uint32_t, std::uint32_t>;

constexpr std::uint32_t kFew = 16;  // most steps of a strand for a linear search

}  // namespace

CompiledPlan::CompiledPlan(PlanOptions options,
                           const std::vector<std::vector<Instruction>>& programs)
    : options_(std::move(options)) {
  for (std::uint32_t member = 0; member < programs.size(); ++member)
    lay_out(member, programs[member]);
  std::vector<std::vector<Receive>> receives(programs_.size());
  for (std::uint32_t member = 0; member < members(); ++member) {
    const Program& program = programs_[member];
    for (std::uint32_t number = 0; number < program.strands.size(); ++number) {
      const Strand& strand = program.strands[number];
      for (std::uint32_t index = 0; index < strand.steps; ++index) {
        const Step& step = program.steps[strand.first_step + index];
        if (step.kind != StepKind::kSend && step.kind != StepKind::kReduceAll)
          receives[member].push_back(Receive{number, step.peer, step.chunk, step.turn, index});
      }
    }
    std::sort(receives[member].begin(), receives[member].end(),
              [](const Receive& a, const Receive& b) {
                return std::tie(a.strand, a.peer, a.chunk, a.turn) <
                       std::tie(b.strand, b.peer, b.chunk, b.turn);
              });
  }
  for (std::uint32_t member = 0; member < members(); ++member) match(member, receives);
}

std::uint32_t CompiledPlan::strand_of(std::uint32_t member, std::uint32_t chunk) const {
  const std::vector<ChunkStrand>& known = strands_of_[member];
  const auto place = std::lower_bound(known.begin(), known.end(), ChunkStrand{chunk, 0});
  return place != known.end() && place->first == chunk ? place->second : kNone;
}

std::uint32_t CompiledPlan::receiving_strand(std::uint32_t member, std::uint32_t chunk) const {
  const std::uint32_t own = strand_of(member, chunk);
  return own == kNone && !options_.nodes.empty() ? strand_of(member, chunk % options_.ranks) : own;
}

void CompiledPlan::lay_out(std::uint32_t member, const std::vector<Instruction>& instructions) {
  std::unordered_map<std::uint32_t, std::uint32_t> strand_of;
  std::vector<std::uint32_t> strand_of_instruction;
  Program program;
  strand_of_instruction.reserve(instructions.size());
  for (const Instruction& instruction : instructions) {
    const auto number = static_cast<std::uint32_t>(program.strands.size());
    const bool node = !options_.nodes.empty() && instruction.kind == StepKind::kBuffer;
    const std::uint32_t chunk = node ? instruction.chunk % options_.ranks : instruction.chunk;
    const auto [place, added] = strand_of.try_emplace(chunk, number);
    if (added) program.strands.push_back(Strand{chunk, 0, 0, 0, 0});
    ++program.strands[place->second].steps;
    strand_of_instruction.push_back(place->second);
  }
  // The parts of the own nodes that this member reduces have values, and no steps.
  for (std::uint32_t node = 0; node < options_.nodes.size(); ++node) {
    const std::uint32_t chunk = member + options_.ranks * node;
    const auto number = static_cast<std::uint32_t>(program.strands.size());
    if (options_.nodes[node] == member && strand_of.try_emplace(chunk, number).second)
      program.strands.push_back(Strand{chunk, 0, 0, 0, 0});
  }
  std::uint32_t first_step = 0;
  for (Strand& strand : program.strands) {
    const std::uint32_t segments = cut(strand).segments();
    strand.first_step = first_step;
    strand.first_segment = program.segments;
    strand.first_cell = program.cells;
    first_step += strand.steps;
    program.segments += segments;
    program.cells += std::uint64_t{segments} * strand.steps;
    program.most_segments = std::max(program.most_segments, segments);
    strand.steps = 0;  // counted again below
  }
  program.steps.resize(instructions.size());
  for (std::size_t index = 0; index < instructions.size(); ++index) {
    const Instruction& instruction = instructions[index];
    Strand& strand = program.strands[strand_of_instruction[index]];
    program.steps[strand.first_step + strand.steps++] =
        Step{.kind = instruction.kind,
             .last = instruction.last,
             .partial = false,
             .peer = instruction.kind == StepKind::kReduceAll ? kNone : instruction.peer,
             .chunk = instruction.chunk,
             .turn = 0,
             .to_member = kNone,
             .to_strand = kNone,
             .to_step = kNone};
  }
  std::vector<ChunkStrand> known;
  for (std::uint32_t number = 0; number < program.strands.size(); ++number) {
    number_turns(program.steps, program.strands[number]);
    known.emplace_back(program.strands[number].chunk, number);
  }
  std::sort(known.begin(), known.end());
  strands_of_.push_back(std::move(known));
  programs_.push_back(std::move(program));
}

// Set the `turn` of each step of a strand, and `partial` of each SEND that carries a partial value.
void CompiledPlan::number_turns(std::vector<Step>& steps, const Strand& strand) const {
  std::map<std::tuple<bool, std::uint32_t, std::uint32_t>, std::uint32_t> turns;
  bool partial = options_.reduces;
  for (std::uint32_t index = 0; index < strand.steps; ++index) {
    Step& step = steps[strand.first_step + index];
    const bool sends = step.kind == StepKind::kSend;
    if (strand.steps <= kFew) {
      for (std::uint32_t earlier = 0; earlier < index; ++earlier) {
        const Step& other = steps[strand.first_step + earlier];
        step.turn += (other.kind == StepKind::kSend) == sends && other.peer == step.peer &&
                     other.chunk == step.chunk;
      }
    } else {
      step.turn = turns[{sends, step.peer, step.chunk}]++;
    }
    if (step.kind == StepKind::kCopy || step.kind == StepKind::kReduceAll || step.last)
      partial = false;
    step.partial = sends && partial;
  }
}

// Find, for each SEND of a member, the step at the peer that receives the data.
void CompiledPlan::match(std::uint32_t member, const std::vector<std::vector<Receive>>& receives) {
  Program& program = programs_[member];
  for (const Strand& strand : program.strands) {
    for (std::uint32_t index = 0; index < strand.steps; ++index) {
      Step& step = program.steps[strand.first_step + index];
      if (step.kind != StepKind::kSend) continue;
      std::uint32_t peer = step.peer, sender = member, chunk = strand.chunk;
      if (options_.rotation) {
        const Rotation& rotation = *options_.rotation;
        const std::uint32_t back = rotation.hosts - peer / rotation.ranks_per_host;
        peer = rotation.turned(peer, back);
        sender = rotation.turned(sender, back);
        if (rotation.turns_chunks) chunk = rotation.turned(chunk, back);
      }
      step.to_member = peer;
      step.to_strand = peer < members() ? receiving_strand(peer, chunk) : kNone;
      if (step.to_strand == kNone)
        throw std::invalid_argument(
            "rank " + std::to_string(member) + " sends chunk " + std::to_string(strand.chunk) +
            " to rank " + std::to_string(step.peer) + ", which has no instruction about it");
      const auto wanted = std::tie(step.to_strand, sender, chunk, step.turn);
      const std::vector<Receive>& known = receives[peer];
      const auto place = std::lower_bound(
          known.begin(), known.end(), wanted, [](const Receive& receive, const auto& key) {
            return std::tie(receive.strand, receive.peer, receive.chunk, receive.turn) < key;
          });
      if (place != known.end() &&
          std::tie(place->strand, place->peer, place->chunk, place->turn) == wanted)
        step.to_step = place->step;
    }
  }
}

}  // namespace slackline::sim
