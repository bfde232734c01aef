// The open groups of an engine, and the notices of closed groups for peers that connect later.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "group.h"

namespace slackline {

// A message to a peer about a group: this rank has left the group, or the group has failed.
struct GroupNotice {
  std::uint32_t epoch;  // the number of the group
  int rank;             // this rank's number in the group
  Failure cause;        // the failure of the group; none if this rank left in good order
};

class Membership {
 public:
  using Groups = std::unordered_map<std::uint32_t, std::shared_ptr<Group>>;

  // Add an open group. Throws std::invalid_argument if a group with the same epoch is open.
  void open(const std::shared_ptr<Group>& group);
  // Remove an open group and return the notice for its other members. The notice is also kept for
  // departures() if a member is not connected to this rank.
  GroupNotice close(const Group& group);

  // Return the open groups by epoch.
  const Groups& groups() const { return groups_; }
  // Return the open group with this epoch, or null.
  std::shared_ptr<Group> find(std::uint32_t epoch) const;
  // Return the open groups of which the peer behind `link` is a member.
  std::vector<std::shared_ptr<Group>> shared_with(const Link& link) const;
  // Return whether the group with this epoch is open here and the peer behind `link` is no member.
  bool excludes(const Link& link, std::uint32_t epoch) const;
  // Return whether a group with this epoch was closed here.
  bool was_closed(std::uint32_t epoch) const { return closed_.contains(epoch); }
  // Return the notices of the closed groups that had a member without a connection to this rank, in
  // the order of closing. A link gets the notices when its first rail is made, so that each closed
  // group takes memory once and not once for each link.
  const std::vector<GroupNotice>& departures() const { return departures_; }

 private:
  Groups groups_;
  std::unordered_set<std::uint32_t> closed_;
  std::vector<GroupNotice> departures_;
};

}  // namespace slackline
