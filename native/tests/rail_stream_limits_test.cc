// Tests of the limits that a stream rail sets on its queue and its socket.
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "../src/rail/stream.h"
#include "frames.h"

namespace slackline::test {
namespace {

// A frame of 20,000 bytes that a rail queues and never sends.
const wire::Header kWaiting = [] {
  wire::Header h = header_of(wire::FrameKind::kData);
  h.length = 20'000;
  return h;
}();

TEST("a socket may hold 4 ms of its rate unsent, from 128 KiB to 2 MiB") {
  CHECK_EQUAL(StreamRail::unsent_at(0), 128 << 10);
  CHECK_EQUAL(StreamRail::unsent_at(25'000'000), 128 << 10);  // 200 Mbit/s
  CHECK_EQUAL(StreamRail::unsent_at(125'000'000), 500'000);   // 1 Gbit/s
  CHECK_EQUAL(StreamRail::unsent_at(10'000'000'000), 2 << 20);
}

TEST("a slow socket may hold 1 ms of its rate unsent where urgent frames are expected") {
  CHECK_EQUAL(StreamRail::unsent_at(0, true), 16 << 10);
  CHECK_EQUAL(StreamRail::unsent_at(25'000'000, true), 25'000);    // 200 Mbit/s
  CHECK_EQUAL(StreamRail::unsent_at(62'500'000, true), 62'500);    // 500 Mbit/s
  CHECK_EQUAL(StreamRail::unsent_at(125'000'000, true), 500'000);  // 1 Gbit/s, as without them
  CHECK_EQUAL(StreamRail::unsent_at(10'000'000'000, true), 2 << 20);
}

TEST("a rail of unknown rate gives the socket little ahead while urgent frames are expected") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  CHECK_EQUAL(rail.unsent_limit(), 128 << 10);
  rail.enqueue(kWaiting, nullptr, kWaiting.length);
  CHECK(rail.room());
  rail.expect_urgent();
  CHECK_EQUAL(rail.unsent_limit(), 16 << 10);
  CHECK(!rail.room());
  ::close(theirs);
}

TEST("a rail to a process of the same host expects no urgent frames") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, false);
  rail.expect_urgent();
  rail.enqueue(kWaiting, nullptr, kWaiting.length);
  CHECK(rail.room());
  ::close(theirs);
}

TEST("the limit on unsent bytes follows the rate that TCP has seen") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  CHECK_EQUAL(rail.unsent_limit(), 128 << 10);
  const Bytes payload(100'000);
  Bytes read(1u << 20);
  std::int64_t now = 0;
  int most = 0;
  for (std::uint32_t number = 1; number < 2000; ++number) {
    wire::Header h = header_of(wire::FrameKind::kData);
    h.sequence = number;
    h.length = 100'000;
    rail.enqueue(h, payload.data(), h.length);
    rail.flush(now += 1'000'000);
    while (rail.blocked()) {
      CHECK(::recv(theirs, read.data(), read.size(), 0) > 0);
      rail.writable();
      rail.flush(now += 1'000'000);
    }
    most = std::max(most, rail.unsent_limit());
  }
  int limit = 0;
  socklen_t size = sizeof limit;
  CHECK(::getsockopt(ours, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &size) == 0);
  CHECK_EQUAL(limit, rail.unsent_limit());
  CHECK(most > 128 << 10);  // a loopback interface is faster than 200 Mbit/s
  ::close(theirs);
}

TEST("a rail whose socket is never full looks at its rate, too") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  rail.expect_urgent();
  CHECK_EQUAL(rail.unsent_limit(), 16 << 10);
  const Bytes payload(100);
  wire::Header h = header_of(wire::FrameKind::kData);
  h.length = 100;
  for (int second = 1; second <= 2; ++second) {  // the second look finds no urgent frame since
    rail.enqueue(h, payload.data(), h.length);
    rail.flush(second * 1'000'000'000ll);
    CHECK(!rail.blocked());
  }
  CHECK(rail.unsent_limit() >= 128 << 10);
  ::close(theirs);
}

TEST("a path is short where twice the bytes in flight fit into 256 KiB") {
  CHECK(!StreamRail::is_short(0, 100));              // no rate has been measured
  CHECK(!StreamRail::is_short(125'000'000, ~0u));    // no round trip has been measured
  CHECK(!StreamRail::is_short(4'294'967'298, ~0u));  // the product is 2^64 + 2^32 - 2
  CHECK(StreamRail::is_short(125'000'000, 100));     // 1 Gbit/s
  CHECK(StreamRail::is_short(125'000'000, 1'048));   // 131,000 bytes in flight
  CHECK(!StreamRail::is_short(125'000'000, 1'049));  // 131,125 bytes in flight
  CHECK(StreamRail::is_short(1'250'000'000, 104));   // 10 Gbit/s
  CHECK(!StreamRail::is_short(1'250'000'000, 105));
}

TEST("the send buffer is held on one host at once, to another host while the path is short") {
  const auto asked = [](int fd, int option) {
    int value = -1;
    socklen_t size = sizeof value;
    CHECK(::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0);
    return value;
  };
  const auto [near_fd, near_peer] = tcp_pair();
  const StreamRail near_rail(near_fd, kJobCode, false, false);
  CHECK_EQUAL(asked(near_fd, SO_SNDBUF), 256 << 10);
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  CHECK_EQUAL(asked(ours, SO_BUF_LOCK), 0);
  rail.limit_buffer(125'000'000, 100);
  CHECK_EQUAL(asked(ours, SO_SNDBUF), 256 << 10);
  CHECK(asked(ours, SO_BUF_LOCK) != 0);
  rail.limit_buffer(125'000'000, 10'000);
  CHECK_EQUAL(asked(ours, SO_BUF_LOCK), 0);
  ::close(near_peer);
  ::close(theirs);
}

TEST("a rate is the median of five samples, and a repeated sample is none") {
  MedianRate rate;
  CHECK_EQUAL(rate.value(), 0u);
  rate.note(0);
  CHECK_EQUAL(rate.value(), 0u);
  rate.note(30);
  CHECK_EQUAL(rate.value(), 30u);
  for (int i = 0; i < 9; ++i) rate.note(1'600);  // a burst that the kernel repeats
  CHECK_EQUAL(rate.value(), 30u);
  rate.note(29);
  CHECK_EQUAL(rate.value(), 30u);
  for (const std::uint64_t sample : {31u, 28u}) rate.note(sample);
  CHECK_EQUAL(rate.value(), 30u);  // of 30, 1600, 29, 31, 28
  for (const std::uint64_t sample : {120u, 121u, 122u}) rate.note(sample);
  CHECK_EQUAL(rate.value(), 120u);  // of 31, 28, 120, 121, 122
}

}  // namespace
}  // namespace slackline::test
