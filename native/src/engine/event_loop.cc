#include "event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <system_error>

#include "../base/descriptor.h"

namespace slackline {
namespace {

constexpr std::size_t kMostEvents = EventLoop::kMostEvents;
// epoll returns a number of 64 bits with each event: the number of the link in the low half, and
// the rail, or the mark of a control socket, in the high half.
constexpr std::uint64_t kDoorbellToken = ~std::uint64_t{0};
constexpr std::uint64_t kControlToken = std::uint64_t{1} << 62;
constexpr unsigned kRailShift = 32;

std::uint64_t rail_token(int link, int rail) {
  return static_cast<std::uint64_t>(link) | static_cast<std::uint64_t>(rail) << kRailShift;
}

LoopEvent event_of(const epoll_event& reported) {
  const std::uint64_t token = reported.data.u64;
  const bool readable = (reported.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0;
  const bool writable = (reported.events & ~static_cast<std::uint32_t>(EPOLLIN)) != 0;
  if (token == kDoorbellToken) return {LoopEvent::Source::kDoorbell, -1, -1, readable, writable};
  const int link = static_cast<int>(static_cast<std::uint32_t>(token));
  if ((token & kControlToken) != 0)
    return {LoopEvent::Source::kControl, link, -1, readable, writable};
  return {LoopEvent::Source::kRail, link, static_cast<int>(token >> kRailShift), readable,
          writable};
}

// epoll_wait with a limit in nanoseconds (Linux 5.11). The C library has it from glibc 2.35 on.
int epoll_wait_ns(int fd, epoll_event* events, int room, const timespec& left) {
  constexpr long kEpollPwait2 = 441;  // the same on every architecture
  return static_cast<int>(::syscall(kEpollPwait2, fd, events, room, &left, nullptr, 0));
}

// The pacing of UDP needs a finer resolution than the milliseconds of epoll_wait.
int wait_for_events(int fd, std::array<epoll_event, kMostEvents>& events, std::int64_t left_ns) {
  static const bool fine = [fd] {
    const timespec none{0, 0};
    epoll_event event{};
    return epoll_wait_ns(fd, &event, 1, none) >= 0;
  }();
  const int room = static_cast<int>(events.size());
  if (left_ns <= 0) return ::epoll_wait(fd, events.data(), room, left_ns < 0 ? -1 : 0);
  if (fine) {
    const timespec left{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    return epoll_wait_ns(fd, events.data(), room, left);
  }
  const std::int64_t ms = std::min<std::int64_t>((left_ns + 999'999) / 1'000'000, 1'000'000);
  return ::epoll_wait(fd, events.data(), room, static_cast<int>(ms));
}

}  // namespace

EventLoop::EventLoop()
    : doorbell_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      epoll_fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (doorbell_fd_ < 0 || epoll_fd_ < 0) {
    const int error = errno;
    for (const int fd : {doorbell_fd_, epoll_fd_}) {
      if (fd >= 0) ::close(fd);
    }
    throw std::system_error(error, std::generic_category(), "eventfd or epoll_create1");
  }
  watch(doorbell_fd_, kDoorbellToken, false);
}

EventLoop::~EventLoop() { leave_to_parent(); }

void EventLoop::leave_to_parent() {
  close_once(epoll_fd_);
  close_once(doorbell_fd_);
}

void EventLoop::watch(int fd, std::uint64_t token, bool room) {
  epoll_event event{};
  event.events = EPOLLIN | (room ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  event.data.u64 = token;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0 && errno == EEXIST)
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::watch_rail(int fd, int link, int rail) { watch(fd, rail_token(link, rail), false); }

void EventLoop::watch_room(int fd, int link, int rail, bool wanted) {
  epoll_event event{};
  event.events = EPOLLIN | (wanted ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  event.data.u64 = rail_token(link, rail);
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::watch_control(int fd, int link) {
  watch(fd, kControlToken | static_cast<std::uint64_t>(link), false);
}

void EventLoop::unwatch(int fd) { ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr); }

void EventLoop::ring() {
  const std::uint64_t one = 1;
  if (::write(doorbell_fd_, &one, sizeof one) < 0 && errno != EAGAIN) std::abort();
}

void EventLoop::silence() {
  std::uint64_t count = 0;
  while (::read(doorbell_fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

bool EventLoop::wait(std::vector<LoopEvent>& events, std::int64_t left_ns) {
  std::array<epoll_event, kMostEvents> reported;
  const int n = wait_for_events(epoll_fd_, reported, left_ns);
  events.clear();
  std::transform(reported.begin(), reported.begin() + std::max(n, 0), std::back_inserter(events),
                 event_of);
  return n != 0;
}

}  // namespace slackline
