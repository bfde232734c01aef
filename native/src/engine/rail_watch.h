// The sockets of an engine's links that its event loop watches.
#pragma once

#include <cstdint>

#include "sleep.h"

namespace slackline {

class Link;
class WireRail;

// All calls are made under the engine's lock.
class RailWatch {
 public:
  explicit RailWatch(Sleep& sleep) : sleep_(sleep) {}

  // Watch the socket of a new rail.
  void add(const Link& link, int rail, const WireRail& wire);
  // Stop watching the socket of a rail that ends.
  void remove(const WireRail& wire);
  // Watch for the end of the process that shares memory with this one, by this socket.
  void add_process(const Link& link, int fd);
  void remove_process(int fd) { sleep_.loop().unwatch(fd); }
  // Watch for room in the socket of a rail if it is full, and only then.
  void watch_room(const Link& link, int rail, WireRail& wire);
  // Return whether a rail leads to another host.
  bool far() const { return far_rails_ > 0; }
  // Return whether one question to the event loop is cheaper than a read of each socket.
  bool many_rails() const { return rails_ > kFewRails; }
  // Return the time in nanoseconds between two probes of a rail. An engine with many rails probes
  // each less often, so that the number of probes does not grow with the ranks.
  std::int64_t probe_pause_ns() const;

 private:
  static constexpr int kFewRails = 2;

  Sleep& sleep_;
  int rails_ = 0, far_rails_ = 0;
};

}  // namespace slackline
