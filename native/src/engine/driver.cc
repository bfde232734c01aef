#include "driver.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>

#include "../base/renew.h"

namespace slackline {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr auto kStepAside = std::chrono::milliseconds(10);
constexpr auto kLingerStep = std::chrono::milliseconds(1);
constexpr std::int64_t kLingerNs = 1'000'000;
// Time between two looks of a blocked thread at the program's signals.
constexpr std::int64_t kLookNs = 100'000'000;
// Number of rounds with progress after which a driving thread reads the clock for the next look.
constexpr unsigned kLookRounds = 256;
// A waiting caller that polls without a pause for longer than this lets other threads run.
constexpr std::int64_t kAloneNs = 2'000;
// How many times longer callers poll once their waits have ended soon after the polling.
constexpr std::int64_t kPatience = 4;

std::int64_t least_spin_ns(const EngineOptions& options) {
  return std::int64_t{options.spin_microseconds} * 1000;
}

}  // namespace

Driver::Driver(const EngineOptions& options, Clock& clock, Sleep& sleep, Driven& driven)
    : options_(options), clock_(clock), sleep_(sleep), driven_(driven) {
  callers_.spin_ns = least_spin_ns(options);
}

void Driver::begin() {
  if (options_.progress_thread) thread_ = std::thread([this] { run(); });
}

Driver::Lock Driver::lock() {
  wanting_.fetch_add(1, std::memory_order_relaxed);
  Lock lock(mutex_);
  wanting_.fetch_sub(1, std::memory_order_relaxed);
  clock_.begin_step();
  return lock;
}

void Driver::wake() {
  if (sleep_.asleep()) {
    sleep_.loop().ring();
  } else {
    work_.notify_one();
  }
}

// A sleeping thread learns of an operation's frames from the peers, and need not wake for the
// operation unless it must start it or would sleep past one of its timers.
void Driver::wake_before(std::int64_t due_ns) {
  if (sleep_.asleep() && !driven_.queued() &&
      std::min(due_ns, driven_.timer_ns()) >= sleep_.until_ns())
    return;
  wake();
}

void Driver::operation_ended(bool unattended) {
  if (unattended) --unattended_;
  if (callers_.waiting > 0) ended_.notify_all();
  if (callers_.one_asleep) sleep_.loop().ring();  // it may wait for this operation
}

// Sleep until something happens or the time `until_ns` has passed. A failure in the middle, such as
// a lack of memory, fails all operations.
void Driver::sleep(Lock& lock, std::int64_t until_ns) try {
  sleep_.announce();
  if (stopped_ || !driven_.ready_to_sleep()) return sleep_.revoke();
  const std::int64_t now = clock_.next();
  const bool in_time = sleep_.wait(lock, now, std::min(until_ns, driven_.due_ns()));
  clock_.begin_step();
  if (!stopped_) driven_.woken(in_time);
} catch (const std::exception& error) {
  if (!lock.owns_lock()) lock.lock();
  sleep_.interrupted();
  driven_.broke_down(error);
}

void Driver::hand_over(Lock& lock) {
  if (!lock_wanted()) return;
  lock.unlock();
  while (lock_wanted()) ::sched_yield();
  lock.lock();
}

// A thread that drives in its own call, for as long as the object lives.
struct Driver::Calling {
  explicit Calling(Driver& entered) : driver(entered) {
    ++driver.callers_.driving;
    ++driver.callers_.calls;
  }
  ~Calling() {
    --driver.callers_.driving;
    if (driver.unattended_ > 0) driver.work_.notify_one();
    if (driver.callers_.waiting > 0) driver.ended_.notify_all();
  }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;
  Driver& driver;
};

