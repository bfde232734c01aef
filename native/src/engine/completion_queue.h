// The ends of the operations that one thread waits for, in the order in which they ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "request.h"

namespace slackline {

class CompletionQueue {
 public:
  // Return whether no operation has ended. The call takes no lock of the engine, so it may see the
  // end of an operation a little later.
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  // --- under the engine's lock ---
  std::int64_t waiting_since_ns = 0;  // 0 while no thread is blocked on the queue
  // Takes no memory, so that no end is lost when there is none.
  void push(std::shared_ptr<Request> request) noexcept {
    Request* last = request.get();
    (last_ == nullptr ? first_ : last_->next_in_queue) = std::move(request);
    last_ = last;
    count_.fetch_add(1, std::memory_order_release);
  }
  std::vector<std::shared_ptr<Request>> take() {
    std::vector<std::shared_ptr<Request>> taken;
    taken.reserve(count_.load(std::memory_order_relaxed));
    count_.store(0, std::memory_order_release);
    last_ = nullptr;
    while (first_ != nullptr) {
      std::shared_ptr<Request> next = std::move(first_->next_in_queue);
      taken.push_back(std::exchange(first_, std::move(next)));
    }
    return taken;
  }

 private:
  std::shared_ptr<Request> first_;  // each operation refers to the next
  Request* last_ = nullptr;
  std::atomic<std::size_t> count_{0};
};

}  // namespace slackline
