// The shares (parts) of a tensor that the ranks of a group own in one operation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "program.h"
#include "slackline/failure.h"

namespace slackline {

class Group;

// The weights of the chunks of an operation, agreed by all ranks. An operation may be posted before
// its weights are known; it then begins when they are. Guarded by the engine's lock.
struct Shares {
  // The largest identifier of a set of weights: the header of a frame has four bits for it.
  static constexpr int kMostNumber = 15;

  std::vector<std::uint32_t> weights;  // one for each chunk; empty for equal chunks
  // The program that runs in place of the operation's own program; null keeps the operation's own.
  std::shared_ptr<const Program> program;
  // The identifier of this set of weights, carried in the headers of frames. If the identifier is
  // equal on all ranks, the ranks use the same weights.
  int number = 0;
  bool known = false;
  Failure failure;  // set when the ranks could not agree; operations then fail with it

  // Set the weights (empty: equal shares). Throws std::logic_error if they are set, and
  // std::invalid_argument for weights, or a program, that do not fit the group.
  void set(const Group& group, std::vector<std::uint32_t> their_weights, int their_number,
           std::shared_ptr<const Program> their_program);
  // Let the operations with these shares fail. Throws std::logic_error if the weights are set.
  void decline(Failure reason);
};

}  // namespace slackline
