// The operations that were aborted most recently, each with its failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "request.h"

namespace slackline {

// The failures of at most `kMost` aborted operations. Frames of such an operation that are still in
// flight are dropped, and a rank that posts the operation later gets the failure at once.
class AbortedOperations {
 public:
  static constexpr std::size_t kMost = 4096;

  // Remember an operation. The first failure of an operation stays; the operation that was aborted
  // first is forgotten if there are too many.
  void remember(const Key& key, Failure failure) {
    if (!failures_.emplace(key, std::move(failure)).second) return;
    order_.push_back(key);
    if (order_.size() <= kMost) return;
    failures_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(const Key& key) const { return failures_.contains(key); }
  // Return the failure of an operation, or null if the operation was not aborted. The pointer is
  // valid until the next call of remember().
  const Failure* find(const Key& key) const {
    const auto found = failures_.find(key);
    return found == failures_.end() ? nullptr : &found->second;
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

 private:
  std::unordered_map<Key, Failure, KeyHash> failures_;
  std::deque<Key> order_;
};

}  // namespace slackline
