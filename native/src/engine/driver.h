// The threads that drive an engine: which of them works, and which sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "clock.h"
#include "slackline/engine.h"
#include "sleep.h"

namespace slackline {

// The work that a driver does again and again. All calls are made under the engine's lock.
class Driven {
 public:
  virtual ~Driven() = default;
  // Do all that can be done now. Return whether there was anything to do. Throws nothing.
  virtual bool work() noexcept = 0;
  // Return whether something was queued for the next work().
  virtual bool queued() const = 0;
  // Prepare for a sleep. Return false if something waits that would not end the sleep.
  virtual bool ready_to_sleep() = 0;
  // Return the time at which a rail needs work() even if no event comes.
  virtual std::int64_t timer_ns() const = 0;
  // Return the earliest time at which anything needs work() even if no event comes.
  virtual std::int64_t due_ns() const = 0;
  // Handle the end of a sleep, by its events or, without `in_time`, by its time.
  virtual void woken(bool in_time) = 0;
  // Return whether data has to come from another host.
  virtual bool far() const = 0;
  // Fail all operations after an exception outside of work().
  virtual void broke_down(const std::exception& error) noexcept = 0;
};

// The news of operations that the threads of an engine wait for.
class Bell {
 public:
  virtual ~Bell() = default;
  // Ensure that a thread works on what was queued under the lock.
  virtual void wake() = 0;
  // Tell the threads that an operation has ended. `unattended` means that no caller drove it.
  virtual void operation_ended(bool unattended) = 0;
  // Count one more operation that no caller drives.
  virtual void unattended() = 0;
};

// Callers that wait for an operation, and one progress thread, take turns in driving: the thread
// with the lock works, at most one thread sleeps in the event loop, and the others wait for them.
// See docs/design.md, "Who drives the engine".
class Driver final : public Bell {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Ended = std::function<bool()>;

  Driver(const EngineOptions& options, Clock& clock, Sleep& sleep, Driven& driven);
  // Start the progress thread if the options want one.
  void begin();

  // Take the lock for a call of any thread, and begin a step of the clock. The driving thread gives
  // way.
  Lock lock();
  // Take the lock for a thread that waits on a condition of its own.
  Lock lock_to_wait() { return Lock(mutex_); }
  // Return whether another thread waits for the lock.
  bool lock_wanted() const { return wanting_.load(std::memory_order_relaxed) > 0; }

  // --- under the lock ---
  void wake() override;
  // Do the same for work that is due at `due_ns`, or when a frame comes.
  void wake_before(std::int64_t due_ns);
  void operation_ended(bool unattended) override;
  void unattended() override { ++unattended_; }
  // Drive in the calling thread until ended() is true or the time `until_ns` has passed. After
  // `deadline_ns` return only when ended() is true: the awaited operation soon ends by a timeout.
  void drive(Lock& lock, const Ended& ended, std::int64_t until_ns, std::int64_t deadline_ns);
  // Drive until ended() is true or the time `until_ns` has passed, and look at ended() each
  // millisecond.
  void linger(Lock& lock, const Ended& ended, std::int64_t until_ns);
  // End all driving. stop() returns at once, join() when no thread drives any more.
  void stop();
  const bool& stopped() const { return stopped_; }
  void join();

  // --- for the handlers that run when the process forks ---
  void lock_for_fork();
  void unlock_after_fork() { mutex_.unlock(); }
  void leave_to_parent();

 private:
  struct Calling;
  // The threads that drive in calls of their own.
  struct Callers {
    int driving = 0;
    int waiting = 0;           // of them, those that wait for another one
    std::uint64_t calls = 0;   // so far
    bool one_asleep = false;   // the sleeping thread is a caller, not the progress thread
    std::int64_t spin_ns = 0;  // how long a caller polls before it sleeps
  };

  void run();
  void sleep(Lock& lock, std::int64_t until_ns);
  void hand_over(Lock& lock);
  void look_around(Lock& lock, std::int64_t now_ns, std::int64_t& due_ns) const;
  void note_pause(std::int64_t slept_ns);

  const EngineOptions& options_;
  Clock& clock_;
  Sleep& sleep_;
  Driven& driven_;
  std::mutex mutex_;
  std::condition_variable work_;   // signals the progress thread
  std::condition_variable ended_;  // signals callers
  // The number of threads that want the lock; the driving thread releases it for them.
  std::atomic<int> wanting_{0};
  Callers callers_;
  std::size_t unattended_ = 0;  // open operations that no caller drives
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace slackline
