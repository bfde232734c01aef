// The ended operations that next_completion() returns, with a lock of their own: a thread that
// takes one never makes the thread that drives the engine wait.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "../base/renew.h"
#include "../base/wait.h"
#include "request.h"
#include "request_chain.h"

namespace slackline {

class Completions {
 public:
  // Add an ended operation, and wake one thread that waits in next(). Takes no memory, so that no
  // end is lost when there is none.
  void push(std::shared_ptr<Request> ended) noexcept {
    {
      const std::lock_guard lock(mutex_);
      ended_.push(std::move(ended));
    }
    changed_.notify_one();
  }

  // Return the operation that ended first and was not returned before. Block until there is one;
  // return null after close() when none is left.
  std::shared_ptr<Request> next() {
    std::unique_lock lock(mutex_);
    wait_on(changed_, lock, [this] { return !ended_.empty() || closed_; });
    return ended_.empty() ? nullptr : ended_.pop();
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
  RequestChain<&Request::next_completed> ended_;
  bool closed_ = false;
};

}  // namespace slackline
