// The descriptors that the sleeping thread of an engine waits for: sockets, and one doorbell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace slackline {

// An event of one descriptor. The end of a connection and an error count as readable and as
// writable, because both calls report the error.
struct LoopEvent {
  enum class Source : std::uint8_t { kDoorbell, kRail, kControl };
  Source source;
  int link;  // number of the link; -1 for the doorbell
  int rail;  // index of the rail; -1 for other sources
  bool readable;
  bool writable;
  bool operator==(const LoopEvent&) const = default;
};

// A set of watched descriptors. ring() may be called from any thread, and wait() by several threads
// at a time. The caller owns the sockets, and calls unwatch() before it closes one.
class EventLoop {
 public:
  static constexpr std::size_t kMostEvents = 32;  // of one wait()

  EventLoop();  // throws std::system_error
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Return the eventfd to which peers in other processes write.
  int doorbell_fd() const { return doorbell_fd_; }
  // Close the descriptors in a forked child. Nothing is unwatched there, because the parent's event
  // loop is the same object of the kernel.
  void leave_to_parent();
  // Watch a rail's socket for data. Until watch_room() a wait does not end when the socket has
  // room.
  void watch_rail(int fd, int link, int rail);
  // Begin, or with `wanted` false stop, to watch for room in a rail's socket.
  void watch_room(int fd, int link, int rail, bool wanted);
  // Watch the socket whose end shows the end of a process that shares memory with this one.
  void watch_control(int fd, int link);
  void unwatch(int fd);

  // End every present wait(), and each later one until silence().
  void ring();
  void silence();
  // Wait for at most `left_ns` nanoseconds, or without limit if `left_ns` is negative, and store
  // the events of at most kMostEvents descriptors. Return false when the time has passed without an
  // event. A signal ends the wait without an event. Takes no memory if `events` has room for all.
  bool wait(std::vector<LoopEvent>& events, std::int64_t left_ns);

 private:
  void watch(int fd, std::uint64_t token, bool room);

  int doorbell_fd_;
  int epoll_fd_;
};

}  // namespace slackline
