// Access of the simulation to the private state of an engine.
#pragma once

#include <cstddef>

#include "../../src/engine/engine_impl.h"

namespace slackline {

struct EngineView {
  // Return the number of staging slots that operations hold.
  static std::size_t busy_slots(const Engine& engine) {
    return engine.slots_.size() - engine.vacant_slots_.size() - engine.free_slots_.size();
  }
};

}  // namespace slackline
