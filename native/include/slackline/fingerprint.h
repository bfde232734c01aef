// A fingerprint of a process's kernels, by which ranks find out before they reduce anything whether
// their results would have the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "slackline/wire.h"

namespace slackline::kernels {

struct Table;

// The checksum of what the kernels make of fixed inputs, for one element type and reduction.
struct Fingerprint {
  wire::DType dtype;
  wire::ReduceOp op;
  std::uint16_t checksum;
};

// Return the fingerprint of each supported pair, always in the same order, from the kernels of this
// process or of one instruction set. The inputs have special values of every kind, and lengths that
// are no multiple of a vector. One call takes well under a millisecond.
std::vector<Fingerprint> fingerprints();
std::vector<Fingerprint> fingerprints(const Table& table);

}  // namespace slackline::kernels
