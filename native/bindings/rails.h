// The Python bindings of rail events and rail status.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "../src/rail/wire_rail.h"

namespace slackline {

void bind_rails(nanobind::module_& m);
RailKind rail_kind(const std::string& name);  // throws std::invalid_argument

}  // namespace slackline
