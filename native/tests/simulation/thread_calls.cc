// The engine's calls for threads, mutexes and condition variables, in a simulation; see
// system_calls.cc.
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "system.h"

using slackline::simulation::Fiber;
using slackline::simulation::kMicrosecond;
using slackline::simulation::kNever;
using slackline::simulation::System;

namespace {

struct ThreadEnd {
  bool ended = false;
};
std::map<std::uint64_t, std::shared_ptr<ThreadEnd>>& engine_threads() {
  static std::map<std::uint64_t, std::shared_ptr<ThreadEnd>> threads;
  return threads;
}

bool simulates() { return System::current() != nullptr; }

}  // namespace

extern "C" {

int __real_sched_yield();
int __wrap_sched_yield() {
  if (!simulates()) return __real_sched_yield();
  System::current()->pass(kMicrosecond);
  System::current()->preempt(100);
  return 0;
}

// A thread that is preempted may own a mutex; others wait for it by their turns.
int __real_pthread_mutex_lock(pthread_mutex_t*);
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (!simulates() || Fiber::current() == nullptr) return __real_pthread_mutex_lock(mutex);
  int error = 0;
  while ((error = ::pthread_mutex_trylock(mutex)) == EBUSY)
    System::current()->wait_for_mutex(mutex);
  return error;
}

int __real_pthread_mutex_unlock(pthread_mutex_t*);
int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  const int error = __real_pthread_mutex_unlock(mutex);
  if (simulates() && System::current()->manners().preempts) System::current()->notify(mutex, true);
  return error;
}

int __real_pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until) {
  System* system = System::current();
  if (system == nullptr) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  const std::int64_t offset = system->clock_ns() - system->now_ns();
  const std::int64_t until_ns =
      until->tv_sec * std::int64_t{1'000'000'000} + until->tv_nsec - offset;
  ::pthread_mutex_unlock(mutex);
  bool noticed = false;
  try {
    noticed = system->wait_for_notice(condition, until_ns);
  } catch (...) {
    ::pthread_mutex_lock(mutex);
    throw;
  }
  ::pthread_mutex_lock(mutex);
  return noticed ? 0 : ETIMEDOUT;
}

int __real_pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*);
int __wrap_pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  System* system = System::current();
  if (system == nullptr) return __real_pthread_cond_wait(condition, mutex);
  ::pthread_mutex_unlock(mutex);
  try {
    system->wait_for_notice(condition, kNever);
  } catch (...) {
    ::pthread_mutex_lock(mutex);
    throw;
  }
  ::pthread_mutex_lock(mutex);
  return 0;
}

// std::condition_variable::notify_one() and notify_all()
void __real__ZNSt18condition_variable10notify_oneEv(std::condition_variable*);
void __wrap__ZNSt18condition_variable10notify_oneEv(std::condition_variable* condition) {
  System* system = System::current();
  if (system == nullptr) return __real__ZNSt18condition_variable10notify_oneEv(condition);
  system->notify(condition->native_handle(), false);
}
void __real__ZNSt18condition_variable10notify_allEv(std::condition_variable*);
void __wrap__ZNSt18condition_variable10notify_allEv(std::condition_variable* condition) {
  System* system = System::current();
  if (system == nullptr) return __real__ZNSt18condition_variable10notify_allEv(condition);
  system->notify(condition->native_handle(), true);
}

// std::thread::_M_start_thread(std::thread::_State_ptr, void (*)()): the engine's own thread.
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* thread, std::thread::_State_ptr state, void (*)()) {
  static std::uint64_t made = 0;
  const std::uint64_t number = ++made;
  std::memcpy(static_cast<void*>(thread), &number, sizeof number);
  auto end = std::make_shared<ThreadEnd>();
  engine_threads()[number] = end;
  System& system = *System::current();
  system.start(
      system.process(),
      [state = std::shared_ptr<std::thread::_State>(std::move(state)), end] {
        struct AtEnd {
          ThreadEnd& end;
          ~AtEnd() { end.ended = true; }
        } at_end{*end};
        state->_M_run();
      },
      true);
}

// std::thread::join()
void __wrap__ZNSt6thread4joinEv(std::thread* thread) {
  std::uint64_t number = 0;
  std::memcpy(&number, static_cast<void*>(thread), sizeof number);
  const std::shared_ptr<ThreadEnd> end = engine_threads().at(number);
  System& system = *System::current();
  if (Fiber::current() != nullptr)
    system.wait([&] { return end->ended ? system.now_ns() : kNever; }, kNever);
  engine_threads().erase(number);
  number = 0;
  std::memcpy(static_cast<void*>(thread), &number, sizeof number);
}

}  // extern "C"
