// The groups of an engine: their members' ends, their failures, and their deadlines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "endings.h"
#include "group.h"
#include "inbox.h"
#include "links.h"
#include "membership.h"
#include "operations.h"

namespace slackline {

// All calls are made under the engine's lock.
class Groups {
 public:
  struct Uses {
    Clock& clock;
    Memory& memory;
    Links& links;
    Membership& membership;
    Operations& operations;
    Inbox& inbox;
    Reports& reports;
    Endings& endings;
  };

  explicit Groups(const Uses& uses) : uses_(uses) {}

  // Open a group; links[i] is the link to rank i, null at this rank's own place.
  std::shared_ptr<Group> open(std::uint32_t epoch, int rank, std::vector<Link*> links,
                              bool rank_order);

  // Remove the links that have ended and that nothing uses any more.
  void remove_ended_links();

  // Take what peers have told of a group before this rank opened it.
  void learn_past(Group& group);

  // Note that `rank` takes no further part in `group`. Operations that still need the rank fail;
  // the others continue. A rank that closed in good order has sent all its data, so operations
  // posted later may still use that data. After any other end nothing new can be posted.
  void left(Group& group, int rank, const Failure& failure, Leave how);
  // Note that nothing comes over the link any more.
  void lost(Link& link);
  // A peer tells that an operation, or with a tag of ones the whole group, has failed.
  void aborted(Link& link, const wire::Header& header, const Payload& payload);
  // A peer has closed a group or, with epoch 0, its engine.
  void said_bye(Link& link, const wire::Header& header);
  // Fail the group's open operations and refuse new ones.
  void broke(Group& group, const Failure& failure);

  // Fail the operations whose deadline has passed.
  void end_late();
  // End the wait for members that other members have lost, where it has lasted long enough.
  void end_told_losses();
  // Return the time of the next such end.
  std::int64_t next_told_loss_ns() const { return next_told_loss_ns_; }

  // End this rank's part in the group at once, and tell the other members the reason.
  void give_up(Group& group, const std::string& reason);
  // Begin to leave a group. A receive whose message has not begun to arrive ends at once: the
  // sender may never send. Messages that this rank has not asked for are refused, so that ranks
  // that leave at the same time do not wait for each other.
  void begin_leaving(Group& group);
  // Fail what is still open in the group, and tell the other members that this rank has left.
  void leave(Group& group);
  // Tell all peers that this engine closes.
  void say_bye();
  // Return whether the group will post no operation for this frame of a message any more: this rank
  // leaves the group, or the group has failed.
  bool refuses(const Link& link, const wire::Header& header) const;
  // Tell the sender that this rank does not receive the message. A short message needs no answer:
  // its send ends without the receiver.
  static void refuse(Link& link, const Group& group, const wire::Header& header);
  // Return the group of an operation that this rank has posted and finished. Return null when the
  // operation was not posted, or when it failed.
  std::shared_ptr<Group> finished_in(const Key& key) const;

 private:
  void group_aborted(Group& group, const Link& link, const wire::Header& header, Failure failure);
  // The peer behind `link` has closed the group, or its engine.
  void closed(Group& group, const Link& link);
  bool ends_with(const Request& request, int rank, Leave how) const;
  bool told_of_loss(Group& group, int rank, const Failure& failure);
  void tell_for(const Group& group, int lost);
  void note_absence(Group& group, int rank, Failure reason, Leave how);
  // Refuse the messages whose senders wait for a group that has failed now.
  void refuse_waiting(Group& group);

  const Uses uses_;
  std::int64_t next_told_loss_ns_ = WireRail::kNever;  // see Group::told_losses
};

}  // namespace slackline
