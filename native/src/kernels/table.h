// The kernels of one instruction set as a table. kernels.cc selects one table, and the tests
// compare all of them.
#pragma once

#include <cstddef>

#include "slackline/wire.h"

namespace slackline::kernels {

// The kernels of one instruction set. Each member has the contract of the function of the same name
// in kernels.h.
struct Table {
  const char* name;
  void (*reduce)(wire::DType, wire::ReduceOp, const void* const*, int, void* const*, int,
                 std::size_t, int, bool) noexcept;
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

// Return the table of the instruction set with this index, from the plainest (0) up, or nullptr
// when no further one can run on this machine.
const Table* available(int index) noexcept;

}  // namespace slackline::kernels
