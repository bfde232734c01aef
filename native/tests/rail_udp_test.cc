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

}  // namespace
}  // namespace slackline::test
