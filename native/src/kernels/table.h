// What one instruction set provides; kernels.cc picks one, tests compare all.
#pragma once

#include <cstddef>

#include "slackline/wire.h"

namespace slackline::kernels {

// The members have the contracts of the functions of the same name in kernels.h.
struct Table {
  const char* name;
  void (*fold)(wire::DType, wire::ReduceOp, const void* const*, int, void* const*, int, std::size_t,
               int, bool) noexcept;
  void (*add_wide)(wire::DType, wire::ReduceOp, const float*, const void*, float*,
                   std::size_t) noexcept;
  void (*finish_wide)(wire::DType, wire::ReduceOp, const float*, const void*, void*, std::size_t,
                      int) noexcept;
  void (*widen)(wire::DType, const void*, float*, std::size_t) noexcept;
  void (*copy)(void*, const void*, std::size_t, bool) noexcept;
};

namespace baseline {
extern const Table kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Table kTable;
}
namespace avx512 {
extern const Table kTable;
}
#endif

// The index-th instruction set, from the plainest (0) up, or nullptr past the last one that this
// machine can run.
const Table* available(int index) noexcept;

}  // namespace slackline::kernels
