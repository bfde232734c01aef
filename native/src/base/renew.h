// The replacement of locks in a process that was forked.
#pragma once

#include <new>

namespace slackline {

// Replace a mutex or condition variable by a new one, because at the fork another thread may have
// held it or waited for it.
template <typename T>
void renew(T& waited_for) {
  new (&waited_for) T;
}

}  // namespace slackline
