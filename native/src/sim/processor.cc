#include "processor.h"

#include <algorithm>

namespace slackline::sim {
namespace {

using Wide = unsigned __int128;

}  // namespace

Time Slowness::lasts(Time work) const {
  if (numerator == denominator) return work;
  const Wide product = static_cast<Wide>(work) * numerator;
  return static_cast<Time>(
      std::min((product + denominator - 1) / denominator, static_cast<Wide>(kNever)));
}

Time Slowness::done_in(Time time) const {
  return static_cast<Time>(static_cast<Wide>(time) * denominator / numerator);
}

void Processor::want(Thread& thread) {
  ready_.push_back(&thread);
  assign();
}

void Processor::withdraw(Thread& thread) {
  ready_.erase(std::find(ready_.begin(), ready_.end(), &thread));
}

void Processor::release() {
  ++free_;
  assign();
}

void Processor::assign() {
  while (free_ != 0 && !ready_.empty()) {
    --free_;
    Thread& thread = *ready_.front();
    ready_.pop_front();
    thread.begin();
  }
}

void Thread::run(Time work, const Task& task) {
  if (work == 0 && !has_tasks() && !stopped_) {
    runner_.perform(task);
    return;
  }
  tasks_.push_back(Waiting{task, work});
  go_on();
}

void Thread::begin() {
  waiting_ = false;
  running_ = true;
  started_ = clock_.now();
  ++turn_;
  clock_.at(after(started_, slowness_.lasts(tasks_[first_].work)), EventKind::kTask, number_,
            turn_);
}

void Thread::condition(const Slowness& slowness, bool stopped) {
  if (slowness == slowness_ && stopped == stopped_) return;
  if (running_) {
    interrupt();
  } else if (waiting_) {
    processor_.withdraw(*this);
    waiting_ = false;
  }
  slowness_ = slowness;
  stopped_ = stopped;
  go_on();
}

// Stop the running task; its unfinished work, in whole picoseconds, remains the first task.
void Thread::interrupt() {
  Time& work = tasks_[first_].work;
  work = std::max<Time>(0, work - slowness_.done_in(clock_.now() - started_));
  running_ = false;
  ++turn_;
  processor_.release();
}

void Thread::go_on() {
  if (!has_tasks() || running_ || waiting_ || stopped_) return;
  waiting_ = true;
  processor_.want(*this);
}

void Thread::ended(std::int64_t turn) {
  if (turn != turn_) return;
  running_ = false;
  const Task task = tasks_[first_++].task;
  if (2 * first_ >= tasks_.size()) {
    tasks_.erase(tasks_.begin(), tasks_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  processor_.release();
  runner_.perform(task);
  go_on();
}

}  // namespace slackline::sim