// Call `look` of the options without the lock if it is due. `due_ns`, 0 at the first call, is the
// time of the next look.
void Driver::look_around(Lock& lock, std::int64_t now_ns, std::int64_t& due_ns) const {
  if (options_.look == nullptr || now_ns < due_ns) return;
  const bool due = due_ns != 0;
  due_ns = now_ns + kLookNs;
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

void Driver::drive(Lock& lock, const Ended& ended, std::int64_t until_ns,
                   std::int64_t deadline_ns) {
  const Calling calling(*this);
  std::int64_t spin_since = 0, spin_until = 0, look_ns = 0;
  unsigned rounds = 0;
  while (!ended() && !stopped_) {
    const bool any = driven_.work();
    if (ended()) break;
    hand_over(lock);
    // Another thread may have held the lock meanwhile and ended the operation, for example by
    // delivering a device's answer or an abort.
    if (any || ended()) {
      spin_until = 0;
      if (++rounds % kLookRounds == 0) look_around(lock, clock_.next(), look_ns);
      continue;
    }
    const std::int64_t now = clock_.next();
    if (now >= until_ns && now < deadline_ns) break;
    // Data from another host takes longer than a thread should keep a processor busy, so do not
    // spin then.
    if (spin_until == 0) {
      spin_since = now;
      spin_until = now + (driven_.far() ? 0 : callers_.spin_ns);
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
    if (sleep_.asleep()) {
      ++callers_.waiting;
      ended_.wait_for(lock, kStepAside);
      --callers_.waiting;
    } else {
      callers_.one_asleep = true;
      sleep(lock, options_.look == nullptr ? until_ns : std::min(until_ns, look_ns));
      callers_.one_asleep = false;
      note_pause(clock_.next() - now);
    }
  }
}

void Driver::linger(Lock& lock, const Ended& ended, std::int64_t until_ns) {
  std::int64_t look_ns = 0;
  for (std::int64_t now = clock_.next(); now < until_ns && !ended(); now = clock_.next()) {
    look_around(lock, now, look_ns);
    if (driven_.work()) {
      hand_over(lock);
    } else if (sleep_.asleep()) {
      ended_.wait_for(lock, kLingerStep);  // the sleeping thread watches the links
    } else {
      sleep(lock, std::min(until_ns, now + kLingerNs));
    }
  }
}

// Learn from a caller's sleep how long callers should poll. A sleep costs tens of microseconds
// where the processor halts meanwhile, so polling is cheaper than a short sleep, but not than a
// long one.
void Driver::note_pause(std::int64_t slept_ns) {
  const std::int64_t least = least_spin_ns(options_);
  callers_.spin_ns = slept_ns < (kPatience - 1) * least ? kPatience * least : least;
}

void Driver::run() {
  Lock lock(mutex_);
  std::uint64_t seen = 0;
  while (!stopped_) {
    const bool any = driven_.work();
    if (stopped_) break;
    if (callers_.driving > 0) {
      if (callers_.waiting > 0) ended_.notify_all();
      work_.wait_for(lock, kStepAside);
      continue;
    }
    if (unattended_ == 0 && callers_.calls != seen) {
      // Callers drove the engine a moment ago and probably will again, so the progress thread
      // leaves the lock to them.
      seen = callers_.calls;
      work_.wait_for(lock, kStepAside);
      continue;
    }
    hand_over(lock);
    if (any) continue;
    if (sleep_.asleep()) {
      work_.wait_for(lock, kStepAside);
    } else {
      sleep(lock, kForever);
    }
  }
}

void Driver::stop() {
  stopped_ = true;
  work_.notify_all();
  ended_.notify_all();
  sleep_.loop().ring();
}

void Driver::join() {
  if (thread_.joinable()) thread_.join();
  Lock lock(mutex_);
  while (callers_.driving > 0) {  // waiting callers find their operations finished once they wake
    sleep_.loop().ring();
    ended_.notify_all();
    ended_.wait_for(lock, kLingerStep);
  }
}

void Driver::lock_for_fork() {
  wanting_.fetch_add(1, std::memory_order_relaxed);
  mutex_.lock();
  wanting_.fetch_sub(1, std::memory_order_relaxed);
}

void Driver::leave_to_parent() {
  renew(mutex_);
  for (std::condition_variable* each : {&work_, &ended_}) renew(*each);
  if (thread_.joinable()) thread_.detach();
}

}  // namespace slackline
