// Tests of a UDP rail (a path to a peer) beside a TCP connection: a bottleneck of 200 Mbit/s, in
// simulated time. The TCP connection is a model, which has tests of its own.
#include "check.h"
#include "shared_path.h"

namespace slackline::test {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kS = 1'000 * kMs;
// A flow that joins another has its share after this time.
constexpr std::int64_t kSettled = 10 * kS;

// Call `check` for each buffer and round trip, and name the two in its failure.
void each_path(double loss, const std::function<void(const SharedPath::Options&)>& check) {
  for (const std::int64_t buffer : {10, 50, 200}) {
    for (const std::int64_t round_trip : {2, 20}) {
      try {
        check({.buffer_ns = buffer * kMs, .round_trip_ns = round_trip * kMs, .loss = loss});
      } catch (const Failure& failure) {
        fail("buffer of " + std::to_string(buffer) + " ms, round trip of " +
             std::to_string(round_trip) + " ms: " + failure.what());
      }
    }
  }
}

template <class F>
std::unique_ptr<F> flow() {
  return std::make_unique<F>();
}

// Check that a value lies between two bounds, and print it if not.
void within(double value, double least, double most) {
  if (value < least || value > most)
    fail(std::to_string(value) + " is not between " + std::to_string(least) + " and " +
         std::to_string(most));
}

void share_in_two(SharedPath& path, std::int64_t settle_ns, std::int64_t ns) {
  path.run(path.now() + settle_ns);
  const std::vector<double> shares = path.shares(ns);
  for (const double share : shares) within(share, 1.0 / 3, 2.0 / 3);
  within(shares[0] + shares[1], 0.95, 1);
}

template <class F>
double alone(const SharedPath::Options& options, std::int64_t settle_ns, std::int64_t ns) {
  SharedPath path(options);
  path.add(flow<F>());
  path.run(path.now() + settle_ns);
  return path.shares(ns)[0];
}

// Return the share of the wire that Reno's response function gives (Mathis et al., 1997). CUBIC's
// friendly region follows it, and these paths are too short for the other region.
double mathis(const SharedPath::Options& options) {
  return std::sqrt(1.5 / options.loss) * kWireBytes * 8e9 /
         static_cast<double>(options.round_trip_ns) / options.bits_per_second;
}

TEST("the model of TCP fills the wire alone") {
  each_path(0, [](const SharedPath::Options& options) {
    within(alone<TcpFlow>(options, kSettled, 30 * kS), 0.95, 1);
  });
}

TEST("the model of TCP has the rate of the response function under random loss") {
  for (const double loss : {0.01, 0.03}) {
    each_path(loss, [](const SharedPath::Options& options) {
      const double expected = mathis(options);
      within(alone<TcpFlow>(options, 2 * kS, 60 * kS), 0.8 * expected, 1.2 * expected);
    });
  }
}

TEST("a UDP rail alone fills the wire and not the queue, whatever the queue holds") {
  each_path(0, [](const SharedPath::Options& options) {
    SharedPath path(options);
    path.add(flow<RailFlow>());
    path.run(path.now() + 2 * kS);
    path.queue().longest_ns = 0;
    within(path.shares(3 * kS)[0], 0.95, 1);
    CHECK(path.queue().longest_ns < 2 * kMs);
  });
}

TEST("a UDP rail and a TCP connection that begin together share the wire") {
  each_path(0, [](const SharedPath::Options& options) {
    SharedPath path(options);
    path.add(flow<TcpFlow>());
    path.add(flow<RailFlow>());
    share_in_two(path, kSettled, 20 * kS);
  });
}

TEST("a UDP rail that joins a TCP connection gets its share within ten seconds") {
  each_path(0, [](const SharedPath::Options& options) {
    SharedPath path(options);
    path.add(flow<TcpFlow>());
    path.run(path.now() + kSettled);
    path.add(flow<RailFlow>());
    share_in_two(path, kSettled, 20 * kS);
  });
}

TEST("a TCP connection that joins a UDP rail gets its share within ten seconds") {
  each_path(0, [](const SharedPath::Options& options) {
    SharedPath path(options);
    path.add(flow<RailFlow>());
    path.run(path.now() + kSettled);
    path.add(flow<TcpFlow>());
    share_in_two(path, kSettled, 20 * kS);
  });
}

TEST("a UDP rail leaves the queue when the TCP connection beside it has ended") {
  SharedPath path({.buffer_ns = 50 * kMs});
  TcpFlow& tcp = path.add(flow<TcpFlow>());
  RailFlow& rail = path.add(flow<RailFlow>());
  path.run(path.now() + kSettled);
  CHECK(rail.sender().congestion().contending());
  path.stop(tcp);
  const std::int64_t latest = path.now() + 100 * kS;
  while (rail.sender().congestion().contending() && path.now() < latest) path.run(path.now() + kS);
  path.run(path.now() + kS);
  path.queue().longest_ns = 0;
  CHECK(path.shares(5 * kS)[0] > 0.95);
  CHECK(path.queue().longest_ns < 2 * kMs);
}

TEST("under random loss a UDP rail leaves TCP half of what it gets alone, and fills the wire") {
  for (const double loss : {0.01, 0.03}) {
    each_path(loss, [](const SharedPath::Options& options) {
      within(alone<RailFlow>(options, 500 * kMs, 500 * kMs), 0.6, 1);
      SharedPath path(options);
      path.add(flow<TcpFlow>());
      path.add(flow<RailFlow>());
      path.run(path.now() + kS);
      within(path.shares(3 * kS)[0], alone<TcpFlow>(options, 2 * kS, 60 * kS) / 2, 1);
    });
  }
}

TEST("two UDP rails on one path share it, whatever the queue holds") {
  each_path(0, [](const SharedPath::Options& options) {
    SharedPath path(options);
    path.add(flow<RailFlow>());
    path.run(path.now() + kS);
    path.add(flow<RailFlow>());
    share_in_two(path, 5 * kS, 15 * kS);
  });
}

TEST("one seed gives one course of events on a shared path") {
  const auto course = [](unsigned seed) {
    SharedPath path({.loss = 0.01, .seed = seed});
    path.add(flow<TcpFlow>());
    path.add(flow<RailFlow>());
    return path.shares(kS);
  };
  CHECK(course(1) == course(1));
  CHECK(course(1) != course(2));
}

}  // namespace
}  // namespace slackline::test
