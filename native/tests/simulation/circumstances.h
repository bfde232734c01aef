// Rare circumstances: what schedules whose parts are drawn one by one hardly ever bring together.
#pragma once

#include "draw.h"
#include "schedule.h"

namespace slackline::simulation {

// A fault that lasts longer than any schedule.
inline constexpr std::int64_t kForGood = 1000 * kSecond;

// Let a fault begin soon after an operation of its ranks is posted, so that it meets data on their
// way.
void draw_begin(Draw& draw, const Schedule& schedule, Fault& fault);

// Let one rail of a link be silent for so long that others take its frames, and let those fail
// meanwhile.
void draw_failover(Draw& draw, Schedule& s);

// Let the first rail of a TCP link be silent, and the others end, most for good, while they carry
// an operation that was posted meanwhile: no rail is up then, until the first one answers again.
void draw_last_resort(Draw& draw, Schedule& s);

enum class Circumstance : std::uint8_t {
  kNone,
  kDeaths,              // ranks die in a row, while long messages are on their way
  kUntoldCancellation,  // a rank cancels an operation, and dies while it tells the others
  kLostAggregator,      // ranks cancel an operation about when its aggregator is lost
  kDepartures,          // ranks abort groups or end, while another one is late
  kOvertakenQuestion,   // a message overtakes its question on another rail
  kRefusals,            // the system refuses many calls
};
constexpr int kCircumstances = 7;

// Return the circumstance that a schedule is bent to: three schedules of ten have one. It has
// random numbers of its own, so that the other schedules stay the same.
Circumstance circumstance_of(std::uint64_t seed);
bool needs_three_ranks(Circumstance circumstance);
void bend(Schedule& s, Circumstance circumstance);

}  // namespace slackline::simulation
