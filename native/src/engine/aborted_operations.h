// The operations that were aborted, each with its failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "request.h"

namespace slackline {

// The failures of aborted operations. Frames of such an operation that are still in flight are
// dropped, and a rank that posts the operation later gets the failure at once.
//
// The latest kMost operations keep their own failure. Older ones are kept as runs of sequence
// numbers, so that any number of operations in sequence, for example all that time out while a peer
// is stopped, take the memory of one. At most kMostRuns runs are kept.
class AbortedOperations {
 public:
  static constexpr std::size_t kMost = 4096;
  static constexpr std::size_t kMostRuns = 1024;

  // Remember an operation. The first failure of an operation stays. If there are too many runs,
  // forget the oldest one and return the key of its last operation.
  std::optional<Key> remember(const Key& key, Failure failure) {
    if (find(key) != nullptr) return std::nullopt;
    failures_.emplace(key, std::move(failure));
    order_.push_back(key);
    if (order_.size() <= kMost) return std::nullopt;
    const Key oldest = order_.front();
    order_.pop_front();
    const auto found = failures_.find(oldest);
    const std::optional<Key> forgotten = shorten(oldest, std::move(found->second));
    failures_.erase(found);
    return forgotten;
  }
  bool contains(const Key& key) const { return find(key) != nullptr; }
  // Return the failure of an operation, or null if the operation was not aborted or was forgotten.
  // The pointer is valid until the next call of remember().
  const Failure* find(const Key& key) const {
    const auto found = failures_.find(key);
    if (found != failures_.end()) return &found->second;
    const auto stream = runs_.find(stream_of(key));
    if (stream == runs_.end()) return nullptr;
    auto run = stream->second.upper_bound(sequence_of(key));
    if (run == stream->second.begin() || (--run)->second.last < sequence_of(key)) return nullptr;
    return &run->second.failure;
  }
  // Return the oldest operation of this group and role whose abort `peer` has told this rank.
  std::optional<Key> told_by(int peer, std::uint32_t epoch, std::uint32_t role) const {
    for (const Key& key : order_) {
      const Failure& failure = failures_.at(key);
      const bool told = failure.rank < 0 && failure.peer == peer;
      if (told && key.epoch == epoch && key.role == role) return key;
    }
    return std::nullopt;
  }
  // Return the collectives of this group whose failure `teller` has told this rank, the oldest
  // first, without those that are kept as runs.
  std::vector<Key> all_told_by(int teller, std::uint32_t epoch) const {
    std::vector<Key> told;
    for (const Key& key : order_) {
      if (key.epoch == epoch && key.role == kRoleCollective && failures_.at(key).teller == teller)
        told.push_back(key);
    }
    return told;
  }

 private:
  struct Run {
    std::uint32_t last;
    Failure failure;  // of the first operation, worded for all
  };

  static std::uint32_t sequence_of(const Key& key) { return static_cast<std::uint32_t>(key.tag); }
  // Return the key of the operations that are numbered together: the same but for the number.
  static Key stream_of(const Key& key) {
    return {key.tag & ~std::uint64_t{0xFFFFFFFF}, key.epoch, key.role};
  }

  // Keep an operation as part of a run. Return the last operation of a run that was forgotten.
  std::optional<Key> shorten(const Key& key, Failure failure) {
    const std::uint32_t sequence = sequence_of(key);
    auto& runs = runs_[stream_of(key)];
    const auto after = runs.upper_bound(sequence);
    if (after != runs.begin() && std::prev(after)->second.last + 1 == sequence) {
      std::prev(after)->second.last = sequence;
      return std::nullopt;
    }
    failure.message =
        "aborted as sequence " + std::to_string(sequence) + " was: " + failure.message;
    runs.emplace(sequence, Run{sequence, std::move(failure)});
    begun_.push_back(key);
    if (begun_.size() <= kMostRuns) return std::nullopt;
    const Key first = begun_.front();
    begun_.pop_front();
    const auto stream = runs_.find(stream_of(first));
    const auto oldest = stream->second.find(sequence_of(first));
    const Key last{stream->first.tag | oldest->second.last, first.epoch, first.role};
    stream->second.erase(oldest);
    if (stream->second.empty()) runs_.erase(stream);
    return last;
  }

  std::unordered_map<Key, Failure, KeyHash> failures_;
  std::deque<Key> order_;
  // The runs are found by the key of their stream, then by their first sequence number.
  std::unordered_map<Key, std::map<std::uint32_t, Run>, KeyHash> runs_;
  std::deque<Key> begun_;  // the first operation of each run; the oldest run comes first
};

}  // namespace slackline
