// The rings into which peers of this host write frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "../rail/shm.h"
#include "slackline/arena.h"

namespace slackline {

// The rings in an arena, by their offsets. All calls are made under the engine's lock.
class Rings {
 public:
  explicit Rings(Arena& arena) : arena_(arena) {}

  // Make a ring and return its offset. Throws std::runtime_error when the arena has no room.
  std::uint64_t make() {
    const std::uint64_t ring = make_ring(arena_);
    try {
      offsets_.insert(ring);
    } catch (...) {
      arena_.free(arena_.at(ring));
      throw;
    }
    return ring;
  }
  // Free a ring that no rail has and no peer writes to. Return false when `offset` has no ring.
  bool free(std::uint64_t offset) {
    return offsets_.erase(offset) > 0 && arena_.free(arena_.at(offset));
  }
  // Return the bytes of the arena that rings take.
  std::size_t bytes() const { return offsets_.size() * Arena::rounded(sizeof(Ring)); }

 private:
  Arena& arena_;
  std::set<std::uint64_t> offsets_;
};

}  // namespace slackline
