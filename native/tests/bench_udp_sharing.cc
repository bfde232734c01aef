// A program that prints what a UDP rail (a path to a peer) and a TCP connection get of a bottleneck
// of 200 Mbit/s, in simulated time; docs/how-to/network.md has its table.
//   bench_udp_sharing [courses [seconds]]
// A course begins the second flow 37 ms later than the course before. Of all courses the lowest and
// the highest share are printed.
#include <cstdio>
#include <cstdlib>

#include "shared_path.h"

namespace slackline::test {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSettle = 10'000 * kMs;

struct Range {
  double least = 1;
  double most = 0;
  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

template <class First>
double alone(const SharedPath::Options& options, std::int64_t ns) {
  SharedPath path(options);
  path.add(std::make_unique<First>());
  path.run(path.now() + kSettle);
  return path.shares(ns)[0];
}

// Print the shares of two flows, of which the second begins `apart_ns` after the first.
template <class First, class Second>
void together(SharedPath::Options options, std::int64_t apart_ns, int courses, std::int64_t ns) {
  Range first, second;
  for (int i = 0; i < courses; ++i) {
    options.seed = static_cast<unsigned>(i + 1);
    SharedPath path(options);
    path.add(std::make_unique<First>());
    path.run(path.now() + apart_ns + i * 37 * kMs);
    path.add(std::make_unique<Second>());
    path.run(path.now() + kSettle);
    const std::vector<double> shares = path.shares(ns);
    first.add(shares[0]);
    second.add(shares[1]);
  }
  std::printf(" %.1f-%.1f : %.1f-%.1f |", 100 * first.least, 100 * first.most, 100 * second.least,
              100 * second.most);
}

void report(const SharedPath::Options& options, int courses, std::int64_t ns) {
  std::printf("| %.0f %% | %lld ms | %lld ms |", 100 * options.loss,
              static_cast<long long>(options.buffer_ns / kMs),
              static_cast<long long>(options.round_trip_ns / kMs));
  std::printf(" %.1f |", 100 * alone<TcpFlow>(options, ns));
  std::printf(" %.1f |", 100 * alone<RailFlow>(options, ns));
  together<TcpFlow, RailFlow>(options, 0, courses, ns);
  together<TcpFlow, RailFlow>(options, kSettle, courses, ns);
  together<RailFlow, TcpFlow>(options, kSettle, courses, ns);
  together<RailFlow, RailFlow>(options, kSettle, courses, ns);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace slackline::test

int main(int argc, char** argv) {
  using namespace slackline::test;
  const int courses = argc > 1 ? std::atoi(argv[1]) : 3;
  const std::int64_t ns = (argc > 2 ? std::atoi(argv[2]) : 30) * 1000 * kMs;
  std::printf(
      "| loss | buffer | round trip | TCP alone | rail alone | TCP : rail, together | TCP : rail, "
      "later | rail : TCP, later | rail : rail, later |\n|---|---|---|---|---|---|---|---|---|\n");
  for (const double loss : {0.0, 0.01, 0.03}) {
    for (const std::int64_t buffer : {10, 50, 200}) {
      for (const std::int64_t round_trip : {2, 20})
        report({.buffer_ns = buffer * kMs, .round_trip_ns = round_trip * kMs, .loss = loss},
               courses, ns);
    }
  }
}
