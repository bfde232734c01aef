// Model checking of the link: its guarantees hold in every order of events. model/world.h defines
// the events; the program slackline_link_model makes larger explorations.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>

#include "model/search.h"
#include "model/settings.h"

namespace slackline::model {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kMostStates = 300;  // sanitizers are slow, so explore only a part
constexpr int kWalks = 10;
#else
constexpr std::uint64_t kMostStates = ~std::uint64_t{0};
constexpr int kWalks = 250;
#endif

void explore_all(int failures, int suspicions) {
  for (Setting setting : settings()) {
    const bool large = setting.kind == RailKind::kUdp
                           ? setting.work != Work::kSegments
                           : setting.late && (failures > 0 || setting.work == Work::kShares);
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

// The settings with too many orders of events to explore them all.
TEST("two rails may fail and two may seem silent, in any order: all operations end") {
  for (Setting setting : settings()) {
    setting.failures = setting.suspicions = 2;
    const Walked walked = walk(setting, 1, kWalks, 40);
    CHECK(walked.faults > static_cast<std::uint64_t>(kWalks));
    std::printf("%llu events, %llu faults; ", static_cast<unsigned long long>(walked.events),
                static_cast<unsigned long long>(walked.faults));
  }
}

// Return the first event of this sort that can happen next at end A, if any.
std::optional<Event> next_of(World& world, What what, int rail = -1) {
  for (const Event& event : world.events()) {
    if (event.what == what && event.end == 0 && (rail < 0 || event.rail == rail)) return event;
  }
  return std::nullopt;
}

void lose_both_rails(RailKind kind) {
  std::mt19937 random(1);
  std::vector<Event> way;
  World world({.name = "both rails of one end are lost",
               .work = Work::kMessages,
               .kind = kind,
               .failures = 2,
               .suspicions = 1});
  const std::optional<Event> silent = next_of(world, What::kSuspect);
  CHECK(silent.has_value());
  const int other = 1 - silent->rail;
  world.happen(*silent);
  world.happen(next_of(world, What::kFail, other).value());
  // The invariant of the link, which the world checks after each event: the frames of the lost rail
  // are on the new one at once, and do not wait for the end of the silent rail.
  world.happen(next_of(world, What::kDial, other).value());
  world.happen(next_of(world, What::kFail, silent->rail).value());
  finish(world, random, way);
}

TEST("a lost rail that is made anew takes its frames while the other rail is silent") {
  lose_both_rails(RailKind::kTcp);
  lose_both_rails(RailKind::kUdp);
}

}  // namespace
}  // namespace slackline::model
