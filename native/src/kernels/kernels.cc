// The selection of an instruction set, made once from the features that the machine reports.
#include "slackline/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "slackline/fingerprint.h"
#include "table.h"

namespace slackline::kernels {

#if defined(__x86_64__)
namespace {

bool converts_halves() noexcept {  // tests f16c by cpuid; older clangs do not know the name
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace
#endif

const Table* available(int index) noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && converts_halves();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (index == 1 && avx2) return &avx2::kTable;
  if (index == 2 && avx512) return &avx512::kTable;
#endif
  return index == 0 ? &baseline::kTable : nullptr;
}

namespace {

const Table& best() noexcept {
  static const Table& chosen = []() noexcept -> const Table& {
    const Table* found = available(0);
    for (int index = 1; const Table* next = available(index); ++index) found = next;
    return *found;
  }();
  return chosen;
}

}  // namespace

std::vector<Fingerprint> fingerprints() { return fingerprints(best()); }

bool supported(wire::DType dtype, wire::ReduceOp op) noexcept {
  using wire::DType;
  using wire::ReduceOp;
  const bool is_float = dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
                        dtype == DType::kFloat16 || dtype == DType::kBfloat16;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kProd:
      return true;
    case ReduceOp::kAvg:
      return dtype != DType::kBool;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return !is_float;
    case ReduceOp::kNone:
      return false;
  }
  return false;
}

void reduce(wire::DType dtype, wire::ReduceOp op, const void* const* sources, int n_sources,
            void* const* targets, int n_targets, std::size_t count, int divisor,
            bool streaming) noexcept {
  if (!supported(dtype, op)) return;
  best().reduce(dtype, op, sources, n_sources, targets, n_targets, count, divisor, streaming);
}

void add(wire::DType dtype, wire::ReduceOp op, const void* incoming, const void* mine, void* target,
         std::size_t count, int divisor) noexcept {
  const void* const sources[] = {incoming, mine};
  void* const targets[] = {target};
  reduce(dtype, op, sources, 2, targets, 1, count, divisor, false);
}

void add_wide(wire::DType half, wire::ReduceOp op, const float* incoming, const void* mine,
              float* target, std::size_t count) noexcept {
  best().add_wide(half, op, incoming, mine, target, count);
}

void finish_wide(wire::DType half, wire::ReduceOp op, const float* incoming, const void* mine,
                 void* target, std::size_t count, int divisor) noexcept {
  best().finish_wide(half, op, incoming, mine, target, count, divisor);
}

void widen(wire::DType half, const void* source, float* target, std::size_t count) noexcept {
  best().widen(half, source, target, count);
}

void copy(void* target, const void* source, std::size_t bytes, bool streaming) noexcept {
  best().copy(target, source, bytes, streaming);
}

}  // namespace slackline::kernels
