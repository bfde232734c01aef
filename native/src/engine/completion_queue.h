// The ends of the operations that one thread waits for, in the order in which they ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "request.h"
#include "request_chain.h"

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
    ended_.push(std::move(request));
    count_.fetch_add(1, std::memory_order_release);
  }
  std::vector<std::shared_ptr<Request>> take() {
    std::vector<std::shared_ptr<Request>> taken;
    taken.reserve(count_.load(std::memory_order_relaxed));
    count_.store(0, std::memory_order_release);
    while (!ended_.empty()) taken.push_back(ended_.pop());
    return taken;
  }

 private:
  RequestChain<&Request::next_in_queue> ended_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace slackline
