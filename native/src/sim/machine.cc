#include "machine.h"

#include <utility>

namespace slackline::sim {

Machine::Machine(Fabric fabric, std::vector<std::uint32_t> placement, Faults* faults, Owner& owner)
    : fabric_(std::move(fabric)),
      placement_(std::move(placement)),
      owner_(owner),
      wires_(clock_, fabric_, faults, *this) {
  if (fabric_.shared_cores != 0) {
    processors_.emplace_back(fabric_.shared_cores);
  } else {
    for (const Host& host : fabric_.hosts) processors_.emplace_back(host.cores);
  }
  TaskRunner& runner = *this;
  for (std::uint32_t member = 0; member < members(); ++member) {
    Processor& processor = processors_[fabric_.shared_cores != 0 ? 0 : placement_[member]];
    engines_.emplace_back(clock_, runner, processor, 2 * member);
    workers_.emplace_back(clock_, runner, processor, 2 * member + 1);
  }
}

void Machine::compute(std::uint32_t member, Time work, std::int64_t token) {
  const auto number = static_cast<std::uint64_t>(token);
  workers_.at(member).run(work, Task{nullptr, number, member, 0, TaskKind::kCall});
}

void Machine::condition(std::uint32_t member, const Slowness& slowness, bool stopped) {
  engines_.at(member).condition(slowness, stopped);
  workers_.at(member).condition(slowness, stopped);
}

std::shared_ptr<Execution> Machine::execute(std::shared_ptr<const CompiledPlan> plan,
                                            ExecutionOptions options) {
  auto execution = std::make_shared<Execution>(*this, std::move(plan), std::move(options));
  executions_.emplace(execution.get(), execution);
  return execution;
}

void Machine::run(Time limit) {
  stopped_ = false;
  while (!stopped_ && !clock_.empty() && clock_.now() <= limit) {
    const Time now = clock_.next();
    delivered_ = false;
    while (!clock_.empty() && clock_.next() == now) {
      act(clock_.pop());
      for (const Execution* execution : over_) executions_.erase(execution);
      over_.clear();
    }
    if (delivered_) owner_.settle();
  }
}

void Machine::act(const Event& event) {
  switch (event.kind) {
    case EventKind::kCall:
      deliver(event.argument, 0);
      break;
    case EventKind::kTask: {
      const std::uint32_t member = event.index / 2;
      (event.index % 2 ? workers_ : engines_)[member].ended(event.argument);
      break;
    }
    default:
      wires_.act(event);
  }
}

void Machine::perform(const Task& task) {
  const auto number = static_cast<std::uint32_t>(task.number);
  switch (task.kind) {
    case TaskKind::kSend:
      task.execution->queue(number);
      break;
    case TaskKind::kTake:
      task.execution->take(number);
      break;
    case TaskKind::kReduce:
      task.execution->reduced(task.member, task.strand, number);
      break;
    case TaskKind::kCall:
      deliver(static_cast<std::int64_t>(task.number), 0);
  }
}

void Machine::frame_sent(std::uint32_t frame) { wires_.frames[frame].execution->sent(frame); }

void Machine::frame_arrived(std::uint32_t frame) { wires_.frames[frame].execution->arrived(frame); }

}  // namespace slackline::sim
