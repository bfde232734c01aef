// Tests of a lack of memory at every single allocation of the engines: each operation ends with
// success or a typed error on every rank, and the engines close.
#include <atomic>
#include <cstdlib>
#include <new>

#include "ranks.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these bring their own `new`

namespace slackline::test {
namespace {

// The allocations until the one that fails; negative while none is to fail.
std::atomic<long> left{-1};
std::atomic<bool> reached{false};
// Whether all allocations fail from then on, until an engine gives its reserve back.
std::atomic<bool> persistent{false}, out_of_memory{false};

bool fails() {
  if (out_of_memory.load(std::memory_order_relaxed)) return true;
  if (left.load(std::memory_order_relaxed) < 0 || left.fetch_sub(1) != 0) return false;
  reached = true;
  out_of_memory = persistent.load();
  return true;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (fails()) throw std::bad_alloc();
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes == 0 ? 1 : bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) { std::free(memory); }

}  // namespace
}  // namespace slackline::test

void* operator new(std::size_t bytes) { return slackline::test::allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return slackline::test::allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return slackline::test::allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return slackline::test::fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return slackline::test::fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { slackline::test::release(memory); }
void operator delete[](void* memory) noexcept { slackline::test::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { slackline::test::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { slackline::test::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { slackline::test::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  slackline::test::release(memory);
}

namespace slackline::test {
namespace {

constexpr std::size_t kCount = 100'000;

// The operations of one rank. All memory of the test itself is taken before allocations may fail.
struct Work {
  std::vector<float> sum, brief;
  std::vector<std::byte> sent, got;
  std::shared_ptr<Program> mesh_program, direct_program, barrier_program;
  std::vector<std::shared_ptr<Request>> requests;
  bool thrown = false;
  bool untyped = false;

  explicit Work(int rank)
      : sum(contributions(rank, kCount)),
        brief(contributions(rank, 100)),
        sent(300'000, std::byte{3}),
        got(sent.size()),
        mesh_program(mesh(2, rank)),
        direct_program(direct(2, rank)),
        barrier_program(direct(2, rank, wire::Collective::kBarrier)) {
    requests.reserve(8);
  }

  template <class Call>
  void guarded(Call&& call) {
    try {
      call();
    } catch (const std::bad_alloc&) {
      thrown = true;  // the caller's typed error
    } catch (const std::runtime_error&) {
      thrown = true;  // the group is closed already
    } catch (...) {
      untyped = true;
    }
  }

  void run(Engine& engine, Group& group, int rank) {
    const auto post = [&](Operation operation, bool drive) {
      operation.timeout_ns = 5 * kSecond;
      guarded([&] { requests.push_back(engine.post(group, operation, drive)); });
    };
    post(reduction(mesh_program, sum.data(), sum.data(), kCount), false);
    post(receive_from(1 - rank, got.data(), got.size()), false);
    post(send_to(1 - rank, sent.data(), sent.size()), false);
    guarded([&] {
      if (!requests.empty()) engine.watch(*requests.front());
    });
    post(reduction(direct_program, brief.data(), brief.data(), brief.size()), true);
    for (const auto& request : requests) guarded([&] { engine.wait(*request, 10 * kSecond); });
    post(reduction(barrier_program, nullptr, nullptr, 0), true);
    guarded([&] { engine.close_group(group, 2 * kSecond); });
    guarded([&] { engine.close(kSecond / 10); });
  }
};

// Let allocation number `n` fail while two ranks work. Return false when there was no such one.
bool fail_allocation(Kind kind, long n, bool persists) {
  Ranks ranks(2, kind);
  Work works[] = {Work(0), Work(1)};
  std::atomic<int> ready{0};
  reached = false;
  persistent = persists;
  on_every_rank(2, [&](int rank) {
    ++ready;
    while (ready < 2) std::this_thread::yield();
    if (rank == 0) left = n;
    works[rank].run(ranks.engine(rank), ranks.group(rank), rank);
  });
  left = -1;
  out_of_memory = false;
  bool failed = false;
  for (const Work& work : works) {
    CHECK(!work.untyped);
    failed = failed || work.thrown;
    for (const auto& request : work.requests) {
      CHECK(request->finished());
      failed = failed || static_cast<bool>(request->failure);
    }
  }
  if (!reached) {
    CHECK(!failed);
    for (const Work& work : works) check_sum(work.sum.data(), kCount, 2);
  }
  return reached;
}

void fail_each(Kind kind, bool persists) {
  // Every one of the first allocations, then ever fewer: later ones repeat what came before.
  for (long n = 0; fail_allocation(kind, n, persists); n += 1 + n / 24) {
  }
}

TEST("a failed allocation ends in a typed error on every rank, whichever it is: stream") {
  fail_each(Kind::kStream, false);
}

TEST("a failed allocation ends in a typed error on every rank, whichever it is: shared memory") {
  fail_each(Kind::kShared, false);
}

}  // namespace
}  // namespace slackline::test

#endif
