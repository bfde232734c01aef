// The kernels, written once in terms of vectors and compiled once for each instruction set.
// SLACKLINE_ISA names the namespace, and the compiler's flags select the vector width.
#include "chunk.h"
#include "float_modes.h"
#include "table.h"

#define SLACKLINE_TEXT_OF(name) #name
#define SLACKLINE_TEXT(name) SLACKLINE_TEXT_OF(name)

namespace slackline::kernels::SLACKLINE_ISA {
namespace {

using wire::DType;
using wire::ReduceOp;
using Byte = unsigned char;

// A copy of fewer elements than a chunk, filled with zeros up to the chunk's size.
template <std::size_t bytes>
struct Padded {
  alignas(64) Byte data[bytes];

  Padded(const Byte* from, std::size_t length) : data{} { __builtin_memcpy(data, from, length); }
};

template <class Format, class Op>
struct Reduction {
  using C = Chunk<Format>;
  const Byte* const* sources;
  int n_sources;
  Byte* const* targets;
  int n_targets;
  Divisor<typename Format::Lane> divisor;

  template <bool streaming>
  void whole(std::size_t at) const {
    C chunk;
    chunk.read(sources[0] + at);
    for (int s = 1; s < n_sources; ++s) chunk.template reduce<Op>(sources[s] + at);
    chunk.divide(divisor);
    chunk.template settle<Op>();
    const Rounded<Format> rounded(chunk);
    for (int t = 0; t < n_targets; ++t) {
      if constexpr (streaming) {
        rounded.write_streaming(targets[t] + at);
      } else {
        rounded.write(targets[t] + at);
      }
    }
  }

  void part(std::size_t at, std::size_t length) const {
    C chunk;
    chunk.read(Padded<C::kBytes>(sources[0] + at, length).data);
    for (int s = 1; s < n_sources; ++s)
      chunk.template reduce<Op>(Padded<C::kBytes>(sources[s] + at, length).data);
    chunk.divide(divisor);
    chunk.template settle<Op>();
    alignas(64) Byte result[C::kBytes];
    Rounded<Format>(chunk).write(result);
    for (int t = 0; t < n_targets; ++t) __builtin_memcpy(targets[t] + at, result, length);
  }

  template <bool streaming>
  void run(std::size_t at, std::size_t bytes) const {
    for (; at + C::kBytes <= bytes; at += C::kBytes) whole<streaming>(at);
    if (at < bytes) part(at, bytes - at);
  }
};

// Return the bytes from `address` to the next multiple of `alignment`. Return 0 when that is not a
// whole number of items or not less than `limit`.
std::size_t head(const void* address, std::size_t alignment, std::size_t item, std::size_t limit) {
  const std::size_t bytes = -reinterpret_cast<std::uintptr_t>(address) % alignment;
  return bytes % item == 0 && bytes < limit ? bytes : 0;
}

// Return whether some target is also a source. The lines of such a target are in the caches, and
// streaming past them would cost more than it saves.
bool in_place(const void* const* sources, int n_sources, void* const* targets, int n_targets) {
  for (int t = 0; t < n_targets; ++t) {
    for (int s = 0; s < n_sources; ++s) {
      if (targets[t] == sources[s]) return true;
    }
  }
  return false;
}

template <class Format, class Op>
void run_reduction(const void* const* sources, int n_sources, void* const* targets, int n_targets,
                   std::size_t count, int divisor, bool streaming) {
  using C = Chunk<Format>;
  const Reduction<Format, Op> job{reinterpret_cast<const Byte* const*>(sources), n_sources,
                                  reinterpret_cast<Byte* const*>(targets), n_targets,
                                  Divisor<typename Format::Lane>(divisor)};
  const std::size_t bytes = count * C::kItem;
  if (n_targets == 0) return;
  if (!streaming || bytes < 2 * C::kBytes || in_place(sources, n_sources, targets, n_targets))
    return job.template run<false>(0, bytes);
  const std::size_t first = head(targets[0], sizeof(typename Format::Piece), C::kItem, C::kBytes);
  if (first > 0) job.part(0, first);
  job.template run<true>(first, bytes);
  fence();
}

// Call run(format, operation) for a pair of type and operation that the caller has found supported.
template <class Unsigned, class Signed, class Run>
void visit_integer(ReduceOp op, Run run) {
  switch (op) {
    case ReduceOp::kSum:
      return run(Plain<Unsigned>(), Sum());
    case ReduceOp::kAvg:
      return run(Plain<Signed>(), Sum());
    case ReduceOp::kMin:
      return run(Plain<Signed>(), Minimum());
    case ReduceOp::kMax:
      return run(Plain<Signed>(), Maximum());
    case ReduceOp::kProd:
      return run(Plain<Unsigned>(), Product());
    case ReduceOp::kBand:
      return run(Plain<Unsigned>(), And());
    case ReduceOp::kBor:
      return run(Plain<Unsigned>(), Or());
    case ReduceOp::kBxor:
      return run(Plain<Unsigned>(), Xor());
    case ReduceOp::kNone:
      return;
  }
}

template <class Format, class Run>
void visit_float(ReduceOp op, Run run) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) return run(Format(), Sum());
  if (op == ReduceOp::kMin) return run(Format(), Minimum());
  if (op == ReduceOp::kMax) return run(Format(), Maximum());
  if (op == ReduceOp::kProd) return run(Format(), Product());
}

