// The state of an aggregator: a rank that adds for the other members of its group, the workers, and
// posts no operation itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "group.h"

namespace slackline {

// The operations that the last member of a group performs for the workers. An operation begins when
// frames of all workers are there. All calls are made under the engine's lock.
class Aggregation {
 public:
  // Results reported at once, and the bytes that each worker keeps for them.
  static constexpr std::size_t kMostTags = 16;
  static constexpr std::uint64_t kMostTagsBytes = 1u << 20;

  // `program` is this rank's part of the plan, `tree` the same for operations of one node of a tree
  // for each worker, or null. Addition starts when `onset` segments of every worker have arrived.
  Aggregation(std::shared_ptr<const Program> program, std::shared_ptr<const Program> tree,
              std::uint32_t onset)
      : program_(std::move(program)), tree_(std::move(tree)), onset_(onset) {}

  std::uint32_t onset() const { return onset_; }
  // Return whether `frames` of one operation come from all workers. An operation of some workers
  // might have to wait for operations that only the other workers have begun, and would occupy
  // memory meanwhile.
  static bool begun_by_all(const Group& group, const std::deque<Unexpected>& frames);
  // Return the reason why an aggregator with an arena of `arena_bytes` refuses the operation of a
  // worker's frame, or an empty text.
  static std::string refusal(const wire::Header& header, std::size_t arena_bytes);
  // Return the operation with the parameters in the header of a worker's frame, and with its result
  // at `target`. The returned object refers to `key`.
  Operation operation(const Key& key, const wire::Header& header, std::byte* target) const;
  // Return an operation without data, which fails in place of a refused one.
  Operation refused(const Key& key, const wire::Header& header) const;

  // Let an operation wait for room in the arena, unless it waits already.
  void wait(const Key& key);
  bool any_waits() const { return !waiting_.empty(); }
  // Remove and return the operation that waits longest, or nothing.
  std::optional<Key> take_waiting();
  // Put an operation back in front of all others.
  void wait_again(const Key& key) { waiting_.push_front(key); }

  // Count a segment that has arrived from `worker`. Return whether enough segments of every worker
  // have arrived, so that addition may start.
  bool count_arrival(Request& request, int worker) const;
  // Note an operation whose result every worker has. `bytes` is the size of the copy that each
  // worker keeps. Return the tags to report to the workers, which then drop their copies; none
  // until the results are many or large.
  std::vector<std::uint64_t> note_result(std::uint64_t tag, std::uint64_t bytes);

 private:
  // Return the program of the operation of a worker's frame.
  const std::shared_ptr<const Program>& program_of(const wire::Header& header) const;

  const std::shared_ptr<const Program> program_, tree_;
  const std::uint32_t onset_;
  // Operations that every worker has begun, but the arena has no room for the result.
  std::deque<Key> waiting_;
  // Tags of operations whose result every worker has; the workers do not know that yet.
  std::vector<std::uint64_t> tags_;
  std::uint64_t tags_bytes_ = 0;
};

}  // namespace slackline
