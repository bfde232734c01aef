#include <array>
#include <cstdio>

#include "udp_sockets.h"

namespace slackline::test {
namespace {

std::uint32_t mixed_length(std::uint32_t sequence) {
  constexpr std::uint32_t lengths[] = {262'144, 0,      1,      64,        1384,
                                       1385,    70'000, 16'384, 1'048'576, 3000};
  return lengths[sequence % 10];
}

void exchange(std::size_t most_packet_bytes) {
  const auto [x, y] = udp_pair();
  UdpEnd a(x, most_packet_bytes), b(y, most_packet_bytes);
  for (UdpEnd* end : {&a, &b}) {
    end->last = 400;
    end->length = mixed_length;
  }
  until(
      [&] {
        a.work();
        b.work();
        return a.sink.seen.size() == 400 && b.sink.seen.size() == 400 &&
               !a.rail->confirmation(0).in_flight && !b.rail->confirmation(0).in_flight;
      },
      "the frames");
  for (UdpEnd* end : {&a, &b}) {
    CHECK(!end->rail->failure());
    CHECK_EQUAL(end->sink.buffers_out, 0);
    CHECK_EQUAL(end->rail->counters().frames_sent, 400u);
    CHECK_EQUAL(end->rail->counters().frames_received, 400u);
    CHECK_EQUAL(end->rail->counters().packets_refused, 0u);
    CHECK_EQUAL(end->rail->queued_bytes(), 0u);
  }
}

TEST("frames of all sizes pass both ways through UDP sockets") {
  exchange(kUdpMaxPacket);
  exchange(1472);
  exchange(kUdpMinPacket);
}

TEST("what a UDP rail has to say leaves in one system call, at the flush") {
  const auto [x, y] = udp_pair();
  UdpEnd a(x), b(y);
  a.last = 1;
  a.length = [](std::uint32_t) { return 65'536; };
  until(
      [&] {
        a.work();
        b.rail->poll(b.link, b.sink, now_ns());
        if (b.rail->due_ns() <= now_ns()) b.rail->tick(now_ns());
        return b.sink.seen.size() == 1;
      },
      "the frame");
  CHECK_EQUAL(b.rail->counters().packets_sent, 0u);
  b.rail->enqueue(data_header(1, 100), payload_of(1), 100);
  const std::uint64_t calls = b.rail->counters().system_calls;
  b.rail->flush(now_ns());
  CHECK_EQUAL(b.rail->counters().system_calls, calls + 1);
  CHECK_EQUAL(b.rail->counters().packets_sent, 2u);  // the ACK, and the data
}

TEST("a UDP rail runs over IPv6") {
  std::array<int, 2> fds;
  std::array<sockaddr_in6, 2> places{};
  for (std::size_t i = 0; i < 2; ++i) {
    fds[i] = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    places[i].sin6_family = AF_INET6;
    places[i].sin6_addr = in6addr_loopback;
    auto* place = reinterpret_cast<sockaddr*>(&places[i]);
    socklen_t size = sizeof places[i];
    if (::bind(fds[i], place, size) != 0) {
      std::printf("(no IPv6 here) ");
      return;
    }
    CHECK(::getsockname(fds[i], place, &size) == 0);
  }
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(::connect(fds[i], reinterpret_cast<sockaddr*>(&places[1 - i]), sizeof places[i]) == 0);
  UdpEnd a(fds[0]), b(fds[1]);
  CHECK_EQUAL(a.rail->socket().packet_bytes(), kUdpMaxPacket);
  a.last = 50;
  a.length = mixed_length;
  until(
      [&] {
        a.work();
        b.work();
        return b.sink.seen.size() == 50;
      },
      "the frames");
  CHECK(a.rail->socket().segments());
}

TEST("long payloads are stored where their owner wants them, over UDP too") {
  const auto [x, y] = udp_pair();
  UdpEnd a(x), b(y);
  a.last = 20;
  a.length = [](std::uint32_t) { return 131'072; };
  until(
      [&] {
        a.work();
        b.work();
        return b.sink.seen.size() == 20;
      },
      "the frames");
  CHECK(b.sink.landed > 0);
}

TEST("a UDP rail that ends tells its peer") {
  const auto [x, y] = udp_pair();
  UdpEnd a(x), b(y);
  a.last = 1;
  a.length = [](std::uint32_t) { return 0; };
  a.work();
  a.rail.reset();
  until(
      [&] {
        b.work();
        return static_cast<bool>(b.rail->failure());
      },
      "the end");
  CHECK(b.rail->failure().fault == Fault::kPeer);
  CHECK_EQUAL(b.rail->failure().message, "the connection was closed");
  CHECK_EQUAL(b.sink.seen.size(), 1u);
}

TEST("a UDP rail that gave up says so, and the peer's process is not taken for dead") {
  const auto [x, y] = udp_pair();
  UdpEnd a(x), b(y);
  a.rail->give_up("tired");
  a.rail.reset();
  until(
      [&] {
        b.work();
        return static_cast<bool>(b.rail->failure());
      },
      "the end");
  CHECK(b.rail->failure().fault == Fault::kLink);
  CHECK_EQUAL(b.rail->failure().message, "the peer gave the rail up");
}

TEST("a UDP rail does without the kernel's cutting where that is refused, and counts it") {
  const auto [x, y] = udp_pair();
  UdpEnd a(x), b(y);
  const int on = 1;  // the kernel segments only packets whose checksum it computes
  CHECK(::setsockopt(x, SOL_SOCKET, SO_NO_CHECK, &on, sizeof on) == 0);
  a.last = 20;
  a.length = mixed_length;
  until(
      [&] {
        a.work();
        b.work();
        return b.sink.seen.size() == 20;
      },
      "the frames");
  CHECK(!a.rail->socket().segments());
  CHECK_EQUAL(a.rail->socket().segment_refusals(), 1u);
  CHECK(b.rail->socket().segments());
}

TEST("a port where nobody listens ends a UDP rail once it has been so for a while") {
  const auto [x, y] = udp_pair();
  ::close(y);
  UdpEnd a(x);
  std::int64_t now = kSecond;
  a.last = 1;
  a.length = [](std::uint32_t) { return 100; };
  int steps = 0;
  for (; !a.rail->failure() && steps < 1000; ++steps) {
    a.work(now);
    now = std::max(now + kMillisecond, std::min(a.rail->due_ns(), now + 10 * kMillisecond));
  }
  CHECK(a.rail->failure().fault == Fault::kPeer);
  CHECK_EQUAL(a.rail->failure().message, "nobody listens at the peer's port");
  CHECK(now - kSecond > 100 * kMillisecond);
}

TEST("faults are inflicted on what a UDP rail sends") {
  const auto [x, y] = udp_pair();
  UdpEnd a(x), b(y);
  a.rail->inject(FaultState{.delay_ns = kMillisecond,
                            .jitter_ns = kMillisecond,
                            .loss = 0.1,
                            .duplicate = 0.1,
                            .reorder = 0.1,
                            .corrupt = 0.1,
                            .seed = 5});
  a.last = 100;
  a.length = mixed_length;
  until(
      [&] {
        a.work();
        b.work();
        return b.sink.seen.size() == 100 && !a.rail->confirmation(0).in_flight;
      },
      "the frames");
  CHECK(a.rail->counters().packets_resent > 0);
  CHECK(b.rail->counters().packets_refused > 0);
  CHECK(b.rail->protocol().duplicates() > 0);
  CHECK(a.rail->confirmation(0).round_trip_ns > kMillisecond);
}

TEST("a UDP rail that is down keeps trying, and goes on when the fault is over") {
  const auto [x, y] = udp_pair();
  UdpEnd a(x), b(y);
  a.last = 100;
  a.length = [](std::uint32_t) { return 131'072; };
  a.rail->inject(FaultState{.down = true});
  std::int64_t now = now_ns();
  const std::int64_t began = now;
  for (; now < began + kSecond; now += kMillisecond) {
    a.work(now);
    b.work(now);
  }
  const Confirmation silent = a.rail->confirmation(now);
  CHECK(silent.in_flight);
  CHECK(silent.tries > 10);
  CHECK_EQUAL(silent.quiet_since_ns, began);
  CHECK(silent.unconfirmed >= 512u << 10);
  CHECK(b.sink.seen.empty());
  a.rail->inject(std::nullopt);
  for (const std::int64_t up = now; now < up + 60 * kMillisecond; now += kMillisecond) {
    a.work(now);
    b.work(now);
  }
  CHECK_EQUAL(a.rail->confirmation(now).tries, 0);
  until(
      [&] {
        a.work(now += kMillisecond);
        b.work(now);
        return b.sink.seen.size() == 100;
      },
      "the frames");
}

}  // namespace
}  // namespace slackline::test
