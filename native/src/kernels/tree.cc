// Sums in a binary tree, block by block, so that the sums that wait stay in the cache.
#include <algorithm>
#include <array>
#include <cstddef>

#include "slackline/kernels.h"

namespace slackline::kernels {
namespace {

constexpr std::size_t kBlockBytes = 4096;

}  // namespace

void reduce_tree(wire::DType dtype, wire::ReduceOp op, const void* const* sources, const int* sums,
                 int n_sources, void* const* targets, int n_targets, std::size_t count,
                 int divisor) noexcept {
  if (n_sources == 1)
    return reduce(dtype, op, sources, 1, targets, n_targets, count, divisor, false);
  struct Line {
    alignas(64) std::byte bytes[kBlockBytes];
  };
  std::array<Line, kMostWaiting> scratch;
  std::array<const void*, kMostWaiting> waiting;
  const std::size_t item = wire::item_size(dtype);
  const std::size_t most = kBlockBytes / item;
  for (std::size_t first = 0; first < count; first += most) {
    const std::size_t elements = std::min(most, count - first);
    const std::size_t offset = first * item;
    std::size_t depth = 0;
    for (int source = 0; source < n_sources; ++source) {
      waiting[depth++] = static_cast<const std::byte*>(sources[source]) + offset;
      for (int sum = 0; sum < sums[source]; ++sum) {
        --depth;
        const bool last = depth == 1 && source == n_sources - 1;
        void* into = last ? static_cast<void*>(static_cast<std::byte*>(targets[0]) + offset)
                          : static_cast<void*>(scratch[depth - 1].bytes);
        add(dtype, op, waiting[depth - 1], waiting[depth], into, elements, 1);
        waiting[depth - 1] = into;
      }
    }
    if (op == wire::ReduceOp::kAvg) {
      // The last sum is rounded before it is divided, as a sum that a rank has made by itself is.
      void* const sum = static_cast<std::byte*>(targets[0]) + offset;
      const void* const source = sum;
      reduce(dtype, op, &source, 1, &sum, 1, elements, divisor, false);
    }
    for (int target = 1; target < n_targets; ++target)
      copy(static_cast<std::byte*>(targets[target]) + offset,
           static_cast<std::byte*>(targets[0]) + offset, elements * item, false);
  }
}

}  // namespace slackline::kernels
