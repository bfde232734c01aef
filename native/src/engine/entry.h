// The way of a call into an engine.
#pragma once

#include <new>
#include <stdexcept>

#include "driver.h"
#include "machine.h"

namespace slackline {

// The error of a process that was forked from the engine's own process and then used the engine.
struct Elsewhere : std::logic_error {
  using std::logic_error::logic_error;
};

// The lock of an engine as its public calls take it. An entry is registered for the handlers that
// run when the process forks, since a forked process has a copy of every engine but none of its
// threads.
class Entry {
 public:
  explicit Entry(Machine& entered);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Take the lock. Throws Elsewhere.
  Driver::Lock lock() const;
  // Take the lock for a thread that waits on a condition of its own. Throws Elsewhere.
  Driver::Lock lock_to_wait() const;
  // Throws Elsewhere in a process that was forked from the engine's own.
  void check_process() const;
  bool elsewhere() const { return elsewhere_; }
  // Make a change, under the lock, that a caller has asked for. Without memory in its middle the
  // change is half done, so the engine fails; the exception goes on to the caller.
  template <class Change>
  void change(const Change& make) const {
    try {
      make();
    } catch (const std::bad_alloc& error) {
      machine.endings().broke_down(error);
      throw;
    }
  }

  // --- for the handlers that run when the process forks ---
  void lock_for_fork();
  void unlock_after_fork();
  // Disable the engine in a forked child: its actions on sockets and shared memory would affect the
  // parent. The copy's descriptors are closed, because a connection ends only with its last
  // descriptor: peers of a parent that was killed would otherwise wait for the end of the child.
  void leave_to_parent();

  Machine& machine;

 private:
  bool elsewhere_ = false;  // set in a forked child before its own code runs
};

}  // namespace slackline
