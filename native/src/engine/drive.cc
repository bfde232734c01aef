// Scheduling of the threads that drive the engine: waiting callers and the progress thread, and how
// both go to sleep.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "../base/clock.h"
#include "engine_impl.h"

namespace slackline {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kWatchNs = 5'000'000;
constexpr std::int64_t kDeadlineCheckNs = 10'000'000;
constexpr auto kStepAside = std::chrono::milliseconds(10);
// Time between two looks of a blocked thread at the program's signals.
constexpr std::int64_t kLookNs = 100'000'000;
// Number of rounds with progress after which a driving thread reads the clock for the next look.
constexpr unsigned kLookRounds = 256;
// A waiting caller that polls without a pause for longer than this lets other threads run.
constexpr std::int64_t kAloneNs = 2'000;
// How many times longer callers poll once their waits have ended soon after the polling.
constexpr std::int64_t kPatience = 4;

}  // namespace

// Ensure that some thread drives the engine. Called with the lock held, after work was posted.
void Engine::wake() {
  if (asleep_) {
    loop_.ring();
  } else {
    work_.notify_one();
  }
}

// Ensure that some thread drives the engine while `request`, which this thread has posted, is open.
// Called with the lock held. A sleeping thread learns of the request's frames from its peers, and
// need not wake for the request unless it must start it or would sleep past one of its timers.
void Engine::wake_for(const Request& request) {
  if (asleep_ && !operations_.any_queued() && !links_.any_dirty()) {
    const std::int64_t due = links_.due_ns(now_ns(), operations_.any_open());
    if (std::min(request.deadline_ns, due) >= asleep_until_) return;
  }
  wake();
}

void Engine::drain_dirty() {
  std::int64_t due = kForever;
  // Sending on one link may let other links send (by a freed slot or a finished operation).
  for (int rounds = 0; links_.any_dirty() && rounds < 64; ++rounds) {
    const std::vector<Link*>& links = links_.take_dirty();
    for (Link* link : links) link->transmit_queued();
    for (Link* link : links) link->flush();
    // A thread that queries epoll, or sleeps already, does not know that a socket has just become
    // full, so epoll must watch the socket from now on.
    if (asleep_ || links_.many_rails()) {
      for (const Link* link : links) links_.watch_room(*link);
    }
    if (asleep_) {
      for (const Link* link : links)
        due = std::min(due, Links::due_ns(*link, now_ns(), operations_.any_open()));
    }
  }
  // The sleeping thread knows only the timers that existed when it fell asleep.
  if (asleep_ && (links_.any_dirty() || due < asleep_until_)) loop_.ring();
}

bool Engine::poll_rail(Link& link, WireRail& wire) {
  const std::int64_t now = now_ns();
  if (!wire.poll(link, *this, now)) return false;
  link.last_heard_ns = now;
  links_.mark_dirty(link);  // there may be room now
  return true;
}

// Read from the rails that epoll reported, and send on rails that were full. Doorbell events and
// control sockets are left to sleep().
bool Engine::serve_events(std::span<const LoopEvent> events) {
  bool any = false;
  for (const LoopEvent& event : events) {
    if (event.source != LoopEvent::Source::kRail) continue;
    Link& link = links_.at(event.link);
    if (link.down) continue;
    LinkRail* rail = link.rail(event.rail);
    if (rail == nullptr) continue;
    if (event.writable) {
      rail->wire->writable();
      links_.mark_dirty(link);
    }
    if (event.readable) any = poll_rail(link, *rail->wire) || any;
  }
  return any;
}

bool Engine::poll_sockets() { return loop_.wait(polled_, 0) && serve_events(polled_); }

// Handle timers, full sockets and failures of a link's rails. With `poll`, also read from the
// rails.
bool Engine::serve_rails(Link& link, bool poll) {
  bool any = false;
  bool failed = false;
  for (auto& rail : link.rails()) {
    WireRail& wire = *rail->wire;
    if ((poll || wire.ending()) && !wire.failure()) any = poll_rail(link, wire) || any;
    if (wire.due_ns() != WireRail::kNever) {
      const std::int64_t now = now_ns();
      if (wire.due_ns() <= now) {
        wire.tick(now);
        links_.mark_dirty(link);
      }
    }
    if (poll && wire.blocked()) {
      wire.writable();
      links_.mark_dirty(link);
    }
    failed = failed || wire.failure();
  }
  if (failed && link.reap()) {
    link_lost(link);
    any = true;
  }
  return any;
}