template <class Run>
void visit_boolean(ReduceOp op, Run run) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return run(Boolean(), Or());
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return run(Boolean(), And());
    case ReduceOp::kBxor:
      return run(Boolean(), Xor());
    case ReduceOp::kAvg:
    case ReduceOp::kNone:
      return;
  }
}

template <class Run>
void visit_half(DType half, ReduceOp op, Run run) {
  if (half == DType::kFloat16) return visit_float<Float16>(op, run);
  if (half == DType::kBfloat16) return visit_float<Bfloat16>(op, run);
}

template <class Run>
void visit(DType dtype, ReduceOp op, Run run) {
  switch (dtype) {
    case DType::kFloat32:
      return visit_float<Plain<float>>(op, run);
    case DType::kFloat64:
      return visit_float<Plain<double>>(op, run);
    case DType::kFloat16:
    case DType::kBfloat16:
      return visit_half(dtype, op, run);
    case DType::kInt8:
      return visit_integer<std::uint8_t, std::int8_t>(op, run);
    case DType::kInt16:
      return visit_integer<std::uint16_t, std::int16_t>(op, run);
    case DType::kInt32:
      return visit_integer<std::uint32_t, std::int32_t>(op, run);
    case DType::kInt64:
      return visit_integer<std::uint64_t, std::int64_t>(op, run);
    case DType::kUint8:
      return visit_integer<std::uint8_t, std::uint8_t>(op, run);
    case DType::kUint16:
      return visit_integer<std::uint16_t, std::uint16_t>(op, run);
    case DType::kUint32:
      return visit_integer<std::uint32_t, std::uint32_t>(op, run);
    case DType::kUint64:
      return visit_integer<std::uint64_t, std::uint64_t>(op, run);
    case DType::kBool:
      return visit_boolean(op, run);
  }
}

// The functions compute_... run under the default floating-point modes. They are not inlined, so
// that the compiler moves none of their arithmetic out of these modes.
[[gnu::noinline]] void compute_reduce(DType dtype, ReduceOp op, const void* const* sources,
                                      int n_sources, void* const* targets, int n_targets,
                                      std::size_t count, int divisor, bool streaming) noexcept {
  const int divide_by = op == ReduceOp::kAvg ? divisor : 1;
  visit(dtype, op, [&]<class Format, class Op>(Format, Op) {
    run_reduction<Format, Op>(sources, n_sources, targets, n_targets, count, divide_by, streaming);
  });
}

// Run step(chunk, at) over `count` elements, where `at` is the index of the chunk's first element,
// and step_part(chunk, at, n) over the remaining n elements.
template <class Format, class Step, class StepPart>
void over(std::size_t count, Step step, StepPart step_part) {
  using C = Chunk<Format>;
  C chunk;
  std::size_t at = 0;
  for (; at + C::kCount <= count; at += C::kCount) step(chunk, at);
  if (at < count) step_part(chunk, at, count - at);
}

const Byte* bytes_at(const float* base, std::size_t at) {
  return reinterpret_cast<const Byte*>(base + at);
}
Byte* bytes_at(float* base, std::size_t at) { return reinterpret_cast<Byte*>(base + at); }

// Compute chunk = incoming op mine for a whole chunk of elements; combine_part() does so for fewer.
template <class Format, class Op>
void combine(Chunk<Format>& chunk, const Byte* incoming, const Byte* mine) {
  chunk.read_wide(incoming);
  chunk.template reduce<Op>(mine);
}
template <class Format, class Op>
void combine_part(Chunk<Format>& chunk, const Byte* incoming, const Byte* mine, std::size_t count) {
  using C = Chunk<Format>;
  combine<Format, Op>(chunk,
                      Padded<C::kCount * sizeof(float)>(incoming, count * sizeof(float)).data,
                      Padded<C::kBytes>(mine, count * C::kItem).data);
}

