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
  check_process();
  return completions_.next();
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
    try {
      drive(lock, queue, later(queue.waiting_since_ns, timeout_ns));
    } catch (...) {
      queue.waiting_since_ns = 0;
      throw;
    }
    queue.waiting_since_ns = 0;
  }
  return queue.take();
}

}  // namespace slackline
