#include "failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace slackline::test {
namespace {

constexpr int kEngineThread = -1;
constexpr int kTestThread = -2;
constexpr long kNever = std::numeric_limits<long>::max();

thread_local int owner = kEngineThread;
std::atomic<bool> counts{false};
std::atomic<long> counted{0}, first{kNever}, live{0};
std::atomic<bool> lacked{false};
std::atomic<Lack> kind{Lack::kOnce};

bool fails() {
  if (!counts.load(std::memory_order_relaxed) || owner == kTestThread) return false;
  const Lack lack = kind.load(std::memory_order_relaxed);
  if (lack == Lack::kFromThenOnAtRank0 && owner != 0) return false;
  const long number = counted.fetch_add(1);
  const long at = first.load(std::memory_order_relaxed);
  const bool now = lack == Lack::kOnce ? number == at : number >= at;
  if (now) lacked = true;
  return now;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  if (bytes == 0) bytes = 1;
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory != nullptr) live.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void* require(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  live.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

std::size_t number_of(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

Inside::Inside(int rank) : before_(std::exchange(owner, rank)) {}
Inside::~Inside() { owner = before_; }

void mark_as_test() { owner = kTestThread; }

void lack_memory(long n, Lack lack) {
  kind = lack;
  first = n;
  counted = 0;
  lacked = false;
  counts = true;
}

long end_lack() {
  counts = false;
  return counted;
}

bool lacked_memory() { return lacked; }

long live_allocations() { return live; }

}  // namespace slackline::test

using slackline::test::allocate;
using slackline::test::number_of;
using slackline::test::release;
using slackline::test::require;

void* operator new(std::size_t bytes) { return require(allocate(bytes, 1)); }
void* operator new[](std::size_t bytes) { return require(allocate(bytes, 1)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return require(allocate(bytes, number_of(alignment)));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return require(allocate(bytes, number_of(alignment)));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, number_of(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t&) noexcept {
  return allocate(bytes, number_of(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
