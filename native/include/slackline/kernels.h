// Element-wise reduction over plain memory. No other code reads or changes payload values.
//
// Every function works only on the memory it is given, takes no lock, allocates nothing, never
// waits, and may run on any thread. Results are bit-identical with every instruction set and under
// all floating-point modes of the thread: the kernels compute under the default modes (rounding to
// nearest, subnormals kept) and leave the thread's own modes as they were. A NaN that SUM, AVG or
// PROD gives is the quiet NaN with sign and payload zero; MIN and MAX keep the bits of an operand.
#pragma once

#include <cstddef>

#include "slackline/wire.h"

namespace slackline::kernels {

// Return whether `op` is defined for `dtype`: floats have no bitwise operations and bools no
// average. All other functions require a supported pair and do nothing when given another.
bool supported(wire::DType dtype, wire::ReduceOp op) noexcept;

// Return whether the type is a 16-bit float, whose partial sums may travel as fp32.
inline bool half(wire::DType dtype) noexcept {
  return dtype == wire::DType::kFloat16 || dtype == wire::DType::kBfloat16;
}

// Reduce n sources into each target: targets[*][i] = round(((s0[i] op s1[i]) op s2[i] ...)), for i
// in [0, count).
//
// Sources are combined in the order given, in the accumulation type (fp32 for the half types, else
// the dtype itself). AVG divides the sum by `divisor` (true division for floats, integers towards
// zero), then the result is rounded once to nearest even. Integers wrap; MIN and MAX propagate NaN;
// bools come out as 0 or 1. A target may be a source if both start at exactly the same address;
// partial overlap is not allowed. n_sources >= 1, n_targets >= 0, any alignment. `streaming` stores
// past the caches (and fences before return), for targets that will not be read soon. `streaming`
// is ignored when a target is also a source, because the caches hold that memory already.
void reduce(wire::DType dtype, wire::ReduceOp op, const void* const* sources, int n_sources,
            void* const* targets, int n_targets, std::size_t count, int divisor,
            bool streaming) noexcept;

// The number of sources and sums that may wait for a neighbour at a time in reduce_tree().
inline constexpr int kMostWaiting = 16;

// Reduce n sources into each target in a binary tree: the sources come one after the other, and
// after source i the last two values that wait are combined `sums[i]` times, each time by add().
// One value is left at the end. A sum that is rounded to a half type is thus rounded after each
// addition, as it is where a rank adds two buffers by itself. AVG divides the last sum by `divisor`
// and rounds once more. A target may be a source if both start at exactly the same address; partial
// overlap is not allowed. n_sources >= 1, n_targets >= 1.
void reduce_tree(wire::DType dtype, wire::ReduceOp op, const void* const* sources, const int* sums,
                 int n_sources, void* const* targets, int n_targets, std::size_t count,
                 int divisor) noexcept;

// Combine two operands: target[i] = round(incoming[i] op mine[i]). AVG divides by `divisor`, so
// every hop except the last passes 1. The target may be either operand.
void add(wire::DType dtype, wire::ReduceOp op, const void* incoming, const void* mine, void* target,
         std::size_t count, int divisor) noexcept;

// Combine an fp32 partial sum with half-precision data, without rounding: target[i] = incoming[i]
// op widened mine[i], all in fp32. `half` is a 16-bit float type. The target may be `incoming`.
void add_wide(wire::DType half, wire::ReduceOp op, const float* incoming, const void* mine,
              float* target, std::size_t count) noexcept;

// Combine an fp32 partial sum with half-precision data at the last hop, and round: target[i] =
// round((incoming[i] op widened mine[i]) / divisor). Only AVG divides. The target may be `mine`.
void finish_wide(wire::DType half, wire::ReduceOp op, const float* incoming, const void* mine,
                 void* target, std::size_t count, int divisor) noexcept;

// Convert half-precision values to fp32: target[i] = source[i], exactly.
void widen(wire::DType half, const void* source, float* target, std::size_t count) noexcept;

// Copy `bytes` bytes between regions that do not overlap; `streaming` has the same meaning as in
// reduce().
void copy(void* target, const void* source, std::size_t bytes, bool streaming) noexcept;

}  // namespace slackline::kernels
