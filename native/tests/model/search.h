// Explores every order of events of a world, depth first: a state that was seen before is not
// entered again, and to take another way the world is made anew and led to the fork.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "world.h"

namespace slackline::model {

struct Explored {
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::uint64_t quiet_states = 0;
  std::uint64_t stuck_states = 0;  // from which no normal course leads to quiet
  std::size_t longest = 0;         // events in a row
  bool complete = true;            // else the limit of states was reached
  std::vector<Event> way_to_stuck;
};

// Throws test::Failure with the events that lead to a broken promise.
Explored explore(const Setting& setting, std::uint64_t most_states);

std::string text(const std::vector<Event>& events);

}  // namespace slackline::model
