// Waits for a condition variable without a limit.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <mutex>

namespace slackline {

// Block until the condition variable is notified; the lock is open meanwhile.
//
// std::condition_variable::wait makes the same call, but in gcc 12 it is a function of libstdc++
// that older systems lack (GLIBCXX_3.4.30): a wheel with it does not install where the C library is
// older than 2.35.
inline void wait_on(std::condition_variable& condition, std::unique_lock<std::mutex>& lock) {
  ::pthread_cond_wait(condition.native_handle(), lock.mutex()->native_handle());
}

// Block until the predicate is true; it is called with the lock held.
template <typename Predicate>
void wait_on(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
             Predicate is_over) {
  while (!is_over()) wait_on(condition, lock);
}

}  // namespace slackline
