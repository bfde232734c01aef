// The operations of a schedule: each rank's part of their plans, their data, and their results.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "../../src/engine/program.h"
#include "../../src/engine/split.h"
#include "../trees.h"
#include "schedule.h"
#include "slackline/wire.h"

namespace slackline::simulation {

// Return a rank's part of the plan of a collective. Ranks are counted within the group.
std::shared_ptr<Program> program_of(const Work& work, int ranks, int rank);
// Return the number of elements of a collective, and their size.
std::size_t elements_of(const Work& work);
std::size_t item_bytes(const Work& work);
wire::DType dtype_of(const Work& work);
// Return the leaves of each rank in an all_reduce in a tree.
test::Runs runs_of(const Work& work, int ranks);
// Return the number of buffers that a rank contributes, one after the other: the nodes of a tree.
std::size_t buffers_of(const Work& work, int ranks, int rank);
// The data of an operation and its result, as elements of its type. The data are any numbers for a
// sum in rank order or in a tree, else small integers, whose sums are exact in every order.
struct Truth {
  Truth(const Work& work, int ranks);
  std::vector<std::vector<std::byte>> data;  // of a collective, by rank
  std::vector<std::byte> result;             // of a message: the message

 private:
  void sum_in_tree(const Work& work, int ranks);
};

// Return the part of the result that a rank has at the end, in bytes: a reduce_scatter gives each
// rank its own part.
slackline::Part part_of_result(const Work& work, int ranks, int rank);

}  // namespace slackline::simulation
