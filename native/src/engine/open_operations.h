// The descriptions of operations that have not ended or that have failed, for reports.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "operation_log.h"
#include "slackline/failure.h"
#include "slackline/wire.h"

namespace slackline {

// The state of another rank's part in an operation that has not ended here. kSilent: no frame of
// the operation has come from the rank. kBegun: the rank has posted the operation, and some of its
// data are missing. kTaking: the rank has not confirmed the data that this rank has sent.
enum class PartState : std::uint8_t { kSilent, kBegun, kTaking };

struct MissingPart {
  int rank;  // in the group
  PartState state;
};

struct OpenOperation {
  OperationRecord record;
  std::int64_t usual_ns = 0;         // see Durations
  std::vector<MissingPart> missing;  // in the order of the ranks; none for a refused operation
  bool refused = false;              // failed when it was posted, before any of its data moved
  std::string waits_for;             // the same in words, empty for a failed operation
  Failure failure;                   // none for an operation that has not ended
};

// The mean durations of the operations that have succeeded, by collective and by the power of two
// of their size.
class Durations {
 public:
  void add(wire::Collective collective, std::uint64_t bytes, std::int64_t duration_ns) {
    Sum& sum = sums_[index(collective, bytes)];
    ++sum.count;
    sum.duration_ns += duration_ns;
  }
  // Return the mean duration in nanoseconds of operations like this one, 0 before the first.
  std::int64_t mean_ns(wire::Collective collective, std::uint64_t bytes) const {
    const Sum& sum = sums_[index(collective, bytes)];
    return sum.count == 0 ? 0 : sum.duration_ns / sum.count;
  }

 private:
  struct Sum {
    std::int64_t count = 0;
    std::int64_t duration_ns = 0;
  };
  static constexpr std::size_t kSizes = 65;  // the widths of a 64-bit number
  static std::size_t index(wire::Collective collective, std::uint64_t bytes) {
    return (static_cast<std::size_t>(collective) & 0xF) * kSizes +
           static_cast<std::size_t>(std::bit_width(bytes));
  }

  std::array<Sum, 16 * kSizes> sums_{};
};

// The operations that have failed since the previous take(), at most kMost of them.
class FailureLog {
 public:
  static constexpr std::size_t kMost = 16;

  struct Taken {
    std::vector<OpenOperation> operations;  // in the order of their ends
    std::uint64_t left_out = 0;
  };

  bool full() const { return taken_.operations.size() >= kMost; }
  void add(OpenOperation operation) { taken_.operations.push_back(std::move(operation)); }
  void leave_out() { ++taken_.left_out; }
  Taken take() { return std::exchange(taken_, {}); }

 private:
  Taken taken_;
};

}  // namespace slackline
