// The ended operations that next_completion() returns, with a lock of their own: a thread that
// takes one never makes the thread that drives the engine wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "../base/renew.h"

namespace slackline {

struct Request;

class Completions {
 public:
  // Add an ended operation, and wake one thread that waits in next().
  void push(std::shared_ptr<Request> ended) {
    {
      const std::lock_guard lock(mutex_);
      ended_.push_back(std::move(ended));
    }
    changed_.notify_one();
  }

  // Return the operation that ended first and was not returned before. Block until there is one;
  // return null after close() when none is left.
  std::shared_ptr<Request> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ended_.empty() || closed_; });
    if (ended_.empty()) return nullptr;
    std::shared_ptr<Request> first = std::move(ended_.front());
    ended_.pop_front();
    return first;
  }

  // Let waiting threads, and later calls of next(), return.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

  // --- for the handlers that run when the process forks ---
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void leave_to_parent() {
    renew(mutex_);
    renew(changed_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> ended_;
  bool closed_ = false;
};

}  // namespace slackline