[[gnu::noinline]] void compute_add_wide(DType half, ReduceOp op, const float* incoming,
                                        const void* mine, float* target,
                                        std::size_t count) noexcept {
  const Byte* const own = static_cast<const Byte*>(mine);
  visit_half(half, op, [&]<class Format, class Op>(Format, Op) {
    using C = Chunk<Format>;
    over<Format>(
        count,
        [&](C& chunk, std::size_t at) {
          combine<Format, Op>(chunk, bytes_at(incoming, at), own + at * C::kItem);
          chunk.template settle<Op>();
          chunk.write_wide(bytes_at(target, at));
        },
        [&](C& chunk, std::size_t at, std::size_t n) {
          combine_part<Format, Op>(chunk, bytes_at(incoming, at), own + at * C::kItem, n);
          chunk.template settle<Op>();
          __builtin_memcpy(target + at, chunk.vectors, n * sizeof(float));
        });
  });
}

[[gnu::noinline]] void compute_finish_wide(DType half, ReduceOp op, const float* incoming,
                                           const void* mine, void* target, std::size_t count,
                                           int divisor) noexcept {
  const Byte* const own = static_cast<const Byte*>(mine);
  Byte* const out = static_cast<Byte*>(target);
  const Divisor<float> divide_by(op == ReduceOp::kAvg ? divisor : 1);
  visit_half(half, op, [&]<class Format, class Op>(Format, Op) {
    using C = Chunk<Format>;
    over<Format>(
        count,
        [&](C& chunk, std::size_t at) {
          combine<Format, Op>(chunk, bytes_at(incoming, at), own + at * C::kItem);
          chunk.divide(divide_by);
          chunk.template settle<Op>();
          Rounded<Format>(chunk).write(out + at * C::kItem);
        },
        [&](C& chunk, std::size_t at, std::size_t n) {
          combine_part<Format, Op>(chunk, bytes_at(incoming, at), own + at * C::kItem, n);
          chunk.divide(divide_by);
          chunk.template settle<Op>();
          const Rounded<Format> rounded(chunk);
          __builtin_memcpy(out + at * C::kItem, rounded.pieces, n * C::kItem);
        });
  });
}

[[gnu::noinline]] void compute_widen(DType half, const void* source, float* target,
                                     std::size_t count) noexcept {
  const Byte* const from = static_cast<const Byte*>(source);
  visit_half(half, ReduceOp::kSum, [&]<class Format, class Op>(Format, Op) {
    using C = Chunk<Format>;
    over<Format>(
        count,
        [&](C& chunk, std::size_t at) {
          chunk.read(from + at * C::kItem);
          chunk.write_wide(bytes_at(target, at));
        },
        [&](C& chunk, std::size_t at, std::size_t n) {
          chunk.read(Padded<C::kBytes>(from + at * C::kItem, n * C::kItem).data);
          __builtin_memcpy(target + at, chunk.vectors, n * sizeof(float));
        });
  });
}

void reduce(DType dtype, ReduceOp op, const void* const* sources, int n_sources,
            void* const* targets, int n_targets, std::size_t count, int divisor,
            bool streaming) noexcept {
  const DefaultFloatModes modes;
  compute_reduce(dtype, op, sources, n_sources, targets, n_targets, count, divisor, streaming);
}

void add_wide(DType half, ReduceOp op, const float* incoming, const void* mine, float* target,
              std::size_t count) noexcept {
  const DefaultFloatModes modes;
  compute_add_wide(half, op, incoming, mine, target, count);
}

void finish_wide(DType half, ReduceOp op, const float* incoming, const void* mine, void* target,
                 std::size_t count, int divisor) noexcept {
  const DefaultFloatModes modes;
  compute_finish_wide(half, op, incoming, mine, target, count, divisor);
}

void widen(DType half, const void* source, float* target, std::size_t count) noexcept {
  const DefaultFloatModes modes;
  compute_widen(half, source, target, count);
}

void copy(void* target, const void* source, std::size_t bytes, bool streaming) noexcept {
  using Format = Plain<std::uint8_t>;
  if (!streaming || bytes < 4 * Chunk<Format>::kBytes) {
    __builtin_memcpy(target, source, bytes);
    return;
  }
  run_reduction<Format, Or>(&source, 1, &target, 1, bytes, 1, true);
}

}  // namespace

extern const Table kTable = {
    SLACKLINE_TEXT(SLACKLINE_ISA), reduce, add_wide, finish_wide, widen, copy};

}  // namespace slackline::kernels::SLACKLINE_ISA
