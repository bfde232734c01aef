// A schedule as one line of numbers, and back, so that it can be kept when the drawing of schedules
// changes.
#pragma once

#include <string>

#include "schedule.h"

namespace slackline::simulation {

std::string line_of(const Schedule& schedule);
// Throws std::invalid_argument for a line that is no schedule.
Schedule schedule_of(const std::string& line);

}  // namespace slackline::simulation
