// The shortest schedule that still breaks a law.
#pragma once

#include <optional>
#include <string>

#include "schedule.h"
#include "world.h"

namespace slackline::simulation {

// Play a schedule. Return the law that it breaks, if any.
std::optional<std::string> broken_by(const Schedule& schedule);

// Leave out what a schedule that breaks a law does not need for that, in at most `most` plays.
Schedule shrink(Schedule schedule, int most = 2000);

}  // namespace slackline::simulation
