// The machine under simulated plans: one clock, the wires, and the threads of every member.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "execution.h"
#include "fabric.h"
#include "processor.h"
#include "wires.h"

namespace slackline::sim {

// The program around a machine, to which it delivers what was asked for.
class Owner {
 public:
  virtual ~Owner() = default;
  // An event or a task of `token`, or the end of a member of the execution that has the token.
  virtual void deliver(std::int64_t token, std::uint32_t member) = 0;
  // All events of a time are over, and something was delivered among them.
  virtual void settle() = 0;
};

class Machine final : private TaskRunner, private FrameEnds {
 public:
  // Member i, a rank or a helper, is on host `placement[i]`. `faults` is null where the network
  // never has any; both outlive the machine.
  Machine(Fabric fabric, std::vector<std::uint32_t> placement, Faults* faults, Owner& owner);
  Machine(const Machine&) = delete;

  Clock& clock() { return clock_; }
  Wires& wires() { return wires_; }
  const Fabric& fabric() const { return fabric_; }
  std::uint32_t members() const { return static_cast<std::uint32_t>(placement_.size()); }
  std::uint32_t placement(std::uint32_t member) const { return placement_[member]; }
  const Host& host_of(std::uint32_t member) const { return fabric_.hosts[placement_[member]]; }
  Thread& engine(std::uint32_t member) { return engines_[member]; }

  // Deliver a token at a time that has not passed, or after work of the thread of a member that
  // computes.
  void at(Time time, std::int64_t token) { clock_.at(time, EventKind::kCall, 0, token); }
  void compute(std::uint32_t member, Time work, std::int64_t token);
  // Change how much slower than usual a member works, and whether it works at all.
  void condition(std::uint32_t member, const Slowness& slowness, bool stopped);
  // Add an execution, which the machine keeps until it is over.
  std::shared_ptr<Execution> execute(std::shared_ptr<const CompiledPlan> plan,
                                     ExecutionOptions options);
  // Run events until `stop` is called, none is left, or the time is past the limit.
  void run(Time limit);
  void stop() { stopped_ = true; }

  // For executions:
  void deliver(std::int64_t token, std::uint32_t member) {
    delivered_ = true;
    owner_.deliver(token, member);
  }
  // Forget an execution that is over, once nothing is in the middle of it.
  void forget(const Execution& execution) { over_.push_back(&execution); }
  // Release a frame at its second end.
  void end_of(std::uint32_t frame) {
    if (--wires_.frames[frame].ends == 0) wires_.frames.release(frame);
  }

 private:
  void act(const Event& event);
  void perform(const Task& task) override;
  void frame_sent(std::uint32_t frame) override;
  void frame_arrived(std::uint32_t frame) override;

  const Fabric fabric_;
  const std::vector<std::uint32_t> placement_;
  Owner& owner_;
  Clock clock_;
  Wires wires_;
  std::deque<Processor> processors_;
  std::deque<Thread> engines_, workers_;  // by member
  std::unordered_map<const Execution*, std::shared_ptr<Execution>> executions_;
  std::vector<const Execution*> over_;  // to be forgotten after the event
  bool delivered_ = false, stopped_ = false;
};

}  // namespace slackline::sim
