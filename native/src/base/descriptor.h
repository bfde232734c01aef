// The end of a file descriptor that an object owns.
#pragma once

#include <unistd.h>

#include <utility>

namespace slackline {

// Close the descriptor and set it to -1; do nothing if it is -1. May be called in a forked child
// of a process with several threads.
inline void close_once(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

}  // namespace slackline
