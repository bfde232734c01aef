#include "groups.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "describe.h"
#include "headers.h"
#include "link.h"
#include "notices.h"
#include "steps.h"

namespace slackline {
namespace {

// Time for which a member that another member has lost may still be heard. The end of a process
// reaches all its peers within one round trip, but not in the same moment.
constexpr std::int64_t kToldLossNs = 1'000'000'000;

// Return the number of seconds between two times in nanoseconds, as short as it is exact.
std::string seconds_between(std::int64_t from_ns, std::int64_t to_ns) {
  std::string text = std::to_string(static_cast<double>(to_ns - from_ns) / 1e9);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Return the failure that an ABORT frame tells.
Failure failure_in(const wire::Header& header, const Payload& payload) {
  Failure failure;
  const bool known =
      header.offset > 0 && header.offset <= static_cast<std::uint64_t>(Fault::kInternal);
  failure.fault = known ? static_cast<Fault>(header.offset) : Fault::kPeer;
  failure.message.assign(reinterpret_cast<const char*>(payload.data), payload.length);
  failure.peer = failure.teller = header.source;
  return failure;
}

bool without_path(const Link& link) { return !link.made() || link.port().without_path(); }

bool tells_an_abort(const wire::Header& header) {
  return header.chunk == static_cast<std::uint16_t>(Departure::kAborted);
}

}  // namespace

std::shared_ptr<Group> Groups::open(std::uint32_t epoch, int rank, std::vector<Link*> links,
                                    bool rank_order) {
  if (uses_.membership.closing()) throw std::runtime_error("the engine is closed");
  bool shared = true;
  for (std::size_t i = 0; i < links.size(); ++i) {
    if ((links[i] == nullptr) != (static_cast<int>(i) == rank))
      throw std::invalid_argument("every rank except this one needs a link");
    shared = shared && (links[i] == nullptr || links[i]->planned_shared());
  }
  auto group = std::make_shared<Group>(epoch, rank, std::move(links), shared, rank_order);
  group->broken = uses_.endings.breakdown();
  uses_.membership.open(group);
  return group;
}

void Groups::remove_ended_links() {
  uses_.links.remove_ended([this](Link& link) {
    uses_.endings.release_memory(link);
    return link.port().lender() != nullptr || uses_.membership.refers_to(link) ||
           uses_.inbox.frames().hold_any_of(link) || uses_.memory.loans().lent_to(link);
  });
}

void Groups::broke(Group& group, const Failure& failure) {
  if (!group.broken) group.broken = failure;
  std::vector<std::shared_ptr<Request>> open = uses_.operations.started_in(group);
  std::ranges::move(uses_.operations.held_in(group), std::back_inserter(open));
  for (const auto& request : open) uses_.endings.fail(*request, failure, true);
}

std::shared_ptr<Group> Groups::finished_in(const Key& key) const {
  std::shared_ptr<Group> group = uses_.membership.find(key.epoch);
  if (group == nullptr || uses_.inbox.was_aborted(key)) return nullptr;
  if (group->posted(key) <= static_cast<std::uint32_t>(key.tag)) return nullptr;
  return uses_.operations.waits_to_start(key) ? nullptr : group;
}

void Groups::aborted(Link& link, const wire::Header& header, const Payload& payload) {
  if (uses_.membership.excludes(link, header.epoch)) return;
  const Key key = key_of(header);
  Failure failure = failure_in(header, payload);
  const std::shared_ptr<Group> group = uses_.membership.find(header.epoch);
  if (header.tag == ~std::uint64_t{0}) {
    if (group != nullptr)
      group_aborted(*group, link, header, std::move(failure));
    else
      uses_.membership.keep_early({&link, header, std::move(failure)});
    return;
  }
  // The operation may not have been posted here yet, so the failure is completed before the
  // look-up.
  const int culprit = static_cast<int>(std::min<std::uint64_t>(header.total, 1u << 16)) - 1;
  if (group != nullptr && failure.fault == Fault::kPeer && culprit >= 0 &&
      culprit < group->size() && culprit != group->rank) {
    failure.peer = culprit;
    if (tells_an_abort(header)) failure.departure = Departure::kAborted;
  }
  if (const std::shared_ptr<Request> request = uses_.operations.find(key)) {
    const int peer = request->group->rank_of(link);
    // The peer has ended the operation, so it reads and writes none of this rank's memory any more.
    if (peer >= 0) request->flows[static_cast<std::size_t>(peer)].lent = 0;
    uses_.endings.fail(*request, std::move(failure), sparse(*request->group));
  } else if (const auto done = finished_in(key); done && failure.fault == Fault::kMismatch) {
    failure.rank = done->rank;
    // The operation has finished on this rank, but the ranks posted operations in different orders.
    broke(*done, failure);
  } else {
    uses_.inbox.abort(key, std::move(failure));
  }
}

void Groups::group_aborted(Group& group, const Link& link, const wire::Header& header,
                           Failure failure) {
  const int culprit = static_cast<int>(std::min<std::uint64_t>(header.total, 1u << 16)) - 1;
  const bool other = culprit >= 0 && culprit < group.size() && culprit != group.rank;
  const int rank = other ? culprit : group.rank_of(link);
  if (rank == culprit && tells_an_abort(header)) failure.departure = Departure::kAborted;
  // Only a loss leaves data that may still be read; any other failure ends the group at once.
  const bool loss = rank == culprit && failure.fault == Fault::kPeer;
  if (loss && told_of_loss(group, rank, failure)) return;
  left(group, rank, failure, Leave::kBroken);
}

void Groups::said_bye(Link& link, const wire::Header& header) {
  if (header.epoch == 0) link.said_bye = true;
  if (header.epoch != 0) uses_.memory.loans().left(link, header.epoch);
  link.control(blank_header(wire::FrameKind::kAck));
  if (header.epoch != 0) uses_.membership.keep_early({&link, header, {}});
  uses_.membership.left(link, header.epoch);
  for (const auto& group : uses_.membership.shared_with(link)) {
    if (header.epoch == 0 || header.epoch == group->epoch) closed(*group, link);
  }
}

void Groups::closed(Group& group, const Link& link) {
  const int rank = group.rank_of(link);
  left(group, rank,
       Failure{Fault::kPeer,
               "rank " + std::to_string(rank) +
                   " closed the group: it called destroy_process_group() or ended",
               group.rank, rank, -1, -1, Departure::kClosed},
       Leave::kOrderly);
}

void Groups::learn_past(Group& group) {
  // Aborts first: after a loss data may still come, after an abort nothing counts.
  for (EarlyNotice& early : uses_.membership.take_early(group.epoch)) {
    if (group.rank_of(*early.link) < 0) continue;
    if (early.header.kind == static_cast<std::uint8_t>(wire::FrameKind::kAbort)) {
      group_aborted(group, *early.link, early.header, std::move(early.failure));
    } else {
      uses_.membership.left(*early.link, group.epoch);
      closed(group, *early.link);
    }
  }
  for (const Link* link : group.links) {
    if (link == nullptr) continue;
    const int rank = group.rank_of(*link);
    if (link->down)
      left(group, rank,
           Failure{Fault::kPeer,
                   "the link to rank " + std::to_string(rank) + " (" + link->name() +
                       ") closed: " + link->failure.message,
                   group.rank, rank, -1, -1},
           Leave::kLost);
    else if (link->said_bye)
      closed(group, *link);
  }
}

void Groups::left(Group& group, int rank, const Failure& failure, Leave how) {
  if (how == Leave::kLost && group.has_aggregator()) how = Leave::kBroken;
  Failure reason = failure;
  reason.rank = group.rank;
  reason.peer = rank;
  for (const auto& role : group.roles) {
    if (role->left(rank, reason, how)) return;
  }
  const bool orderly = how == Leave::kOrderly;
  // A member that leaves a group that has failed is not the cause.
  const bool consequence = orderly && group.broken;
  note_absence(group, rank, std::move(reason), how);
  std::vector<std::shared_ptr<Request>> victims = uses_.operations.started_in(group);
  std::erase_if(victims, [&](const auto& request) { return !ends_with(*request, rank, how); });
  if (!orderly || group.all_left())
    std::ranges::move(uses_.operations.receives_in(group), std::back_inserter(victims));
  // Every rank owns a share, so an operation without shares needs each rank, as a barrier does.
  std::ranges::move(uses_.operations.held_in(group), std::back_inserter(victims));
  // Tell the peers, because a peer that waits for this rank does not see the cause. The workers of
  // an aggregator repeat their operations without it.
  const bool tells = how != Leave::kBroken || (is_loss(failure) && !group.has_aggregator());
  for (const auto& request : victims) {
    Failure each = consequence ? group.broken : failure;
    each.rank = group.rank;
    if (!consequence) each.peer = rank;
    each.message += " (during " + describe(*request) + " " + number_words(request->key.tag) + ")";
    uses_.endings.fail(*request, std::move(each), tells);
  }
}

void Groups::note_absence(Group& group, int rank, Failure reason, Leave how) {
  if (how == Leave::kLost) {
    group.told_losses.erase(rank);
    group.lost.emplace(rank, reason);
  }
  if (how == Leave::kOrderly) {
    group.left.emplace(rank, std::move(reason));
  } else if (!group.broken) {
    group.broken = std::move(reason);
    pass_on(group, rank);
    refuse_waiting(group);
  }
}

// Return whether `rank`, which takes no further part in the group, ends the request. After an abort
// every collective ends. Otherwise only those end that lack data from the rank, or that the rank
// has not taken data of.
bool Groups::ends_with(const Request& request, int rank, Leave how) const {
  const bool sends = request.key.role == role_send(rank);
  if (!sends && request.key.role != role_receive(rank) && request.key.role != kRoleCollective)
    return false;
  if (how == Leave::kBroken || (how == Leave::kLost && sends)) return true;
  const PeerFlow& flow = request.flows[static_cast<std::size_t>(rank)];
  // A rank that has left grants nothing any more, so the rest of a message is never sent.
  if (sends && flow.sent < request.total) return true;
  // Segments that wait to be sent to this rank, for its grant or for a rail, stay for ever.
  const Link& link = *request.group->links[static_cast<std::size_t>(rank)];
  if (!flow.credit_blocked.empty() || link.queue().holds(request)) return true;
  return needs(request, rank) || flow.lent > 0;
}

// Note that another member has lost `rank`, while this rank has not: what `rank` sent to this rank
// before its end may still be unread. Wait for the data, or for the end of the link, for a limited
// time, in which nothing new can be posted. Return false if there is nothing to wait for.
bool Groups::told_of_loss(Group& group, int rank, const Failure& failure) {
  const Link* link = group.links[static_cast<std::size_t>(rank)];
  if (link->down || !link->made() || group.has_aggregator() ||
      failure.departure == Departure::kAborted)
    return group.lost.contains(rank);
  if (group.told_losses.contains(rank)) return true;
  const std::int64_t until = uses_.clock.now() + kToldLossNs;
  group.told_losses.emplace(rank, std::pair(failure, until));
  next_told_loss_ns_ = std::min(next_told_loss_ns_, until);
  if (!group.broken) {
    group.broken = failure;
    group.broken.rank = group.rank;
    group.broken.peer = rank;
    pass_on(group, rank);
    refuse_waiting(group);
  }
  return true;
}

void Groups::end_told_losses() {
  const std::int64_t now = uses_.clock.now();
  if (now < next_told_loss_ns_) return;
  next_told_loss_ns_ = WireRail::kNever;
  std::vector<std::pair<std::shared_ptr<Group>, int>> over;
  for (const auto& [epoch, group] : uses_.membership.groups()) {
    for (const auto& [rank, loss] : group->told_losses) {
      if (loss.second <= now)
        over.emplace_back(group, rank);
      else
        next_told_loss_ns_ = std::min(next_told_loss_ns_, loss.second);
    }
  }
  for (const auto& [group, rank] : over) {
    const Failure failure = group->told_losses.at(rank).first;
    left(*group, rank, failure, Leave::kLost);
  }
}

void Groups::lost(Link& link) {
  uses_.membership.lost(link);
  if (!link.said_bye) {
    for (const auto& group : uses_.membership.shared_with(link)) {
      const int rank = group->rank_of(link);
      Failure failure = link.failure;
      if (failure.fault != Fault::kFrame) failure.fault = Fault::kPeer;
      failure.message = "the link to rank " + std::to_string(rank) + " (" + link.name() +
                        ") closed unexpectedly: " + link.failure.message;
      // The peer may run into the same limit later than this rank, so tell the peer that the link
      // is unusable.
      left(*group, rank, failure, Leave::kLost);
      tell_for(*group, rank);
    }
  }
  link.port().finish_sends();  // of the operations that go on without the peer
  uses_.endings.release_memory(link);
}

// Tell the others of the operations whose failure the lost rank has told: its end may have kept it
// from telling all.
void Groups::tell_for(const Group& group, int lost) {
  if (group.has_aggregator()) return;
  for (const Key& key : uses_.inbox.told_by(lost, group.epoch))
    uses_.endings.refuse(group, key, Failure(*uses_.inbox.failure_of(key)));
}

void Groups::end_late() {
  const std::int64_t now = uses_.clock.now();
  for (const auto& request : uses_.operations.late(now)) {
    int peer = -1;
    const std::string who = uses_.reports.waiting_for(*request, &peer);
    const Link* link = peer < 0 ? nullptr : request->group->links[static_cast<std::size_t>(peer)];
    const std::string known =
        link == nullptr ? "" : "; of rank " + std::to_string(peer) + ": " + link->condition();
    const std::string limit = seconds_between(request->posted_ns, request->deadline_ns);
    uses_.endings.fail(
        *request,
        Failure{link != nullptr && without_path(*link) ? Fault::kLink : Fault::kTimeout,
                "rank " + std::to_string(request->group->rank) + ": " + describe(*request) + " " +
                    number_words(request->key.tag) + " Timed out after " + limit + " s (timeout " +
                    limit + " s) waiting for " + who + known,
                request->group->rank, peer, request->user_tag(), request->sequence()},
        true);
  }
}

}  // namespace slackline
