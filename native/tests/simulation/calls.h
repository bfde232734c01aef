// The operations of a schedule: each rank's part of their plans, their data, and their results.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "../../src/engine/program.h"
#include "schedule.h"
#include "slackline/wire.h"

namespace slackline::simulation {

// Return a rank's part of the plan of a collective. Ranks are counted within the group.
std::shared_ptr<Program> program_of(const Work& work, int ranks, int rank);
// Return the number of elements of a collective, and their size.
std::size_t elements_of(const Work& work);
std::size_t item_bytes(const Work& work);
wire::DType dtype_of(const Work& work);
// Store a number as an element. Numbers that are no floats are small integers.
void store(const Work& work, float value, std::byte* to);
// Return the dtype's element `i` of a rank's data: any number for a sum in rank order, else a small
// integer, whose sums are exact in every order.
float element_of(const Work& work, int rank, std::size_t i);
// Return element `i` of the result at a rank; nothing for an element that has no defined value.
std::optional<float> result_of(const Work& work, int ranks, int rank, std::size_t i);
// Return byte `i` of a message.
std::byte message_byte(const Work& work, std::size_t i);

}  // namespace slackline::simulation
