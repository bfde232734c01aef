#include "entry.h"

#include <pthread.h>

#include <mutex>
#include <set>
#include <system_error>

#include "../base/renew.h"
#include "offload.h"

namespace slackline {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<Entry*> entries;
};

Registry& registry() {
  static auto* made = new Registry;  // must outlive all static objects that use it
  return *made;
}

// Lock every engine, so that none is in the middle of a change when the process is copied.
void before_fork() {
  registry().mutex.lock();
  for (Entry* entry : registry().entries) entry->lock_for_fork();
}

void in_parent() {
  for (Entry* entry : registry().entries) entry->unlock_after_fork();
  registry().mutex.unlock();
}

void in_child() {
  for (Entry* entry : registry().entries) entry->leave_to_parent();
  renew(registry().mutex);
}

}  // namespace

Entry::Entry(Machine& entered) : machine(entered) {
  static const int watched = ::pthread_atfork(&before_fork, &in_parent, &in_child);
  if (watched != 0) throw std::system_error(watched, std::generic_category(), "pthread_atfork");
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().entries.insert(this);
}

Entry::~Entry() {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().entries.erase(this);
}

Driver::Lock Entry::lock() const {
  check_process();
  return machine.driver().lock();
}

Driver::Lock Entry::lock_to_wait() const {
  check_process();
  return machine.driver().lock_to_wait();
}

void Entry::check_process() const {
  if (elsewhere_)
    throw Elsewhere(
        "this process was forked from the one whose engine it is: start processes that use "
        "slackline by spawn, or open their groups after the fork");
}

void Entry::lock_for_fork() {
  machine.driver().lock_for_fork();
  machine.tables().completions.lock();
}

void Entry::unlock_after_fork() {
  machine.tables().completions.unlock();
  machine.driver().unlock_after_fork();
}

void Entry::leave_to_parent() {
  elsewhere_ = true;
  machine.driver().leave_to_parent();
  machine.tables().completions.leave_to_parent();
  for (const auto& [epoch, group] : machine.tables().membership.groups()) {
    if (group->device) group->device->leave_to_parent();
  }
  machine.links().leave_to_parent();
  machine.sleep().loop().leave_to_parent();
  machine.memory().arena().leave_to_parent();
}

}  // namespace slackline
