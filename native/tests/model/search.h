// A depth-first search through every order of events of a world. A known state is not explored
// again. To try another event, the world is rebuilt and the events up to that point are repeated.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "world.h"

namespace slackline::model {

struct Explored {
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::uint64_t quiet_states = 0;
  std::uint64_t stuck_states = 0;  // no sequence of normal events leads from them to a quiet state
  std::size_t longest = 0;         // most events in sequence
  bool complete = true;            // false if the limit of states was reached
  std::vector<Event> way_to_stuck;
};

// Explore all orders of events. Throws test::Failure, with the events that lead to it, when a
// guarantee of the link is broken.
Explored explore(const Setting& setting, std::uint64_t most_states);

struct Walked {
  std::uint64_t events = 0;
  std::uint64_t faults = 0;  // failures of rails and suspicions among the events
};

// Follow `walks` random orders of events, for settings that have too many orders to explore. Each
// walk begins with at most `most` events of any sort, and goes on with events that are no faults
// until every operation is finished. The seed decides all choices. Throws test::Failure, with the
// events that lead to it, when a guarantee of the link is broken or a walk leads nowhere.
Walked walk(const Setting& setting, unsigned seed, int walks, int most);

// Follow random events that are no faults, and append them to `way`, until the world is quiet.
// Throws test::Failure if that takes too many events, or if none is left before.
void finish(World& world, std::mt19937& random, std::vector<Event>& way);

std::string text(const std::vector<Event>& events);

}  // namespace slackline::model
