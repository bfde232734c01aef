// Model checking of the link: its guarantees hold in every order of events. model/world.h defines
// the events; the program slackline_link_model makes larger explorations.
#include <algorithm>
#include <cstdio>

#include "model/search.h"
#include "model/settings.h"

namespace slackline::model {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kMostStates = 300;  // sanitizers are slow, so explore only a part
#else
constexpr std::uint64_t kMostStates = ~std::uint64_t{0};
#endif

void explore_all(int failures, int suspicions) {
  for (Setting setting : settings()) {
    const bool large = setting.kind == RailKind::kUdp
                           ? setting.work != Work::kSegments
                           : setting.late && setting.work == Work::kShares;
    if (large && failures + suspicions > 0) continue;
    setting.failures = failures;
    setting.suspicions = suspicions;
    const Explored explored = explore(setting, kMostStates);
    if (explored.stuck_states > 0)
      test::fail(std::string(setting.name) + ": no way leads on from here\n" +
                 text(explored.way_to_stuck));
    CHECK(explored.quiet_states > 0 || !explored.complete);
    std::printf("%llu states, %llu transitions; ", static_cast<unsigned long long>(explored.states),
                static_cast<unsigned long long>(explored.transitions));
  }
}

TEST("frames arrive exactly once in every order in which two rails may deliver them") {
  explore_all(0, 0);
}

TEST("one rail's end may fail at any moment: nothing is lost, nothing comes twice, all ends") {
  explore_all(1, 0);
}

TEST("one rail may seem silent at any moment, and what it carried may still arrive") {
  explore_all(0, 1);
}

}  // namespace
}  // namespace slackline::model
