// The messages to peers about whole groups: their failures and their ends.
#pragma once

#include "group.h"
#include "membership.h"

namespace slackline {

// Tell the peer that the group has failed, and because of which rank.
void tell_abort(Link& link, const GroupNotice& notice);
// Tell the peer that an operation has failed here. `about` has the fields of its frames.
void tell_ended(Link& link, wire::Header about, const Failure& failure);
// Tell the peer that this rank has left the group, and the failure of the group if it has failed.
void tell_left(Link& link, const GroupNotice& notice);
// Tell the connected members the failure `group.told`. Each other member is told when its link is
// made, so that no frame waits at a link that may never be made.
void tell_failure(const Group& group);
// Tell the connected members that the group has failed because of `culprit`, to which these members
// may have no link. An aggregator always tells its workers, of its own end in the group: those that
// have read the culprit's goodbye do not take the end of its link for a loss, and would wait for
// results. A member that first learns of the failure from this message passes the message on. A
// member without a link to the culprit asks for such a link, to find out whether the culprit's
// process has ended.
void pass_on(const Group& group, int culprit);
// Return whether this rank is not connected to some members of the group. Such a member does not
// see the end of this rank's operations by itself.
bool sparse(const Group& group);
// Tell the peer behind a link, whose first rail was just made, of the groups that this rank has
// left, or whose failure it has caused, before.
void tell_past(Link& link, const Membership& membership);

}  // namespace slackline
