// The simulated machine on which plans run: one clock, the wires, and the threads of every member.
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

// The program that owns a machine and is notified of events. A token is a number by which the owner
// recognizes the event or task that it asked for.
class Owner {
 public:
  virtual ~Owner() = default;
  // Handle the event or the end of the task that has this token, or the end of the member's part in
  // the execution that has this token.
  virtual void deliver(std::int64_t token, std::uint32_t member) = 0;
  // Handle the end of all events of one time, called if `deliver` was called among them.
  virtual void settle() = 0;
};

class Machine final : private TaskRunner, private FrameEnds {
 public:
  // Member i, a rank or a helper, is on host `placement[i]`. `faults` is null for a network that
  // never has faults. `faults` and `owner` must outlive the machine.
  Machine(Fabric fabric, std::vector<std::uint32_t> placement, Faults* faults, Owner& owner);
  Machine(const Machine&) = delete;

  Clock& clock() { return clock_; }
  Wires& wires() { return wires_; }
  const Fabric& fabric() const { return fabric_; }
  std::uint32_t members() const { return static_cast<std::uint32_t>(placement_.size()); }
  std::uint32_t placement(std::uint32_t member) const { return placement_[member]; }
  const Host& host_of(std::uint32_t member) const { return fabric_.hosts[placement_[member]]; }
  Thread& engine(std::uint32_t member) { return engines_[member]; }

  // Call the owner's `deliver` with `token` at `time`, which must not have passed.
  void at(Time time, std::int64_t token) { clock_.at(time, EventKind::kCall, 0, token); }
  // Call the owner's `deliver` with `token` and the member, after the member's computing thread has
  // worked for `work` picoseconds.
  void compute(std::uint32_t member, Time work, std::int64_t token);
  // Set how many times slower than usual a member works, and whether it stands still.
  void condition(std::uint32_t member, const Slowness& slowness, bool stopped);
  // Add an execution; the machine keeps the execution until it is over.
  std::shared_ptr<Execution> execute(std::shared_ptr<const CompiledPlan> plan,
                                     ExecutionOptions options);
  // Run events until `stop` is called, none is left, or the time is past the limit.
  void run(Time limit);
  void stop() { stopped_ = true; }

  // Calls that executions make:
  void deliver(std::int64_t token, std::uint32_t member) {
    delivered_ = true;
    owner_.deliver(token, member);
  }
  // Mark a finished execution, to be deleted after the current event.
  void forget(const Execution& execution) { over_.push_back(&execution); }
  // Record that the sender or the receiver has finished with a frame; release it after both.
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
  std::vector<const Execution*> over_;  // to be deleted after the current event
  bool delivered_ = false, stopped_ = false;
};

}  // namespace slackline::sim
