// The ends of the operations that one thread waits for, in the order in which they ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace slackline {

struct Request;

class CompletionQueue {
 public:
  // Return whether no operation has ended. The call takes no lock of the engine, so it may see the
  // end of an operation a little later.
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  // --- under the engine's lock ---
  std::int64_t waiting_since_ns = 0;  // 0 while no thread is blocked on the queue
  void push(std::shared_ptr<Request> request) {
    ended_.push_back(std::move(request));
    count_.store(ended_.size(), std::memory_order_release);
  }
  std::vector<std::shared_ptr<Request>> take() {
    count_.store(0, std::memory_order_release);
    return std::exchange(ended_, {});
  }

 private:
  std::vector<std::shared_ptr<Request>> ended_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace slackline
