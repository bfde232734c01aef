// Tests of a lack of memory at every allocation of an engine: each rank ends with the right result
// or with a typed error, its engine closes, and nothing is left behind.
#include <algorithm>
#include <random>

#include "world.h"

namespace slackline::test {
namespace {

constexpr Scene kScenes[] = {
    {.name = "links in shared memory", .ranks = 2, .kind = Kind::kShared, .links_only = true},
    {.name = "links over TCP", .ranks = 2, .kind = Kind::kStream, .rails = 2, .links_only = true},
    {.name = "links over UDP", .ranks = 2, .kind = Kind::kDatagram, .links_only = true},
    {.name = "shared memory", .ranks = 2, .kind = Kind::kShared},
    {.name = "TCP", .ranks = 2, .kind = Kind::kStream},
    {.name = "UDP", .ranks = 2, .kind = Kind::kDatagram},
    {.name = "shared memory, progress thread",
     .ranks = 3,
     .kind = Kind::kShared,
     .progress_thread = true},
    {.name = "TCP, progress thread", .ranks = 3, .kind = Kind::kStream, .progress_thread = true},
    {.name = "failover", .ranks = 2, .kind = Kind::kStream, .rails = 2, .loses_rail = true},
};

// The number of allocations that fail one after another in a scene.
constexpr long kMost = rounds(80);

// Let each allocation fail if there are at most kMost, else as many drawn ones.
void lack_memory_in(const Scene& scene, Lack lack) {
  mark_as_test();
  const long all = allocations_of(scene);
  std::mt19937 draw(static_cast<unsigned>(lack));
  for (long i = 0; i < std::min(kMost, all); ++i) {
    const long n = all <= kMost ? i : std::uniform_int_distribution<long>(0, all)(draw);
    play(scene, n, lack);
  }
}

TEST("one allocation that fails ends in typed errors, wherever it is") {
  for (const Scene& scene : kScenes) lack_memory_in(scene, Lack::kOnce);
}

TEST("memory that stays short ends in typed errors, from whichever allocation on") {
  for (const Scene& scene : kScenes) lack_memory_in(scene, Lack::kFromThenOn);
}

TEST("memory that stays short at one rank ends in typed errors at all ranks") {
  for (const Scene& scene : kScenes) {
    if (!scene.progress_thread) lack_memory_in(scene, Lack::kFromThenOnAtRank0);
  }
}

}  // namespace
}  // namespace slackline::test
