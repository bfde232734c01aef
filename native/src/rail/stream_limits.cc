// How many bytes a stream rail keeps in its queue and in its socket, by the rate that TCP measures.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

#include "stream.h"

namespace slackline {
namespace {

// Time between two queries of the connection's rate. Each query is a system call, and the rate
// changes only over round trips.
constexpr std::int64_t kRateNs = 20'000'000;
// A socket holds a send buffer to twice the length that it is asked for.
constexpr int kKernelDoubles = 2;
#ifndef SO_BUF_LOCK
constexpr int SO_BUF_LOCK = 72;
#endif
constexpr int kNothingLocked = 0;
// The length of the send buffer of a long path before Linux 5.15, where a buffer that was held once
// is not left to the kernel again.
constexpr int kLongBuffer = 4 << 20;

}  // namespace

void StreamRail::begin_limits() {
  if (!far_) return hold_buffer();
  queue_bytes_ = kFarQueueBytes;
  keep_back();
}

void StreamRail::keep_back() {
  keeps_back_ = true;
  limit_unsent(kLeastUnsent);
}

void StreamRail::limit_unsent(int bytes) {
  unsent_limit_ = bytes;
  // Stream sockets other than TCP refuse the option, but their buffers are short.
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

int StreamRail::unsent_at(std::uint64_t bytes_per_second, bool urgent_expected) {
  if (urgent_expected && bytes_per_second <= kMostBriefRate)
    return std::max(static_cast<int>(bytes_per_second / kBriefUnsentShare), kLeastBriefUnsent);
  return static_cast<int>(
      std::clamp<std::uint64_t>(bytes_per_second / kUnsentShare, kLeastUnsent, kMostUnsent));
}

std::size_t StreamRail::queue_at(std::uint64_t bytes_per_second, bool urgent_expected) {
  const bool brief = urgent_expected && bytes_per_second <= kMostBriefRate;
  return brief ? kBriefQueueBytes : kFarQueueBytes;
}

void StreamRail::expect_urgent() {
  expected_lately_ = true;
  if (urgent_expected_ || !far_) return;
  urgent_expected_ = true;
  limit_ahead();
}

// Apply the limits of the queue and of the socket that the rate and the expected frames ask for. A
// change of less than a quarter is not worth a system call.
void StreamRail::limit_ahead() {
  const std::uint64_t rate = rate_.value();
  if (far_) queue_bytes_ = queue_at(rate, urgent_expected_);
  const int wanted = unsent_at(rate, urgent_expected_);
  if (std::abs(wanted - unsent_limit_) * 4 >= unsent_limit_) limit_unsent(wanted);
}

// Set how many unsent bytes the socket may hold, according to the rate that TCP has measured. The
// socket need not be full: one with too high a limit never is.
void StreamRail::follow_rate(std::int64_t now_ns) {
  if (!keeps_back_ || now_ns < rate_due_ns_) return;
  rate_due_ns_ = now_ns + kRateNs;
  tcp_info info{};
  socklen_t size = sizeof info;
  ++counters_.system_calls;
  if (::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  rate_.note(info.tcpi_delivery_rate);
  if (far_) limit_buffer(rate_.value(), info.tcpi_min_rtt);
  urgent_expected_ = far_ && expected_lately_;
  expected_lately_ = false;
  limit_ahead();
}

bool StreamRail::is_short(std::uint64_t bytes_per_second, std::uint32_t shortest_round_trip_us) {
  // The rate is the divisor, since its product with an unknown round trip (~0) may overflow.
  return bytes_per_second > 0 &&
         shortest_round_trip_us <= kHeldBuffer * std::uint64_t{500'000} / bytes_per_second;
}

void StreamRail::limit_buffer(std::uint64_t bytes_per_second,
                              std::uint32_t shortest_round_trip_us) {
  const bool hold = is_short(bytes_per_second, shortest_round_trip_us);
  if (hold == holds_buffer_) return;
  if (hold) return hold_buffer();
  holds_buffer_ = false;
  if (::setsockopt(fd_, SOL_SOCKET, SO_BUF_LOCK, &kNothingLocked, sizeof kNothingLocked) != 0)
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &kLongBuffer, sizeof kLongBuffer);
}

void StreamRail::hold_buffer() {
  holds_buffer_ = true;
  const int half = kHeldBuffer / kKernelDoubles;
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
}

}  // namespace slackline
