// The end of groups on this rank, by an abort, by closing them, or by closing the engine.
#include <algorithm>
#include <memory>
#include <string>

#include "groups.h"
#include "headers.h"
#include "link.h"
#include "notices.h"

namespace slackline {
namespace {

// Return whether the request is a receive of which nothing has been heard from the sender.
bool awaits_sender(const Request& request) {
  if (request.any && request.any_source < 0) return true;
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    if (request.key.role == role_receive(static_cast<int>(peer))) return !request.flows[peer].heard;
  }
  return false;
}

bool asks_or_lends(const wire::Header& header) {
  const bool ask = header.kind == static_cast<std::uint8_t>(wire::FrameKind::kGrant) &&
                   (header.flags & wire::kFlagEager) != 0;
  const bool lends = header.kind == static_cast<std::uint8_t>(wire::FrameKind::kData) &&
                     (header.flags & wire::kFlagReference) != 0;
  return ask || lends;
}

// Return whether this rank will receive no further message of the peer: the group has failed, and
// the peer is none whose loss is the failure.
bool expects_none_of(const Group& group, const Link& link) {
  const int rank = group.rank_of(link);
  return group.broken && !group.lost.contains(rank) && !group.told_losses.contains(rank);
}

Failure closed_here(const Group& group) {
  return Failure{
      Fault::kClosed, "the group was closed while this was outstanding", group.rank, -1, -1, -1};
}

}  // namespace

void Groups::give_up(Group& group, const std::string& reason) {
  const std::string text = "rank " + std::to_string(group.rank) + " aborted the group: " + reason;
  group.told = Failure{Fault::kPeer, text, group.rank, group.rank, -1, -1, Departure::kAborted};
  tell_failure(group);
  const Failure failure{Fault::kClosed, text, group.rank, -1, -1, -1};
  for (const auto& request : uses_.operations.open(&group))
    uses_.endings.fail(*request, failure, false);
  group.broken = failure;
  for (const auto& role : group.roles) role->close();
}

void Groups::begin_leaving(Group& group) {
  group.leaving = true;
  for (const auto& request : uses_.operations.open(&group)) {
    if (awaits_sender(*request)) uses_.endings.fail(*request, closed_here(group), false);
  }
  for (const Key& key : uses_.inbox.frames().keys_in(group.epoch)) {
    if (key.role == kRoleCollective) continue;
    for (const Unexpected& frame : uses_.inbox.frames().take(key)) {
      refuse(*frame.link, group, frame.header);
      UnexpectedFrames::drop(frame);
    }
  }
}

bool Groups::refuses(const Link& link, const wire::Header& header) const {
  if (key_of(header).role == kRoleCollective) return false;
  const std::shared_ptr<Group> group = uses_.membership.find(header.epoch);
  if (group == nullptr) return false;
  return group->leaving || (asks_or_lends(header) && expects_none_of(*group, link));
}

// A message that comes whole is not refused: its sender does not wait.
void Groups::refuse_waiting(Group& group) {
  for (const Key& key : uses_.inbox.frames().keys_in(group.epoch)) {
    const std::deque<Unexpected>& frames = *uses_.inbox.frames().find(key);
    const Link& link = *frames.front().link;
    if (key.role == kRoleCollective || !expects_none_of(group, link) ||
        std::ranges::none_of(frames, asks_or_lends, [](const Unexpected& f) { return f.header; }))
      continue;
    for (const Unexpected& frame : uses_.inbox.frames().take(key)) {
      refuse(*frame.link, group, frame.header);
      UnexpectedFrames::drop(frame);
    }
  }
}

void Groups::refuse(Link& link, const Group& group, const wire::Header& header) {
  if (!asks_or_lends(header)) return;
  wire::Header answer = blank_header(wire::FrameKind::kAbort);
  answer.epoch = header.epoch;
  answer.source = static_cast<std::uint16_t>(group.rank);
  answer.dtype = header.dtype;
  answer.op = header.op;
  answer.tag = header.tag;
  answer.flags = wire::kFlagToSender;
  if (!group.leaving) return tell_ended(link, answer, group.broken);
  answer.offset = static_cast<std::uint64_t>(Fault::kPeer);
  link.control(answer, "rank " + std::to_string(group.rank) +
                           " closed the group and did not receive this message");
}

void Groups::leave(Group& group) {
  if (group.closed) return;  // another thread closed the group meanwhile
  group.closed = true;
  for (const auto& role : group.roles) role->close();
  for (const auto& request : uses_.operations.open(&group))
    uses_.endings.fail(*request, closed_here(group), false);
  const std::shared_ptr<Group> alive = group.shared_from_this();
  const GroupNotice notice = uses_.membership.close(group);
  for (Link* link : group.links) {
    if (link != nullptr && !link->down && link->made()) tell_left(*link, notice);
  }
  uses_.links.send();
  uses_.inbox.frames().drop_group(group.epoch);
  group.sequences.clear();
  for (Link* link : group.links) {
    if (link != nullptr) uses_.endings.release_memory(*link);
  }
}

void Groups::say_bye() {
  for (const auto& [epoch, group] : uses_.membership.groups()) {
    for (const auto& role : group->roles) role->close();
    // A member that learns of the group's failure later than this rank must not take this rank for
    // its cause.
    const GroupNotice notice = Membership::notice_of(*group);
    if (!notice.cause) continue;
    for (Link* link : group->links) {
      if (link != nullptr && !link->down && link->made()) tell_abort(*link, notice);
    }
  }
  for (Link* link : uses_.links.made()) {
    if (!link->down) link->control(blank_header(wire::FrameKind::kBye));
  }
}

}  // namespace slackline
