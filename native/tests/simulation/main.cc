// Play drawn schedules: slackline_simulation [--first SEED] [--count N] [--seconds S] [--story]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "shrink.h"
#include "world.h"

namespace slackline::simulation {
namespace {

double seconds_now() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

int run(std::uint64_t first, std::uint64_t count, double seconds, bool tells, bool shrinks,
        int most) {
  const double began = seconds_now();
  Outcome all;
  std::array<std::uint64_t, kTroubles> switched_on{};
  std::uint64_t played = 0;
  int failed = 0;
  for (std::uint64_t seed = first; played < count && seconds_now() - began < seconds; ++seed) {
    const Schedule schedule = Schedule::draw(seed);
    if (tells) std::printf("%s", schedule.story().c_str());
    ++played;
    for (std::size_t i = 0; i < switched_on.size(); ++i)
      switched_on[i] += schedule.troubles >> i & 1;
    try {
      const Outcome outcome = World(schedule).play();
      all.operations += outcome.operations;
      all.failed += outcome.failed;
      all.switches += outcome.switches;
      for (std::size_t i = 0; i < all.acted.size(); ++i) all.acted[i] += outcome.acted[i] > 0;
      if (tells)
        std::printf("trace %016lx, %.3f s simulated, %lu operations, %lu failed\n", outcome.trace,
                    static_cast<double>(outcome.simulated_ns) / 1e9, outcome.operations,
                    outcome.failed);
    } catch (const Broken& law) {
      ++failed;
      std::printf("seed %lu: %s\n", seed, law.what());
      if (shrinks) {
        const Schedule shortest = shrink(schedule);
        std::printf("%s  %s\n", shortest.story().c_str(), broken_by(shortest)->c_str());
      }
      if (failed >= most) break;
    }
  }
  const double took = seconds_now() - began;
  for (std::size_t i = 0; i < all.acted.size(); ++i)
    std::printf("%s %lu of %lu; ", kTroubleNames[i], all.acted[i], switched_on[i]);
  std::printf("\n");
  std::printf(
      "%lu schedules, %lu operations, %lu failed by faults, %d laws broken, %.1f s, "
      "%.0f operations a second\n",
      played, all.operations, all.failed, failed, took, static_cast<double>(all.operations) / took);
  return failed > 0;
}

}  // namespace
}  // namespace slackline::simulation

int main(int argc, char** argv) {
  std::uint64_t first = 0, count = 1000;
  double seconds = 1e9;
  bool tells = false, shrinks = false;
  int most = 20;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--story") {
      tells = true;
    } else if (option == "--shrink") {
      shrinks = true;
    } else if (i + 1 < argc && option == "--most") {
      most = std::atoi(argv[++i]);
    } else if (i + 1 < argc && option == "--first") {
      first = std::strtoull(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && option == "--count") {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && option == "--seconds") {
      seconds = std::strtod(argv[++i], nullptr);
    } else {
      std::fprintf(stderr, "usage: %s [--first SEED] [--count N] [--seconds S] [--story]\n",
                   argv[0]);
      return 2;
    }
  }
  return slackline::simulation::run(first, count, seconds, tells, shrinks, most);
}