bool Engine::progress() try {
  bool any = false;
  while (const std::shared_ptr<Request> request = operations_.take_queued()) {
    try {
      start(request);
    } catch (const std::exception& error) {
      broke_down(error);
      end_broken(*request);  // it may be in no table
    }
    any = true;
  }
  const bool ask_which = links_.many_rails();
  if (!woken_by_.empty()) {
    any = serve_events(woken_by_) || any;
    woken_by_.clear();
  } else if (ask_which) {
    any = poll_sockets() || any;
  }
  for (std::size_t i = 0; i < links_.made().size(); ++i) {
    Link& link = *links_.made()[i];
    if (link.down) continue;
    if (ShmRail* shm = link.shm()) {
      any = shm->poll(link, *this) || any;
      if (shm->take_room_again()) links_.mark_dirty(link);
      if (shm->holds_back() && shm->due_ns() <= now_ns()) {
        shm->tick(now_ns());
        links_.mark_dirty(link);
      }
      if (shm->failure() && link.reap()) link_lost(link);
      continue;
    }
    any = serve_rails(link, !ask_which) || any;
  }
  drain_dirty();
  const std::int64_t now = now_ns();
  if (now - last_watch_ > kWatchNs) watch_links(now);
  if (now - last_deadline_check_ > kDeadlineCheckNs) {
    last_deadline_check_ = now;
    check_deadlines(now);
    drain_dirty();
  }
  return any;
} catch (const std::exception& error) {
  broke_down(error);  // no caller could catch the exception on the progress thread
  return true;
}

void Engine::watch_links(std::int64_t now) {
  last_watch_ = now;
  end_told_losses(now);
  const bool asking = operations_.any_open();
  for (Link* link : links_.made()) {
    link->watch(now, asking);
    if (link->reap()) link_lost(*link);
  }
  if (asking) watch_aggregators(now);
  if (!lent_.empty()) lent_.collect();
  drain_dirty();
}

// Sleep until something happens or the time `until_ns` has passed. A failure of the engine, such as
// a lack of memory, fails all operations, as in progress().
void Engine::sleep(Lock& lock, std::int64_t until_ns) try {
  wait_for_events(lock, until_ns);
} catch (const std::exception& error) {
  if (!lock.owns_lock()) lock.lock();
  asleep_ = false;
  std::launder(reinterpret_cast<Doorbell*>(arena_.at(0)))->sleeping.store(0);
  broke_down(error);
}

void Engine::wait_for_events(Lock& lock, std::int64_t until_ns) {
  auto* doorbell = std::launder(reinterpret_cast<Doorbell*>(arena_.at(0)));
  doorbell->sleeping.store(1, std::memory_order_seq_cst);
  store_before_load();
  bool pending = operations_.any_queued() || links_.any_dirty() || stopped_;
  for (Link* link : links_.made()) {
    pending = pending || (!link->down && link->shm() != nullptr &&
                          (link->shm()->pending() || link->shm()->room_again()));
    links_.watch_room(*link);
    for (auto& rail : link->rails())
      pending = pending || rail->wire->failure() || rail->wire->ending();
  }
  if (pending) {
    doorbell->sleeping.store(0, std::memory_order_relaxed);
    return;
  }
  asleep_ = true;
  ++sleeps_;
  const std::int64_t now = now_ns();
  const std::int64_t until = std::min({until_ns, operations_.next_deadline_ns(), next_told_loss_ns_,
                                       links_.due_ns(now, operations_.any_open())});
  asleep_until_ = until;
  const std::int64_t left = until == kForever ? -1 : std::max<std::int64_t>(0, until - now);
  lock.unlock();
  const bool in_time = loop_.wait(slept_for_, left);
  lock.lock();
  asleep_ = false;
  doorbell->sleeping.store(0, std::memory_order_relaxed);
  if (!in_time) last_deadline_check_ = last_watch_ = 0;
  if (stopped_) return;
  for (const LoopEvent& event : slept_for_) {
    if (event.source == LoopEvent::Source::kDoorbell) {
      loop_.silence();
    } else if (event.source == LoopEvent::Source::kControl) {
      Link& link = links_.at(event.link);
      if (link.down) continue;  // another thread has noticed the peer's end meanwhile
      while (link.shm()->poll(link, *this)) {  // frames written before the peer's end come first
      }
      if (link.reap()) link_lost(link);
    }
  }
  woken_by_.swap(slept_for_);
}

