// Fork safety. A forked process has a copy of every engine but none of the engine's threads. The
// copy must not act, because its actions on sockets and shared memory would affect the parent. The
// copy's descriptors are closed, because a connection ends only with its last descriptor: peers of
// a parent that was killed would otherwise wait for the end of the child.
#include <pthread.h>

#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "../base/renew.h"
#include "engine_impl.h"

namespace slackline {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<Engine*> engines;
};

Registry& registry() {
  static auto* made = new Registry;  // must outlive all static objects that use it
  return *made;
}

}  // namespace

// The handlers that pthread_atfork calls.
struct Forks {
  // Lock every engine, so that none is in the middle of a change when the process is copied.
  static void prepare() {
    registry().mutex.lock();
    for (Engine* engine : registry().engines) {
      engine->wanting_.fetch_add(1, std::memory_order_relaxed);
      engine->mutex_.lock();
      engine->wanting_.fetch_sub(1, std::memory_order_relaxed);
      engine->completions_.lock();
    }
  }
  static void parent() {
    for (Engine* engine : registry().engines) {
      engine->completions_.unlock();
      engine->mutex_.unlock();
    }
    registry().mutex.unlock();
  }
  static void child() {
    for (Engine* engine : registry().engines) engine->leave_to_parent();
    renew(registry().mutex);
  }
};

void Engine::register_at_fork() {
  static const int watched = ::pthread_atfork(&Forks::prepare, &Forks::parent, &Forks::child);
  if (watched != 0) throw std::system_error(watched, std::generic_category(), "pthread_atfork");
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().engines.insert(this);
}

void Engine::unregister_at_fork() {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().engines.erase(this);
}

void Engine::leave_to_parent() {
  elsewhere_ = true;
  renew(mutex_);
  for (std::condition_variable* each : {&work_, &finished_}) renew(*each);
  completions_.leave_to_parent();
  for (const auto& [epoch, group] : membership_.groups()) {
    if (group->device) group->device->leave_to_parent();
  }
  if (thread_.joinable()) thread_.detach();
  links_.leave_to_parent();
  loop_.leave_to_parent();
  arena_.leave_to_parent();
}

void Engine::check_process() const {
  if (elsewhere_)
    throw Elsewhere(
        "this process was forked from the one whose engine it is: start processes that use "
        "slackline by spawn, or open their groups after the fork");
}

}  // namespace slackline
