// The delivery of ended operations to threads that wait for any of several operations.
#include <memory>
#include <utility>

#include "../base/clock.h"
#include "engine_impl.h"

namespace slackline {

bool Engine::watch(Request& request) {
  const Lock lock = lock_for_post();
  if (request.finished()) return true;
  request.wants_callback = true;
  return false;
}

std::shared_ptr<Request> Engine::next_completion() {
  Lock lock = lock_for_post();
  while (completions_.empty() && !stopped_) {
    ++completion_sleepers_;
    completion_.wait(lock, [this] { return completion_calls_ > 0 || stopped_; });
    --completion_sleepers_;
    if (completion_calls_ == 0) continue;
    --completion_calls_;
    wanting_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (completions_.empty()) return nullptr;
  std::shared_ptr<Request> request = completions_.front();
  completions_.pop_front();
  return request;
}

void Engine::watch(Request& request, std::shared_ptr<CompletionQueue> queue) {
  const Lock lock = lock_for_post();
  if (request.finished())
    queue->push(request.shared_from_this());
  else
    request.queue = std::move(queue);
}

std::vector<std::shared_ptr<Request>> Engine::next(CompletionQueue& queue,
                                                   std::int64_t timeout_ns) {
  if (timeout_ns == 0 && queue.empty()) return {};
  Lock lock = lock_for_post();
  if (queue.empty()) {
    queue.waiting_since_ns = now_ns();
    drive(lock, queue, later(queue.waiting_since_ns, timeout_ns));
    queue.waiting_since_ns = 0;
  }
  return queue.take();
}

}  // namespace slackline
