// Frames and failures of operations that this rank has not posted yet.
#pragma once

#include <optional>

#include "aborted_operations.h"
#include "membership.h"
#include "unexpected_frames.h"

namespace slackline {

// The frames of operations that have not been posted here, and the failures of operations that
// peers have aborted or that have failed here. All calls are made under the engine's lock.
class Inbox {
 public:
  explicit Inbox(const Membership& membership) : membership_(membership) {}

  UnexpectedFrames& frames() { return frames_; }
  const UnexpectedFrames& frames() const { return frames_; }

  // Remember an aborted operation, so that its frames that are still in flight are dropped on
  // arrival, and those that are here at once.
  void abort(const Key& key, Failure failure);
  // Return whether an operation was aborted, or may have been: it was posted here before an aborted
  // operation that is forgotten by now.
  bool was_aborted(const Key& key) const;
  // Return the failure of an aborted operation, or null.
  const Failure* failure_of(const Key& key) const { return aborted_.find(key); }
  // Return the latest collectives of the group whose failure `rank` has told this rank.
  std::vector<Key> told_by(int rank, std::uint32_t epoch) const {
    return aborted_.all_told_by(rank, epoch);
  }
  // Return an operation of the same kind that `rank` has posted, and possibly aborted, but this
  // rank has not. Such an operation shows that the ranks disagree about the order.
  std::optional<Key> posted_instead(const Request& request, int rank) const;

 private:
  const Membership& membership_;
  UnexpectedFrames frames_;
  AbortedOperations aborted_;
};

}  // namespace slackline
