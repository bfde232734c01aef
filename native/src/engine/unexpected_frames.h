// The frames of operations that have not been posted on this rank.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "../rail/rail.h"
#include "request.h"

namespace slackline {

// DATA frames and grants that are kept until their operation is posted, by operation. The links
// count the frames of their peers and limit their number. All calls are made under the engine's
// lock.
class UnexpectedFrames {
 public:
  // Keep a frame, with a copy of its payload.
  void keep(const Key& key, Link& link, const wire::Header& header, const Payload& payload = {});
  // Count one more frame of an operation that has not been posted here. Over wires the link to a
  // peer that sends too many is cut.
  static void count(Link& link);
  // Return the frames of an operation, oldest first; null if there is none. The pointer is valid
  // until the next change.
  const std::deque<Unexpected>* find(const Key& key) const;
  // Remove and return the frames of an operation. The caller uses or drops each of them.
  std::deque<Unexpected> take(const Key& key);
  // Count a frame that take() has returned as used.
  static void used(const Unexpected& frame);
  // Count a frame as one that no operation will use, and return its eager credit to the peer.
  static void drop(const Unexpected& frame);
  // Remove and drop the frames of an operation, or of all operations of a group.
  void drop_all(const Key& key);
  void drop_group(std::uint32_t epoch);

  // Return the operations of a group that have frames here.
  std::vector<Key> keys_in(std::uint32_t epoch) const;
  // Return an operation of the group and role whose first frame has come from `rank`.
  std::optional<Key> begun_by(int rank, std::uint32_t epoch, std::uint32_t role) const;
  // Return whether a frame has come over the link.
  bool hold_any_of(const Link& link) const;
  // Return whether a frame refers to memory of the link's peer.
  bool refer_to_memory_of(const Link& link) const;

 private:
  template <class Holds>
  bool any_frame(const Holds& holds) const;

  std::unordered_map<Key, std::deque<Unexpected>, KeyHash> frames_;
};

}  // namespace slackline
