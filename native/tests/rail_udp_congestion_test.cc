// Tests of UDP rails (paths to a peer) that share a line: a queue of 256 KiB before a link of 1
// Gbit/s, in simulated time.
#include <numeric>

#include "udp_network.h"

namespace slackline::test {
namespace {

constexpr double kLine = 125e6;  // bytes per second

// Several rails that send as fast as they may through one queue.
struct Shared {
  explicit Shared(std::size_t flows, const Weather& weather = {}, std::int64_t apart_ns = 0)
      : before(flows) {
    for (std::size_t i = 0; i < flows; ++i) {
      rails.push_back(network.join(weather, {.delay_ns = weather.delay_ns}));
      network.end(rails.back()).bottleneck = &queue;
      start(i);
      if (apart_ns > 0) network.run(network.now() + apart_ns);
    }
  }
  void start(std::size_t i) {
    network.feed(rails[i], 1, 1u << 30, [](std::uint32_t) { return 131'072u; });
  }
  // Return the share of the line that each flow uses over the next `ns` nanoseconds.
  std::vector<double> shares(std::int64_t ns) {
    for (std::size_t i = 0; i < rails.size(); ++i) before[i] = bytes(i);
    queue.longest_ns = 0;
    network.run(network.now() + ns);
    std::vector<double> result;
    for (std::size_t i = 0; i < rails.size(); ++i)
      result.push_back(static_cast<double>(bytes(i) - before[i]) /
                       (kLine * static_cast<double>(ns) / 1e9));
    return result;
  }
  std::uint64_t bytes(std::size_t i) { return network.end(rails[i] + 1).sink.bytes; }
  const UdpSendCounters& sent(std::size_t i) {
    return network.end(rails[i]).protocol->sender().counters();
  }

  UdpNetwork network;
  Bottleneck queue{.bytes_per_second = kLine};
  std::vector<std::size_t> rails;
  std::vector<std::uint64_t> before;
};

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST("a UDP rail fills the line and not the queue") {
  Shared line(1);
  line.network.run(line.network.now() + 100 * kMillisecond);
  CHECK(line.shares(400 * kMillisecond)[0] > 0.9);
  CHECK(line.queue.longest_ns < kMillisecond);  // the full queue would hold 2 ms
}

TEST(
    "random loss of one packet in a hundred costs a UDP rail less than a tenth of its throughput") {
  Shared fair(1);
  Shared lossy(1, {.loss = 0.01});
  const double without = fair.shares(500 * kMillisecond)[0];
  const double with = lossy.shares(500 * kMillisecond)[0];
  CHECK(with > 0.9 * without);
  // The rail resent the lost packets and hardly any others.
  CHECK(lossy.sent(0).resent < lossy.sent(0).packets / 50);
}

TEST("heavy loss slows a UDP rail down and does not stop it") {
  Shared lossy(1, {.loss = 0.2});
  CHECK(lossy.shares(500 * kMillisecond)[0] > 0.3);
}

TEST("a UDP rail that joins another shares the line with it") {
  Shared two(2, {}, 300 * kMillisecond);
  two.network.run(two.network.now() + 500 * kMillisecond);
  const std::vector<double> shares = two.shares(500 * kMillisecond);
  CHECK(sum(shares) > 0.9);
  for (const double share : shares) CHECK(share > 0.35);
}

TEST("three UDP rails into one port share it, and little is lost") {
  Shared three(3);
  const std::vector<double> first = three.shares(300 * kMillisecond);
  CHECK(sum(first) > 0.85);
  const std::vector<double> shares = three.shares(700 * kMillisecond);
  CHECK(sum(shares) > 0.9);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(shares[i] > 0.2);
    CHECK(three.sent(i).resent < three.sent(i).packets / 50);
  }
}

TEST("a queue shorter than the delay that is aimed at costs packets, not throughput") {
  Shared three(3);
  three.queue.buffer_bytes = 32 << 10;
  CHECK(sum(three.shares(500 * kMillisecond)) > 0.85);
}

TEST("a path that becomes longer is learnt") {
  Shared line(1);
  line.network.run(line.network.now() + 300 * kMillisecond);
  line.network.end(line.rails[0]).out.delay_ns += 30 * kMillisecond;
  line.network.run(line.network.now() + kSecond);
  CHECK(line.shares(500 * kMillisecond)[0] > 0.7);
}

TEST("a UDP rail over a far network fills its window") {
  Shared far(1, {.loss = 0.01, .delay_ns = 5 * kMillisecond});
  far.network.run(far.network.now() + 500 * kMillisecond);
  CHECK(far.shares(500 * kMillisecond)[0] > 0.8);
}

}  // namespace
}  // namespace slackline::test
