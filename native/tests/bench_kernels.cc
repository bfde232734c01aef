// A program that prints the speed of the kernels on this machine, in bytes read plus bytes written
// per second.
//
// Each figure is the best of several rounds, on one thread. Use the program on a quiet machine.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "../src/kernels/table.h"
#include "slackline/crc32c.h"
#include "slackline/kernels.h"

namespace {

using namespace slackline;
using Clock = std::chrono::steady_clock;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, Free>;

Buffer buffer(std::size_t bytes) {
  Buffer memory(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

// Return the speed in GB/s of `work`, which moves `bytes` bytes: the best of 7 rounds of about 10
// ms.
template <class Work>
double speed(double bytes, Work work) {
  const int repeats = std::max(1, static_cast<int>(100e6 / bytes));
  double best = 0;
  for (int round = 0; round < 7; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) work();
    const std::chrono::duration<double, std::nano> spent = Clock::now() - start;
    best = std::max(best, bytes * repeats / spent.count());
  }
  return best;
}

struct Case {
  const char* name;
  wire::DType dtype;
  wire::ReduceOp op;
  int n_sources;
  int n_targets;  // 0: the targets are the sources
};

constexpr Case kCases[] = {
    {"copy", wire::DType::kUint8, wire::ReduceOp::kBor, 1, 1},
    {"float32 sum 2x1", wire::DType::kFloat32, wire::ReduceOp::kSum, 2, 1},
    {"float32 sum 2x2", wire::DType::kFloat32, wire::ReduceOp::kSum, 2, 2},
    {"float32 sum 4x4", wire::DType::kFloat32, wire::ReduceOp::kSum, 4, 4},
    {"float32 sum 4 =", wire::DType::kFloat32, wire::ReduceOp::kSum, 4, 0},
    {"float32 avg 4x4", wire::DType::kFloat32, wire::ReduceOp::kAvg, 4, 4},
    {"float32 avg 3x3", wire::DType::kFloat32, wire::ReduceOp::kAvg, 3, 3},
    {"float32 sum 8x8", wire::DType::kFloat32, wire::ReduceOp::kSum, 8, 8},
    {"float64 max 4x4", wire::DType::kFloat64, wire::ReduceOp::kMax, 4, 4},
    {"float16 sum 4x4", wire::DType::kFloat16, wire::ReduceOp::kSum, 4, 4},
    {"bfloat16 sum 4x4", wire::DType::kBfloat16, wire::ReduceOp::kSum, 4, 4},
    {"int8 prod 4x4", wire::DType::kInt8, wire::ReduceOp::kProd, 4, 4},
    {"int32 avg 3x3", wire::DType::kInt32, wire::ReduceOp::kAvg, 3, 3},
    {"int64 avg 3x3", wire::DType::kInt64, wire::ReduceOp::kAvg, 3, 3},
};

void bench_reduce(const kernels::Table& table, const Case& which) {
  std::printf("  %-17s", which.name);
  const int moved = which.n_sources + (which.n_targets > 0 ? which.n_targets : which.n_sources);
  for (std::size_t bytes : {64u << 10, 1u << 20, 25u << 20}) {
    std::vector<Buffer> memory;
    for (int i = 0; i < which.n_sources + which.n_targets; ++i) memory.push_back(buffer(bytes));
    std::vector<void*> all;
    for (const Buffer& each : memory) all.push_back(each.get());
    const std::vector<const void*> sources(all.begin(), all.begin() + which.n_sources);
    const std::vector<void*> targets(
        which.n_targets > 0 ? all.begin() + which.n_sources : all.begin(), all.end());
    const std::size_t count = bytes / wire::item_size(which.dtype);
    for (bool streaming : {false, true}) {
      std::printf(" %6.1f", speed(static_cast<double>(bytes) * moved, [&] {
                    table.reduce(which.dtype, which.op, sources.data(), which.n_sources,
                                 targets.data(), static_cast<int>(targets.size()), count,
                                 which.n_sources, streaming);
                  }));
    }
  }
  std::printf("\n");
}

void bench_checksum() {
  std::printf("crc32c (GB/s of input)\n");
  volatile std::uint32_t sink = 0;
  for (std::size_t bytes : {60u, 1u << 10, 4u << 10, 64u << 10, 256u << 10, 25u << 20}) {
    const Buffer memory = buffer(bytes);
    std::printf("  %9zu bytes %6.1f\n", bytes, speed(static_cast<double>(bytes), [&] {
                  sink = crc32c(sink, memory.get(), bytes);
                }));
  }
}

}  // namespace

int main() {
  for (int index = 0; const kernels::Table* table = kernels::available(index); ++index) {
    std::printf("reduce, %s (GB/s read and written; plain and streaming)\n", table->name);
    std::printf("  %-17s %13s %13s %13s\n", "", "64 KiB", "1 MiB", "25 MiB");
    for (const Case& which : kCases) bench_reduce(*table, which);
  }
  bench_checksum();
  return 0;
}
