#include "notices.h"

#include <algorithm>
#include <cstdint>

#include "headers.h"
#include "link.h"

namespace slackline {
namespace {

// Return whether the peer can be told something.
bool reachable(const Link* link) { return link != nullptr && !link->down && link->made(); }

}  // namespace

void tell_abort(Link& link, const GroupNotice& notice) {
  wire::Header header = blank_header(wire::FrameKind::kAbort);
  header.epoch = notice.epoch;
  header.source = static_cast<std::uint16_t>(notice.rank);
  header.tag = ~std::uint64_t{0};
  header.offset = static_cast<std::uint64_t>(notice.cause.fault);
  header.total = static_cast<std::uint64_t>(notice.cause.peer + 1);
  header.chunk = static_cast<std::uint16_t>(notice.cause.departure);
  link.control(header, notice.cause.message);
}

void tell_ended(Link& link, wire::Header about, const Failure& failure) {
  about.kind = static_cast<std::uint8_t>(wire::FrameKind::kAbort);
  about.offset = static_cast<std::uint64_t>(failure.fault);
  if (failure.fault == Fault::kPeer) about.total = static_cast<std::uint64_t>(failure.peer + 1);
  // Mark the failure as an aborted group: a peer may get this frame before it gets the notice
  // from the rank that has aborted the group.
  if (failure.departure == Departure::kAborted)
    about.chunk = static_cast<std::uint16_t>(Departure::kAborted);
  link.control(about, failure.message);
}

void tell_left(Link& link, const GroupNotice& notice) {
  if (notice.cause) tell_abort(link, notice);
  wire::Header bye = blank_header(wire::FrameKind::kBye);
  bye.epoch = notice.epoch;
  bye.source = static_cast<std::uint16_t>(notice.rank);
  link.control(bye);
}

void tell_failure(const Group& group) {
  for (Link* link : group.links) {
    if (reachable(link)) tell_abort(*link, {group.epoch, group.rank, group.told});
  }
}

void pass_on(const Group& group, int culprit) {
  if (!group.aggregator && !sparse(group)) return;
  GroupNotice notice{group.epoch, group.rank, group.broken};
  // The worker may be alive and have lost the aggregator alone, so the others are told of the end
  // of the aggregator: without it they find out which worker is lost.
  if (group.aggregator) notice.cause.peer = -1;
  for (std::size_t rank = 0; rank < group.links.size(); ++rank) {
    Link* link = group.links[rank];
    if (link == nullptr || link->down) continue;
    if (static_cast<int>(rank) == culprit)
      link->want();
    else if (link->made())
      tell_abort(*link, notice);
  }
}

bool sparse(const Group& group) {
  return std::ranges::any_of(group.links, [](const Link* link) {
    return link != nullptr && !link->down && !link->made();
  });
}

void tell_past(Link& link, const Membership& membership) {
  for (const auto& group : membership.shared_with(link)) {
    if (group->told) tell_abort(link, {group->epoch, group->rank, group->told});
  }
  for (const GroupNotice& notice : membership.departures()) tell_left(link, notice);
  if (membership.closing()) link.control(blank_header(wire::FrameKind::kBye));
}

}  // namespace slackline