void Engine::hand_over_lock(Lock& lock) {
  if (wanting_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  while (wanting_.load(std::memory_order_relaxed) > 0) ::sched_yield();
  lock.lock();
}

void Engine::drive(Lock& lock, Request& request, std::int64_t until_ns) {
  drive_until(lock, [&request] { return request.finished(); }, until_ns, request.deadline_ns);
}

void Engine::drive(Lock& lock, const CompletionQueue& queue, std::int64_t until_ns) {
  drive_until(lock, [&queue] { return !queue.empty(); }, until_ns, kForever);
}

// A thread that drives the engine in its own call, for as long as the object lives.
struct Engine::Driving {
  explicit Driving(Engine& driven) : engine(driven) {
    ++engine.callers_driving_;
    ++engine.inline_operations_;
  }
  ~Driving() {
    --engine.callers_driving_;
    if (engine.async_open_ > 0) engine.work_.notify_one();
    if (engine.waiters_ > 0) engine.finished_.notify_all();
  }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;
  Engine& engine;
};

void Engine::look_around(Lock& lock, std::int64_t now, std::int64_t& due_ns) const {
  if (options_.look == nullptr || now < due_ns) return;
  const bool due = due_ns != 0;
  due_ns = now + kLookNs;
  if (!due) return;
  lock.unlock();
  try {
    options_.look();
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
}

// Drive the engine until ended() is true or the time `until_ns` has passed. After `deadline_ns`
// return only when ended() is true, since the engine soon ends the awaited operation by a timeout.
template <class Ended>
void Engine::drive_until(Lock& lock, const Ended& ended, std::int64_t until_ns,
                         std::int64_t deadline_ns) {
  const Driving driving(*this);
  std::int64_t spin_since = 0, spin_until = 0, look_ns = 0;
  unsigned rounds = 0;
  while (!ended() && !stopped_) {
    const bool any = progress();
    if (ended()) break;
    hand_over_lock(lock);
    // Another thread may have held the lock meanwhile and ended the operation, for example by
    // delivering a device's answer or an abort.
    if (any || ended()) {
      spin_until = 0;
      if (++rounds % kLookRounds == 0) look_around(lock, now_ns(), look_ns);
      continue;
    }
    const std::int64_t now = now_ns();
    if (now >= until_ns && now < deadline_ns) break;
    // Data from another host takes longer than a thread should keep a processor busy, so do not
    // spin then.
    if (spin_until == 0) {
      spin_since = now;
      spin_until = now + (links_.far() ? 0 : spin_ns_);
    }
    if (now < spin_until) {
      lock.unlock();
      // The peer's process may be waiting for this processor core.
      if (now - spin_since > kAloneNs) ::sched_yield();
      lock.lock();
      continue;
    }
    spin_until = 0;
    look_around(lock, now, look_ns);
    if (ended() || stopped_) break;
    if (asleep_) {
      ++waiters_;
      finished_.wait_for(lock, kStepAside);
      --waiters_;
    } else {
      caller_asleep_ = true;
      sleep(lock, options_.look == nullptr ? until_ns : std::min(until_ns, look_ns));
      caller_asleep_ = false;
      note_pause(now_ns() - now);
    }
  }
}

// Learn from a caller's sleep how long callers should poll. A sleep costs tens of microseconds
// where the processor halts meanwhile, so polling is cheaper than a short sleep, but not than a
// long one.
void Engine::note_pause(std::int64_t slept_ns) {
  const std::int64_t least = std::int64_t{options_.spin_microseconds} * 1000;
  spin_ns_ = slept_ns < (kPatience - 1) * least ? kPatience * least : least;
}

void Engine::run() {
  Lock lock(mutex_);
  std::uint64_t seen = 0;
  while (!stopped_) {
    const bool any = progress();
    if (stopped_) break;
    if (callers_driving_ > 0) {
      if (waiters_ > 0) finished_.notify_all();
      work_.wait_for(lock, kStepAside);
      continue;
    }
    if (async_open_ == 0 && inline_operations_ != seen) {
      // Callers drove the engine a moment ago and probably will again, so the progress thread
      // leaves the lock to them.
      seen = inline_operations_;
      work_.wait_for(lock, kStepAside);
      continue;
    }
    hand_over_lock(lock);
    if (any) continue;
    if (asleep_) {
      work_.wait_for(lock, kStepAside);
    } else {
      sleep(lock, kForever);
    }
  }
}

}  // namespace slackline
