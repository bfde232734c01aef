// Element-wise reduction over plain memory: the only code that touches payload values.
//
// Every function is pure over the memory it is given, blocks only for the work itself, takes no
// lock, allocates nothing and may run on any thread. Results are the same bits whichever
// instruction set the machine offers; only the sign and payload of a NaN made from two NaNs are
// left to the hardware.
#pragma once

#include <cstddef>

#include "slackline/wire.h"

namespace slackline::kernels {

// True where `op` has a meaning for `dtype`: floats have no bitwise operations, bools no average.
// All other functions require a supported pair and do nothing when given another.
bool supported(wire::DType dtype, wire::ReduceOp op) noexcept;

// targets[*][i] = round(((s0[i] op s1[i]) op s2[i] ...)), for i in [0, count).
//
// Rank order, in the accumulate type (fp32 for the half types, else the dtype itself); AVG divides
// the sum by `divisor` (floats truly, integers towards zero), then one rounding to nearest even.
// Integers wrap; MIN and MAX propagate NaN; bools come out as 0 or 1. A target may be a source, at
// exactly the same address; partial overlap is not allowed. n_sources >= 1, n_targets >= 0, any
// alignment. `streaming` writes past the caches (and fences before return), for targets that nobody
// reads soon. It is ignored where a target is a source, whose memory the caches hold already.
void fold(wire::DType dtype, wire::ReduceOp op, const void* const* sources, int n_sources,
          void* const* targets, int n_targets, std::size_t count, int divisor,
          bool streaming) noexcept;

// target[i] = round(incoming[i] op mine[i]); AVG divides by `divisor`, so a hop that is not the
// last passes 1. The target may be either operand.
void add(wire::DType dtype, wire::ReduceOp op, const void* incoming, const void* mine, void* target,
         std::size_t count, int divisor) noexcept;

// target[i] = incoming[i] op widened mine[i], all in fp32: a hop of a chain that does not round.
// `half` is a 16-bit float type. The target may be `incoming`.
void add_wide(wire::DType half, wire::ReduceOp op, const float* incoming, const void* mine,
              float* target, std::size_t count) noexcept;

// target[i] = round((incoming[i] op widened mine[i]) / divisor): the last hop of such a chain.
// Only AVG divides. The target may be `mine`.
void finish_wide(wire::DType half, wire::ReduceOp op, const float* incoming, const void* mine,
                 void* target, std::size_t count, int divisor) noexcept;

// target[i] = source[i] as fp32, exact.
void widen(wire::DType half, const void* source, float* target, std::size_t count) noexcept;

// Copies `bytes` bytes between regions that do not overlap; `streaming` as in fold.
void copy(void* target, const void* source, std::size_t bytes, bool streaming) noexcept;

}  // namespace slackline::kernels
