// The functions by which parts of the extension add their classes to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace slackline {

void bind_lab(nanobind::module_& module);
void bind_simulation(nanobind::module_& module);

}  // namespace slackline
