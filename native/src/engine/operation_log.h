// The records of operations that have ended, in a ring buffer of fixed size between the engine and
// the one thread that writes them to a file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace slackline {

struct Request;

// An operation that has ended. Times are by the monotonic clock; 0 for an operation that failed
// before it was started.
struct OperationRecord {
  std::int64_t posted_ns;
  std::int64_t started_ns;
  std::int64_t ended_ns;
  std::int64_t waited_ns;  // time for which a thread was blocked until the operation's end
  std::uint64_t bytes;
  std::int32_t peer;  // of a message; -1 for a collective, and for a receive that no rank answered
  std::int32_t tag;   // -1 for a collective that is matched by the order of the calls
  std::uint32_t epoch;
  std::uint32_t sequence;
  std::uint32_t rails;  // bit i: frames were sent over rail i; bit 31: through shared memory
  std::uint8_t collective;
  std::uint8_t dtype;
  std::uint8_t plan;
  std::uint8_t internal;  // not 0 for an operation of the library itself
  bool receives;
  bool failed;
};

constexpr std::uint32_t kSharedMemoryBit = std::uint32_t{1} << 31;
constexpr std::uint32_t rail_bit(int rail) {
  return rail >= 0 && rail < 31 ? std::uint32_t{1} << rail : 0;
}

OperationRecord record_of(const Request& request);

// A ring buffer of records, empty until enable(), with one producer at a time (the thread that
// holds the engine's lock) and one consumer. Neither blocks the other. A record that finds the ring
// full is counted and left out.
class OperationLog {
 public:
  struct Taken {
    std::string rows;  // arrays of JSON, joined by commas
    std::uint64_t count = 0;
    std::uint64_t lost = 0;  // records that were left out since the previous call
  };

  // Make room for `capacity` records, a power of two; from then on operations are recorded. Must be
  // called once, before the engine's first group. Throws std::invalid_argument for anything else.
  void enable(std::size_t capacity);
  bool enabled() const { return !ring_.empty(); }
  void add(const OperationRecord& record);
  // Return the records since the previous call. One thread at a time may call.
  Taken take();
  // Sums over the program's operations that have ended.
  struct Sums {
    std::int64_t waited_ns = 0;   // of the waits of threads
    std::int64_t running_ns = 0;  // of the times from post to end
    std::uint64_t reduced = 0;    // in bytes: the buffers of all_reduce and reduce_scatter
  };
  Sums sums() const;  // any thread may call

 private:
  std::vector<OperationRecord> ring_;
  alignas(64) std::atomic<std::uint64_t> added_{0};
  std::atomic<std::uint64_t> lost_{0};
  std::atomic<std::int64_t> waited_ns_{0};
  std::atomic<std::int64_t> running_ns_{0};
  std::atomic<std::uint64_t> reduced_{0};
  alignas(64) std::atomic<std::uint64_t> taken_{0};
  std::uint64_t told_lost_ = 0;
};

}  // namespace slackline
