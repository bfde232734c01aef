// Several engines in one process as ranks. Every pair is connected by socket pairs or by shared
// memory.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../src/engine/engine.h"
#include "check.h"
#include "datagrams.h"

namespace slackline::test {

enum class Kind { kStream, kDatagram, kShared };

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::uint32_t kJobCode = 0x5EED;

inline EngineOptions small_engine() {
  EngineOptions options;
  options.arena_bytes = std::size_t{64} << 20;
  options.wire_segment_bytes = 256u << 10;  // tests rely on this value, independent of the default
  return options;
}

inline EngineOptions short_segments() {
  EngineOptions options = small_engine();
  options.wire_segment_bytes = options.memory_segment_bytes = 64u << 10;
  return options;
}

// Return options of an engine without a progress thread, so that only the calling thread makes
// progress.
inline EngineOptions one_thread(std::size_t arena_bytes) {
  EngineOptions options = small_engine();
  options.arena_bytes = arena_bytes;
  options.progress_thread = false;
  return options;
}

inline std::pair<int, int> socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) fail("socketpair");
  return {fds[0], fds[1]};
}

// Run `body(rank)` for every rank in a thread of its own, and rethrow the first exception.
inline void on_every_rank(int ranks, const std::function<void(int)>& body) {
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

class Ranks {
 public:
  struct Wire {
    int low, high, rail;
    int low_fd, high_fd;  // duplicates, used to cut the connection
  };

  Ranks(int size, std::function<Kind(int, int)> kind, int rails = 1,
        const EngineOptions& options = small_engine(), bool rank_order = false,
        std::uint32_t first_sequence = 1)
      : rank_order(rank_order),
        links(static_cast<std::size_t>(size),
              std::vector<int>(static_cast<std::size_t>(size), -1)) {
    for (int rank = 0; rank < size; ++rank) engines.push_back(std::make_unique<Engine>(options));
    for (int low = 0; low < size; ++low) {
      for (int high = low + 1; high < size; ++high) {
        Engine& a = engine(low);
        Engine& b = engine(high);
        const int to_high =
            a.connections().add_link("rank " + std::to_string(high), false, first_sequence);
        const int to_low =
            b.connections().add_link("rank " + std::to_string(low), false, first_sequence);
        link(low, high) = to_high;
        link(high, low) = to_low;
        if (kind(low, high) == Kind::kShared) {
          share(low, high, to_high, to_low);
          continue;
        }
        for (int rail = 0; rail < rails; ++rail) {
          const bool datagram = kind(low, high) == Kind::kDatagram;
          const auto [x, y] = datagram ? udp_pair() : socket_pair();
          const RailKind as = datagram ? RailKind::kUdp : RailKind::kTcp;
          wires.push_back(Wire{low, high, rail, ::dup(x), ::dup(y)});
          a.connections().add_rail(to_high, rail, as, x, kJobCode);
          b.connections().add_rail(to_low, rail, as, y, kJobCode);
        }
      }
    }
    open();
  }
  Ranks(int size, Kind kind, int rails = 1, const EngineOptions& options = small_engine(),
        bool rank_order = false)
      : Ranks(size, [kind](int, int) { return kind; }, rails, options, rank_order) {}
  ~Ranks() {
    for (const Wire& wire : wires) {
      ::close(wire.low_fd);
      ::close(wire.high_fd);
    }
    groups.clear();
    on_every_rank(size(), [&](int rank) { engines[static_cast<std::size_t>(rank)].reset(); });
    for (const int fd : controls) ::close(fd);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int size() const { return static_cast<int>(engines.size()); }
  Engine& engine(int rank) { return *engines[static_cast<std::size_t>(rank)]; }
  Group& group(int rank) { return *groups[static_cast<std::size_t>(rank)]; }
  int& link(int from, int to) {
    return links[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }

  // Open a new group with the next epoch on the same links.
  void open() {
    ++epoch;
    groups.clear();
    for (int rank = 0; rank < size(); ++rank)
      groups.push_back(
          engine(rank).open_group(epoch, rank, links[static_cast<std::size_t>(rank)], rank_order));
  }
  // Shut down one rail of a link in both directions.
  void cut(int low, int high, int rail) {
    for (const Wire& wire : wires) {
      if (wire.low == low && wire.high == high && wire.rail == rail)
        ::shutdown(wire.low_fd, SHUT_RDWR);
    }
  }
  std::uint64_t counter(const std::string& name) {
    std::uint64_t sum = 0;
    for (auto& engine : engines) sum += engine->counters()[name];
    return sum;
  }

  const bool rank_order;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<std::vector<int>> links;
  std::vector<Wire> wires;
  std::vector<int> controls;
  std::uint32_t epoch = 0;

 private:
  void share(int low, int high, int to_high, int to_low) {
    Engine& a = engine(low);
    Engine& b = engine(high);
    const std::uint64_t into_a = a.connections().new_ring();
    const std::uint64_t into_b = b.connections().new_ring();
    const auto [x, y] = socket_pair();
    a.connections().add_shm_rail(to_high, ::dup(b.arena().fd()), b.arena().capacity(),
                                 ::dup(b.connections().doorbell_fd()), x, into_a, into_b);
    b.connections().add_shm_rail(to_low, ::dup(a.arena().fd()), a.arena().capacity(),
                                 ::dup(a.connections().doorbell_fd()), y, into_b, into_a);
  }
};

// --- programs, as slackline.plan.collective generates them ---

inline std::shared_ptr<Program> direct(int ranks, int rank,
                                       wire::Collective what = wire::Collective::kAllReduce) {
  auto p = std::make_shared<Program>(what, std::uint8_t{1}, ranks, rank, 1, true, false, false);
  for (int k = 1; k < ranks; ++k) p->append(Opcode::kSend, (rank + k) % ranks, 0, false);
  for (int k = 1; k < ranks; ++k) p->append(Opcode::kBuffer, (rank + k) % ranks, 0, false);
  p->append(Opcode::kReduceAll, rank, 0, false);
  return p;
}

constexpr std::uint8_t kTreePlan = 15;

// With `tree` the sums are in its order; each rank has one node.
inline std::shared_ptr<Program> mesh(int ranks, int rank, const Tree* tree = nullptr) {
  auto p = std::make_shared<Program>(wire::Collective::kAllReduce,
                                     tree != nullptr ? kTreePlan : std::uint8_t{2}, ranks, rank,
                                     ranks, true, true, false);
  if (tree != nullptr) p->reduce_in(*tree);
  for (int k = 1; k < ranks; ++k) {
    const int owner = (rank + k) % ranks;
    p->append(Opcode::kSend, owner, owner, false);
    p->append(Opcode::kCopy, owner, owner, false);
  }
  for (int k = 1; k < ranks; ++k) p->append(Opcode::kBuffer, (rank + k) % ranks, rank, false);
  p->append(Opcode::kReduceAll, rank, rank, false);
  for (int k = 1; k < ranks; ++k) p->append(Opcode::kSend, (rank + k) % ranks, rank, false);
  return p;
}

// Append the steps of one chunk around a ring: it is reduced from rank `first` to the rank before
// it, then the result is passed around.
inline void go_around(Program& p, int ranks, int rank, int chunk, int first) {
  const int place = (rank - first + ranks) % ranks;
  const int next = (rank + 1) % ranks;
  const int previous = (rank - 1 + ranks) % ranks;
  if (place > 0) p.append(Opcode::kAdd, previous, chunk, place == ranks - 1);
  p.append(Opcode::kSend, next, chunk, false);
  if (place == ranks - 1) return;
  p.append(Opcode::kCopy, previous, chunk, false);
  if (place < ranks - 2) p.append(Opcode::kSend, next, chunk, false);
}

inline std::shared_ptr<Program> ring(int ranks, int rank) {
  auto p = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{3}, ranks, rank,
                                     ranks, true, true, true);
  for (int chunk = 0; chunk < ranks; ++chunk)
    go_around(*p, ranks, rank, chunk, (chunk + 1) % ranks);
  return p;
}

inline std::shared_ptr<Program> reduce_broadcast(int ranks, int rank) {
  auto p = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{4}, ranks, rank, 1,
                                     true, true, true);
  go_around(*p, ranks, rank, 0, 0);
  return p;
}

// Return the part of an all_reduce through an aggregator: of a worker, or with `rank` equal to
// `workers` of the aggregator. With `tree` the sums are in its order; each worker has one node.
inline std::shared_ptr<Program> star(int workers, int rank, const Tree* tree = nullptr) {
  auto p = std::make_shared<Program>(wire::Collective::kAllReduce,
                                     tree != nullptr ? kTreePlan : std::uint8_t{7}, workers + 1,
                                     rank, 1, true, true, false);
  if (tree != nullptr) p->reduce_in(*tree);
  p->pieces = 128;
  p->longest_segment = 32u << 10;
  if (rank < workers) {
    p->append(Opcode::kSend, workers, 0, false);
    p->append(Opcode::kCopy, workers, 0, false);
    return p;
  }
  for (int worker = 0; worker < workers; ++worker) p->append(Opcode::kBuffer, worker, 0, false);
  p->append(Opcode::kReduceAll, workers, 0, false);
  for (int worker = 0; worker < workers; ++worker) p->append(Opcode::kSend, worker, 0, false);
  return p;
}

struct Plan {
  const char* name;
  std::shared_ptr<Program> (*make)(int ranks, int rank);
  bool rank_ordered;
};
inline const std::vector<Plan>& plans() {
  static const std::vector<Plan> all = {
      {"direct", [](int n, int r) { return direct(n, r); }, true},
      {"mesh", [](int n, int r) { return mesh(n, r); }, true},
      {"ring", ring, false},
      {"reduce-broadcast", reduce_broadcast, true},
  };
  return all;
}

// --- operations ---

inline Operation reduction(std::shared_ptr<const Program> program, const float* source,
                           float* target, std::size_t count, std::int64_t tag = -1) {
  Operation operation;
  operation.program = std::move(program);
  operation.op = wire::ReduceOp::kSum;
  operation.source = reinterpret_cast<std::byte*>(const_cast<float*>(source));
  operation.target = reinterpret_cast<std::byte*>(target);
  operation.count = count;
  operation.total_bytes = count * sizeof(float);
  operation.tag = tag;
  operation.timeout_ns = 60 * kSecond;
  return operation;
}

inline Operation message(bool receives, void* address, std::size_t bytes, int peer, int tag) {
  Operation operation;
  operation.dtype = wire::DType::kUint8;
  (receives ? operation.target : operation.source) = static_cast<std::byte*>(address);
  operation.count = operation.total_bytes = bytes;
  operation.peer = peer;
  operation.receives = receives;
  operation.any_source = receives && peer < 0;
  operation.tag = tag;
  operation.timeout_ns = 60 * kSecond;
  return operation;
}
inline Operation send_to(int peer, const void* address, std::size_t bytes, int tag = 0) {
  return message(false, const_cast<void*>(address), bytes, peer, tag);
}
inline Operation receive_from(int peer, void* address, std::size_t bytes, int tag = 0) {
  return message(true, address, bytes, peer, tag);
}

// Wait for the end of an operation and throw if it failed.
inline void finish(Engine& engine, const std::shared_ptr<Request>& request) {
  CHECK(engine.wait(*request, -1));
  if (request->failure) fail(request->failure.message);
}

// Return element `i` of the data of rank `rank`. The values are small integers, whose sum is exact
// in any order.
inline float contribution(int rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101) -
                            50);
}
inline std::vector<float> contributions(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = contribution(rank, i);
  return values;
}
inline void check_sum(const float* values, std::size_t count, int ranks) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += contribution(rank, i);
    if (values[i] != sum)
      fail("element " + std::to_string(i) + " of " + std::to_string(count) + " is " +
           std::to_string(values[i]) + ", not " + std::to_string(sum));
  }
}

// Wait until `condition` holds, and fail after a minute. With ThreadSanitizer on a busy machine a
// hundred megabytes in short packets take more than ten seconds.
inline void until(const std::function<bool()>& condition, const char* what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) fail(std::string("waited in vain for ") + what);
    std::this_thread::yield();
  }
}

}  // namespace slackline::test
