#include "switch.h"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "../base/clock.h"

namespace slackline::lab {
namespace {

constexpr std::size_t kBufferBytes = kHeadBytes + 4 + (64u << 10);

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Switch::Switch(int hosts, int nics, std::uint64_t rate)
    : fabric_(hosts, nics, rate, *this),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)),
      wake_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (wake_fd_ < 0) fail("eventfd");
  taps_.reserve(static_cast<std::size_t>(hosts) * nics);
}

Switch::~Switch() { ::close(wake_fd_); }

void Switch::add_nic(const std::string& namespace_path, const std::string& name) {
  taps_.emplace_back(namespace_path, name);
}

void Switch::run() {
  // Set the timer slack of this thread to 1 ns, so that it wakes when a frame is due and not 50 us
  // later.
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  polled_.clear();
  polled_.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
  for (const Tap& tap : taps_) polled_.push_back({.fd = tap.fd(), .events = POLLIN, .revents = 0});
  while (!stopped_.load(std::memory_order_acquire)) {
    std::int64_t due_ns;
    {
      const std::lock_guard lock(mutex_);
      fabric_.release(now_ns());
      due_ns = fabric_.due_ns();
    }
    timespec left{};
    if (due_ns != kNever) {
      const std::int64_t left_ns = std::max<std::int64_t>(0, due_ns - now_ns());
      left = {.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
    }
    const int ready =
        ::ppoll(polled_.data(), polled_.size(), due_ns == kNever ? nullptr : &left, nullptr);
    if (ready < 0 && errno != EINTR) fail("ppoll");
    if (ready <= 0) continue;
    for (std::size_t i = 0; i < taps_.size(); ++i)
      if (polled_[i + 1].revents != 0 && !drain(i)) return;
    if (polled_[0].revents != 0) {
      std::uint64_t count;
      if (::read(wake_fd_, &count, sizeof count) < 0 && errno != EAGAIN) fail("eventfd");
    }
  }
}

// Read a bounded number of frames that a host has sent. Return false when its namespace has gone.
bool Switch::drain(std::size_t nic) {
  const std::lock_guard lock(mutex_);
  for (int count = 0; count < kFramesPerTurn; ++count) {
    const std::int64_t got = taps_[nic].read({buffer_.get(), kBufferBytes});
    if (got < 0) return false;
    if (got == 0) return true;
    const std::int64_t now = now_ns();
    const auto nics = static_cast<std::size_t>(fabric_.nics());
    fabric_.arrive(now, static_cast<int>(nic / nics), static_cast<int>(nic % nics),
                   {buffer_.get(), static_cast<std::size_t>(got)});
    if (fabric_.due_ns() <= now) fabric_.release(now);
  }
  return true;
}

void Switch::deliver(int host, int nic, ConstFrame frame) {
  if (!taps_[index(host, nic)].write(frame)) refused_.fetch_add(1, std::memory_order_relaxed);
}

void Switch::stop() {
  stopped_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  if (::write(wake_fd_, &one, sizeof one) < 0 && errno != EAGAIN) fail("eventfd");
}

void Switch::apply(const std::vector<PathFault>& paths, const std::vector<PortFault>& ports) {
  const std::lock_guard lock(mutex_);
  fabric_.apply(paths, ports);
  for (int host = 0; host < fabric_.hosts(); ++host) {
    for (int nic = 0; nic < fabric_.nics(); ++nic) {
      Tap& tap = taps_[index(host, nic)];
      tap.offload(!fabric_.single(host, nic));
      tap.carrier(!fabric_.down(host, nic));
    }
  }
}

std::vector<PathCounters> Switch::counters() {
  const std::lock_guard lock(mutex_);
  return fabric_.counters();
}

}  // namespace slackline::lab
