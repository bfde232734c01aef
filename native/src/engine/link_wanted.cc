// Engines with many peers: links that are made when an operation needs them, and news of a lost
// rank in a group whose ranks are not all connected to each other.
#include <algorithm>
#include <cstdint>
#include <string>

#include "engine_impl.h"

namespace slackline {
void Link::want() {
  if (made_ || wanted_ || down) return;
  wanted_ = true;
  links_.announce(*this, -1, "wanted", "an operation needs the peer");
}

// Tell the peer of the groups that this rank has left, or whose failure it has caused, before the
// link was made.
void Engine::tell_past(Link& link) {
  for (const auto& group : membership_.shared_with(link)) {
    if (group->told) abort_over(link, {group->epoch, group->rank, group->told});
  }
  for (const GroupNotice& notice : membership_.departures()) tell_left(link, notice);
  if (closing_) link.control(blank_header(wire::FrameKind::kBye));
}

// Tell the peer that this rank has left the group, and the failure of the group if it has failed.
void Engine::tell_left(Link& link, const GroupNotice& notice) {
  if (notice.cause) abort_over(link, notice);
  wire::Header bye = blank_header(wire::FrameKind::kBye);
  bye.epoch = notice.epoch;
  bye.source = static_cast<std::uint16_t>(notice.rank);
  link.control(bye);
}

// Tell the connected members the failure `group.told`. Each other member is told when its link is
// made, so that no frame waits at a link that may never be made.
void Engine::tell_failure(const Group& group) {
  for (Link* link : group.links) {
    if (link != nullptr && !link->down && link->made())
      abort_over(*link, {group.epoch, group.rank, group.told});
  }
}

void Link::note_made() {
  if (!made_) {
    links_.note_made(*this);
    engine_.tell_past(*this);
  }
  made_ = true;
  links_.mark_dirty(*this);
}

void Link::leave_to_parent() {
  if (shm_ != nullptr) shm_->leave_to_parent();
  for (const auto& rail : rails_) rail->wire->leave_to_parent();
}

void Link::set_shm(std::unique_ptr<ShmRail> rail) {
  shm_ = std::move(rail);
  shared_ = planned_shared_ = true;
  note_made();
}

// Operations that were posted before took the link for shared memory and promised the peer nothing.
// The peer asks them for a grant as soon as it needs one.
void Link::use_wires() {
  if (made_ || down) return;
  shared_ = false;
  reconnect_ = true;
}

void Engine::hindered(int link, const std::string& why) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  links_.at(link).hindered(why);
}

// Return whether this rank is not connected to some members of the group. Such a member does not
// see the end of this rank's operations by itself.
bool Engine::sparse(const Group& group) {
  return std::ranges::any_of(group.links, [](const Link* link) {
    return link != nullptr && !link->down && !link->made();
  });
}

// Tell the connected members that the group has failed because of `culprit`, to which these members
// may have no link. A member that first learns of the failure from this message passes the message
// on. A member without a link to the culprit asks for such a link, to find out whether the
// culprit's process has ended.
void Engine::pass_on(const Group& group, int culprit) {
  if (!sparse(group)) return;
  for (std::size_t rank = 0; rank < group.links.size(); ++rank) {
    Link* link = group.links[rank];
    if (link == nullptr || link->down) continue;
    if (static_cast<int>(rank) == culprit)
      link->want();
    else if (link->made())
      abort_over(*link, {group.epoch, group.rank, group.broken});
  }
}

}  // namespace slackline
