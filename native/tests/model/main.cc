// slackline_link_model [FAILURES SUSPICIONS [MOST_STATES]]: explores every setting with up to
// FAILURES failed rails and SUSPICIONS silent rails, and prints the number of states explored.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "search.h"
#include "settings.h"

int main(int argc, char** argv) try {
  using namespace slackline::model;
  const int failures = argc > 1 ? std::atoi(argv[1]) : 1;
  const int suspicions = argc > 2 ? std::atoi(argv[2]) : 1;
  const std::uint64_t most = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : ~std::uint64_t{0};
  bool good = true;
  for (Setting setting : settings()) {
    setting.failures = failures;
    setting.suspicions = suspicions;
    const auto begin = std::chrono::steady_clock::now();
    const Explored explored = explore(setting, most);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf(
        "%s: %llu states, %llu transitions, %llu quiet, %llu stuck, at most %zu events%s, "
        "%.1f s\n%s",
        setting.name, static_cast<unsigned long long>(explored.states),
        static_cast<unsigned long long>(explored.transitions),
        static_cast<unsigned long long>(explored.quiet_states),
        static_cast<unsigned long long>(explored.stuck_states), explored.longest,
        explored.complete ? "" : " (not all)", took.count(), text(explored.way_to_stuck).c_str());
    std::fflush(stdout);
    good = good && explored.stuck_states == 0;
  }
  return good ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
