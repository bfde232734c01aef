#include "sleep.h"

#include <algorithm>
#include <limits>
#include <new>

namespace slackline {

Sleep::Sleep(Arena& arena) : doorbell_(new (arena.allocate(sizeof(Doorbell))) Doorbell) {
  doorbell_->sleeping.store(0);
  for (auto* events : {&ended_by_, &reported_}) events->reserve(EventLoop::kMostEvents);
}

void Sleep::announce() {
  doorbell_->sleeping.store(1, std::memory_order_seq_cst);
  store_before_load();
}

void Sleep::revoke() { doorbell_->sleeping.store(0, std::memory_order_relaxed); }

bool Sleep::wait(std::unique_lock<std::mutex>& lock, std::int64_t now_ns, std::int64_t until_ns) {
  asleep_ = true;
  ++count_;
  until_ns_ = until_ns;
  const bool for_ever = until_ns == std::numeric_limits<std::int64_t>::max();
  const std::int64_t left = for_ever ? -1 : std::max<std::int64_t>(0, until_ns - now_ns);
  lock.unlock();
  const bool in_time = loop_.wait(ended_by_, left);
  lock.lock();
  asleep_ = false;
  revoke();
  for (const LoopEvent& event : ended_by_) {
    if (event.source == LoopEvent::Source::kDoorbell) loop_.silence();
  }
  return in_time;
}

void Sleep::interrupted() noexcept {
  asleep_ = false;
  revoke();
}

}  // namespace slackline
