// The open groups of an engine, and the notices of closed groups for peers that connect later.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "group.h"

namespace slackline {

// A message to a peer about a group: this rank has left the group, or the group has failed.
struct GroupNotice {
  std::uint32_t epoch;  // the number of the group
  int rank;             // this rank's number in the group
  Failure cause;        // the failure of the group; none if this rank left in good order
};

// The message of a peer about a group that this rank has not opened yet: the group has failed at
// the peer, or the peer has left it.
struct EarlyNotice {
  Link* link;
  wire::Header header;  // of an ABORT or a BYE
  Failure failure;      // the reason of an ABORT
};

class Membership {
 public:
  using Groups = std::unordered_map<std::uint32_t, std::shared_ptr<Group>>;

  // Add an open group. Throws std::invalid_argument if a group with the same epoch is open.
  void open(const std::shared_ptr<Group>& group);
  // Return the notice for the other members of a group that this rank leaves now.
  static GroupNotice notice_of(const Group& group);
  // Remove an open group and return the notice for its other members. The notice is also kept for
  // departures() if a member is not connected to this rank.
  GroupNotice close(const Group& group);

  // Note that this rank leaves all groups and opens no other one.
  void close_all() { closing_ = true; }
  const bool& closing() const { return closing_; }
  // Return whether this rank has left the group, or leaves all groups. Its peers may go on using
  // the data that it has sent.
  bool leaves(const Group& group) const { return group.closed || closing_; }

  // Return the open groups by epoch.
  const Groups& groups() const { return groups_; }
  // Return the open group with this epoch, or null.
  std::shared_ptr<Group> find(std::uint32_t epoch) const;
  // Return the open groups of which the peer behind `link` is a member.
  std::vector<std::shared_ptr<Group>> shared_with(const Link& link) const;
  // Return whether a group, a closed one whose frames may still arrive, or an early notice has the
  // link.
  bool refers_to(const Link& link) const;
  // Return whether the group with this epoch is open here and the peer behind `link` is no member.
  bool excludes(const Link& link, std::uint32_t epoch) const;
  // Note that the peer behind `link` has left the group with this epoch, or all groups if it is 0:
  // its BYE has arrived, and with it the last frame of the group.
  void left(const Link& link, std::uint32_t epoch);
  // Note that nothing comes over `link` any more.
  void lost(const Link& link);
  // Keep a peer's notice if it is of a group that this rank may still open. The peer may have
  // opened, used and closed the group while this rank was busy.
  void keep_early(EarlyNotice notice);
  // Return the notices of a group that is open now, in the order of arrival.
  std::vector<EarlyNotice> take_early(std::uint32_t epoch);
  // Return whether a group with this epoch was closed here and a member may still send its frames.
  bool was_closed(std::uint32_t epoch) const { return closed_.contains(epoch); }
  // Return whether no new group may have this epoch.
  bool uses(std::uint32_t epoch) const { return groups_.contains(epoch) || was_closed(epoch); }
  // Return the notices of the closed groups that had a member without a connection to this rank, in
  // the order of closing. A link gets the notices when its first rail is made, so that each closed
  // group takes memory once and not once for each link.
  const std::deque<GroupNotice>& departures() const { return departures_; }
  // Return the number of groups for which was_closed() is true.
  std::size_t closed() const { return closed_.size(); }

  // The number of closed groups with unconnected members that are kept, the newest. A member that
  // connects later than this gets no notice of an older group; its operations there, which no other
  // member takes part in, end at their deadline.
  static constexpr std::size_t kMostDepartures = 512;
  // The number of early notices that are kept, the newest.
  static constexpr std::size_t kMostEarly = 4096;

 private:
  // Stop waiting for the links that `gone` selects in a closed group; forget the group with its
  // last link.
  template <class Gone>
  void settle(std::uint32_t epoch, const Gone& gone);
  template <class Gone>
  void settle_all(const Gone& gone);

  Groups groups_;
  // The links over which frames of a closed group may still arrive, by the group's epoch.
  std::unordered_map<std::uint32_t, std::vector<const Link*>> closed_;
  std::deque<GroupNotice> departures_;
  std::deque<EarlyNotice> early_;
  bool closing_ = false;
};

}  // namespace slackline
