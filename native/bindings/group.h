// The Python wrapper of a group, and the part of its binding that devices use.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "../src/engine/engine.h"

namespace slackline {

// A group together with the engine that it uses.
struct BoundGroup {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Group> group;
};

void bind_device(nanobind::class_<BoundGroup>& group);

}  // namespace slackline
