#include "execution.h"

#include <algorithm>

#include "machine.h"

namespace slackline::sim {

Execution::Execution(Machine& machine, std::shared_ptr<const CompiledPlan> plan,
                     ExecutionOptions options)
    : machine_(machine),
      plan_(std::move(plan)),
      options_(std::move(options)),
      members_(plan_->members()),
      open_(plan_->members()) {
  std::uint64_t segments = 0, cells = 0;
  for (std::uint32_t number = 0; number < plan_->members(); ++number) {
    const Program& program = plan_->program(number);
    Member& member = members_[number];
    member.first_segment = segments;
    member.first_cell = cells;
    member.open_segments = program.segments;
    member.gated = number >= plan_->options().ranks && plan_->options().onset != 1;
    segments += program.segments;
    cells += program.cells;
  }
  segments_.resize(segments);
  arrived_.resize(cells);
  if (options_.arithmetic != nullptr) arrived_values_.resize(cells, kNoValue);
}

void Execution::begin(std::uint32_t member) {
  const Program& program = plan_->program(member);
  members_[member].begun = true;
  for (std::uint32_t segment = 0; segment < program.most_segments; ++segment)
    for (std::uint32_t strand = 0; strand < program.strands.size(); ++strand)
      if (segment < plan_->cut(program.strands[strand]).segments())
        advance(member, strand, segment);
  const std::vector<std::uint32_t> early = std::move(members_[member].early);
  for (const std::uint32_t frame : early) take(frame);
  check_end(member);
}

void Execution::set_value(std::uint32_t member, std::uint32_t strand, std::uint32_t segment,
                          std::int32_t value) {
  segment_at(member, plan_->program(member).strands.at(strand), segment).value = value;
}

std::int32_t Execution::value(std::uint32_t member, std::uint32_t strand,
                              std::uint32_t segment) const {
  const Strand& found = plan_->program(member).strands.at(strand);
  return segments_.at(members_.at(member).first_segment + found.first_segment + segment).value;
}

void Execution::queue(std::uint32_t number) {
  if (options_.records) {
    const Frame& frame = machine_.wires().frames[number];
    const Step& step = plan_->program(frame.sender).steps[frame.sent_step];
    // In a symmetric plan the receiver has another number for the chunk.
    const std::uint32_t chunk = plan_->options().nodes.empty()
                                    ? plan_->program(frame.receiver).strands[frame.strand].chunk
                                    : step.chunk;
    frames_.push_back(SentFrame{frame.sender, frame.receiver, chunk, frame.segment,
                                frame.payload_bytes, step.partial, machine_.clock().now()});
  }
  machine_.wires().send(number);
}

void Execution::sent(std::uint32_t number) {
  const std::uint32_t sender = machine_.wires().frames[number].sender;
  machine_.end_of(number);
  --members_[sender].open_sends;
  check_end(sender);
}

void Execution::arrived(std::uint32_t number) {
  const std::uint32_t receiver = machine_.wires().frames[number].receiver;
  engine_of(receiver).run(host_of(receiver).frame,
                          Task{this, number, receiver, 0, TaskKind::kTake});
}

void Execution::take(std::uint32_t number) {
  const Frame frame = machine_.wires().frames[number];
  const std::uint32_t receiver = frame.receiver;
  if (!members_[receiver].begun) {
    members_[receiver].early.push_back(number);
    return;
  }
  machine_.end_of(number);
  --under_way_;
  if (over()) machine_.forget(*this);
  if (frame.step != kNone) {
    const Strand& strand = plan_->program(receiver).strands[frame.strand];
    const std::uint64_t place = cell(receiver, strand, frame.segment, frame.step);
    arrived_[place] = 1;
    if (options_.arithmetic != nullptr) arrived_values_[place] = frame.value;
  }
  if (members_[receiver].gated) count(receiver, frame.sender);
  advance(receiver, frame.strand, frame.segment);
  check_end(receiver);
}

void Execution::reduced(std::uint32_t member, std::uint32_t number, std::uint32_t segment) {
  const Program& program = plan_->program(member);
  const Strand& strand = program.strands[number];
  Segment& state = segment_at(member, strand, segment);
  const std::uint32_t index = state.position;
  compute(member, strand, segment, program.steps[strand.first_step + index], index);
  state.buffered = 0;
  state.busy = false;
  ++state.position;
  advance(member, number, segment);
  check_end(member);
}

const Host& Execution::host_of(std::uint32_t member) const {
  return machine_.host_of(options_.members[member]);
}

Thread& Execution::engine_of(std::uint32_t member) {
  return machine_.engine(options_.members[member]);
}

// Return the place of a received value among those that a REDUCE_ALL combines.
std::uint32_t Execution::place_of(const Step& step) const {
  return plan_->options().nodes.empty() ? step.peer : step.chunk / plan_->options().ranks;
}

// Return the number of nodes of a tree that a member has beside its first one.
std::uint64_t Execution::more_nodes(std::uint32_t member) const {
  const std::vector<std::uint32_t>& nodes = plan_->options().nodes;
  const auto own = static_cast<std::uint64_t>(std::count(nodes.begin(), nodes.end(), member));
  return own > 0 ? own - 1 : 0;
}

// Carry out the steps of a segment in order, up to the first step whose input has not arrived.
void Execution::advance(std::uint32_t member, std::uint32_t number, std::uint32_t segment) {
  const Program& program = plan_->program(member);
  const Strand& strand = program.strands[number];
  Segment& state = segment_at(member, strand, segment);
  if (state.busy) return;
  for (; state.position < strand.steps; ++state.position) {
    const Step& step = program.steps[strand.first_step + state.position];
    switch (step.kind) {
      case StepKind::kSend:
        send(member, number, segment, state.position);
        break;
      case StepKind::kBuffer: {
        const std::uint64_t place = cell(member, strand, segment, state.position);
        if (!arrived_[place]) return;
        ++state.buffered;
        if (options_.arithmetic != nullptr)
          held_[cell(member, strand, segment, 0)][place_of(step)] = arrived_values_[place];
        break;
      }
      case StepKind::kReduceAll:
        if (!members_[member].gated)
          reduce(member, number, segment, state.buffered + more_nodes(member));
        return;
      default:
        if (arrived_[cell(member, strand, segment, state.position)])
          reduce(member, number, segment, step.kind == StepKind::kAdd);
        return;
    }
  }
  state.busy = true;  // The segment has passed its last step and stays as it is.
  --members_[member].open_segments;
}

void Execution::send(std::uint32_t member, std::uint32_t number, std::uint32_t segment,
                     std::uint32_t index) {
  const Strand& strand = plan_->program(member).strands[number];
  const Step& step = plan_->program(member).steps[strand.first_step + index];
  ++members_[member].open_sends;
  ++messages_;
  ++under_way_;
  const std::uint32_t source = machine_.placement(options_.members[member]);
  const std::uint32_t target = machine_.placement(options_.members[step.to_member]);
  const std::uint32_t frame = machine_.wires().frames.add(Frame{
      .execution = this,
      .payload_bytes = plan_->payload_bytes(plan_->cut(strand).elements(segment), step.partial),
      .priority = plan_->options().priority,
      .packets = 0,
      .source = source,
      .target = target,
      .sender = member,
      .receiver = step.to_member,
      .sent_step = strand.first_step + index,
      .strand = step.to_strand,
      .step = step.to_step,
      .segment = segment,
      .value = segment_at(member, strand, segment).value,
      .crosses_network = source != target || plan_->leaves_host(step.peer),
      .ends = 2,
  });
  engine_of(member).run(host_of(member).frame, Task{this, frame, member, number, TaskKind::kSend});
}

// Make the member's engine reduce the given number of values into the segment, then advance it.
void Execution::reduce(std::uint32_t member, std::uint32_t number, std::uint32_t segment,
                       std::uint64_t operands) {
  const Strand& strand = plan_->program(member).strands[number];
  const std::uint64_t bytes =
      plan_->payload_bytes(plan_->cut(strand).elements(segment), true) * operands;
  segment_at(member, strand, segment).busy = true;
  engine_of(member).run(host_of(member).reducing(bytes),
                        Task{this, segment, member, number, TaskKind::kReduce});
}

// Compute the value of a segment after a step that reduces received values into it.
void Execution::compute(std::uint32_t member, const Strand& strand, std::uint32_t segment,
                        const Step& step, std::uint32_t index) {
  if (options_.arithmetic == nullptr) return;
  Segment& state = segment_at(member, strand, segment);
  if (step.kind == StepKind::kReduceAll) {
    const auto place = held_.find(cell(member, strand, segment, 0));
    std::map<std::uint32_t, std::int32_t> everyone;
    if (place != held_.end()) {
      everyone = std::move(place->second);
      held_.erase(place);
    }
    const std::vector<std::uint32_t>& nodes = plan_->options().nodes;
    for (std::uint32_t node = 0; node < nodes.size(); ++node) {
      if (nodes[node] != member) continue;
      const std::uint32_t chunk = member + plan_->options().ranks * node;
      everyone[node] = value(member, plan_->strand_of(member, chunk), segment);
    }
    if (nodes.empty() && member < plan_->options().ranks) everyone[member] = state.value;
    std::vector<std::int32_t> values;
    for (const auto& [rank, value] : everyone) values.push_back(value);
    state.value = options_.arithmetic->reduce(values);
    return;
  }
  const std::int32_t incoming = arrived_values_[cell(member, strand, segment, index)];
  state.value = step.kind == StepKind::kCopy
                    ? incoming
                    : options_.arithmetic->add(incoming, state.value, step.last);
}

// Let a helper begin to add once `onset` segments of every rank have arrived at it.
void Execution::count(std::uint32_t number, std::uint32_t peer) {
  Member& member = members_[number];
  const Program& program = plan_->program(number);
  ++member.arrivals[peer];
  const std::uint64_t onset = plan_->options().onset;
  const std::uint64_t enough = onset == 0 ? program.segments : std::min(onset, program.segments);
  for (std::uint32_t rank = 0; rank < plan_->options().ranks; ++rank) {
    const auto found = member.arrivals.find(rank);
    if ((found == member.arrivals.end() ? 0 : found->second) < enough) return;
  }
  member.gated = false;
  for (std::uint32_t strand = 0; strand < program.strands.size(); ++strand)
    for (std::uint32_t segment = 0; segment < plan_->cut(program.strands[strand]).segments();
         ++segment)
      advance(number, strand, segment);
}

void Execution::check_end(std::uint32_t number) {
  Member& member = members_[number];
  if (member.open_segments != 0 || member.open_sends != 0 || !member.begun || member.ended >= 0)
    return;
  member.ended = machine_.clock().now();
  --open_;
  if (over()) machine_.forget(*this);
  machine_.deliver(options_.token, number);
}

}  // namespace slackline::sim
