// What the parts of the extension put into the module.
#pragma once

#include <nanobind/nanobind.h>

namespace slackline {

void bind_lab(nanobind::module_& module);

}  // namespace slackline
