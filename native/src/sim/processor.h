// The cores of a host while a simulation runs, and the threads that take turns on them.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "clock.h"

namespace slackline::sim {

class Execution;

enum class TaskKind : std::uint8_t {
  kSend,    // number: a frame that is handed to the NICs
  kTake,    // number: a frame that has arrived
  kReduce,  // number: a segment at the member, into which values are reduced
  kCall,    // number: the owner's token (a number) for the end of the task
};

struct Task {
  Execution* execution;
  std::uint64_t number;
  std::uint32_t member;
  std::uint32_t strand;
  TaskKind kind;
};

// The factor, a fraction of at least 1, by which a thread works slower than usual.
struct Slowness {
  std::uint64_t numerator = 1, denominator = 1;
  bool operator==(const Slowness&) const = default;

  Time lasts(Time work) const;    // the time that `work` takes, rounded up
  Time done_in(Time time) const;  // the work that is done in `time`, rounded down
};

class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  virtual void perform(const Task& task) = 0;
};

class Thread;

// The cores of one host. A thread that has work takes a free core or waits in a queue for one.
class Processor {
 public:
  explicit Processor(std::uint32_t cores) : free_(cores) {}
  // Give the thread a core, now or after the threads that wait before it.
  void want(Thread& thread);
  // Remove a thread that waits for a core.
  void withdraw(Thread& thread);
  // Take back the core of a thread that has finished a task or was stopped.
  void release();

 private:
  void assign();

  std::uint32_t free_;
  std::deque<Thread*> ready_;
};

// A thread of one member: its tasks run one after another, each on one core of the host.
class Thread {
 public:
  Thread(Clock& clock, TaskRunner& runner, Processor& processor, std::uint32_t number)
      : clock_(clock), runner_(runner), processor_(processor), number_(number) {}
  // Queue a task that is performed after `work` picoseconds of work; tasks keep their order. A task
  // without work runs at once if the thread has no other task.
  void run(Time work, const Task& task);
  // Start or continue the first task; called by the processor with a core for it.
  void begin();
  // Set how many times slower than usual the thread works, and whether it stands still.
  void condition(const Slowness& slowness, bool stopped);
  // Finish the first task, which began in the turn number `turn`, unless it was interrupted since.
  void ended(std::int64_t turn);

 private:
  struct Waiting {
    Task task;
    Time work;
  };

  bool has_tasks() const { return first_ < tasks_.size(); }
  void interrupt();
  void go_on();

  Clock& clock_;
  TaskRunner& runner_;
  Processor& processor_;
  std::uint32_t number_;
  std::vector<Waiting> tasks_;  // from `first_` on
  std::size_t first_ = 0;
  bool running_ = false, waiting_ = false, stopped_ = false;
  Slowness slowness_;
  Time started_ = 0;
  std::int64_t turn_ = 0;
};

}  // namespace slackline::sim
