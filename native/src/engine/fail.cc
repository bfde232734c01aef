// The failure of operations: its causes, the reason that is reported, and the message to the peers.
#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "../base/clock.h"
#include "../base/figures.h"
#include "engine_impl.h"

namespace slackline {
namespace {

// Time for which a member that another member has lost may still be heard. The end of a process
// reaches all its peers within one round trip, but not in the same moment.
constexpr std::int64_t kToldLossNs = 1'000'000'000;

// Return an addition to an error message about a full arena: which peers keep memory from being
// used again.
std::string withheld_words(const std::map<std::string, std::uint64_t>& bytes_by_peer) {
  std::string words;
  for (const auto& [peer, bytes] : bytes_by_peer) {
    if (bytes == 0) continue;
    words += (words.empty() ? ", of which " : " and ") + show_bytes(bytes) +
             " are freed but withheld, because " + peer +
             " may still write to them: it has not noticed yet that an operation has failed";
  }
  return words;
}

}  // namespace

// Break the group: fail its open operations and refuse new ones.
void Engine::break_group(Group& group, const Failure& failure) {
  if (!group.broken) group.broken = failure;
  std::vector<std::shared_ptr<Request>> open = operations_.started_in(group);
  std::ranges::move(operations_.held_in(group), std::back_inserter(open));
  for (const auto& request : open) fail(*request, failure, true);
}

void Engine::fail(Request& request, Failure failure, bool tell_peers) {
  if (request.finished()) return;
  const std::shared_ptr<Request> alive = request.shared_from_this();
  if (may_divert(request, failure)) {
    abandon(*request.group, std::move(failure));
    if (request.group->fallback && !request.finished())
      divert(request);  // the request's reduction had not begun
    return;
  }
  if (request.replay_copy) request.group->replay_copies.erase(request.key);
  if (failure.rank < 0) failure.rank = request.group->rank;
  if (failure.tag < 0) failure.tag = request.user_tag();
  if (failure.sequence < 0) failure.sequence = request.sequence();
  request.failure = std::move(failure);
  note_failure(request);
  operations_.forget(alive);
  request.undivided = nullptr;
  std::exception_ptr failed;
  try {
    if (request.offloaded) request.group->device->withdraw(request);
    tell_failure_of(request, tell_peers, !request.any || request.any_source >= 0);
  } catch (...) {
    failed = std::current_exception();
  }
  finish(request, RequestState::kFailed);
  if (failed) std::rethrow_exception(failed);
}

// Tell the peers that a request has failed, and remember it so that its frames are dropped. A
// request that is not `bound` to a sender is known to no peer.
void Engine::tell_failure_of(Request& request, bool tell_peers, bool bound) {
  std::exception_ptr failed;
  for (Link* link : request.group->links) {  // first of all, nothing may touch the memory any more
    try {
      if (link != nullptr) link->forget(request);
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (failed) std::rethrow_exception(failed);
  if (bound) remember_abort(request.key, request.failure);
  for (std::size_t rank = 0; rank < request.group->links.size(); ++rank) {
    Link* link = request.group->links[rank];
    if (link == nullptr) continue;
    // A peer that this rank has lent memory to must confirm the end, whoever told the peer first. A
    // rank that leaves the group lets its peers read on.
    const bool tell = tell_peers || (request.flows[rank].lent > 0 && !leaves(*request.group));
    const bool concerned = request.key.role == kRoleCollective ||
                           request.key.role == role_receive(static_cast<int>(rank)) ||
                           request.key.role == role_send(static_cast<int>(rank));
    if (!tell || !concerned || !bound || link->down || !link->wanted()) continue;
    wire::Header header = header_for(request, wire::FrameKind::kAbort);
    if (request.key.role == role_receive(static_cast<int>(rank)))
      header.flags |= wire::kFlagToSender;
    header.offset = static_cast<std::uint64_t>(request.failure.fault);
    if (request.failure.fault == Fault::kPeer)
      header.total = static_cast<std::uint64_t>(request.failure.peer + 1);
    // Mark the failure as an aborted group: a peer may get this frame before it gets the notice
    // from the rank that has aborted the group.
    if (request.failure.departure == Departure::kAborted)
      header.chunk = static_cast<std::uint16_t>(Departure::kAborted);
    link->control(header, request.failure.message);
  }
  request.told = true;
}

void Engine::on_abort(Link& link, const wire::Header& header, const Payload& payload) {
  if (membership_.excludes(link, header.epoch)) return;
  const Key key = key_of(header);
  Failure failure;
  failure.fault = header.offset > 0 && header.offset <= static_cast<std::uint64_t>(Fault::kInternal)
                      ? static_cast<Fault>(header.offset)
                      : Fault::kPeer;
  failure.message.assign(reinterpret_cast<const char*>(payload.data), payload.length);
  failure.peer = header.source;
  if (header.tag == ~std::uint64_t{0}) {  // the abort concerns the whole group
    const std::shared_ptr<Group> group = membership_.find(header.epoch);
    if (group == nullptr) return;
    const int culprit = static_cast<int>(std::min<std::uint64_t>(header.total, 1u << 16)) - 1;
    const bool other = culprit >= 0 && culprit < group->size() && culprit != group->rank;
    const int left = other ? culprit : group->rank_of(link);
    if (left == culprit && header.chunk == static_cast<std::uint16_t>(Departure::kAborted))
      failure.departure = Departure::kAborted;
    // Only a loss leaves data that may still be read; any other failure ends the group at once.
    const bool loss = left == culprit && failure.fault == Fault::kPeer;
    if (loss && told_of_loss(*group, left, failure)) return;
    peer_left(*group, left, failure, Leave::kBroken);
    return;
  }
  // The operation may not have been posted here yet, so the failure is completed before the
  // look-up.
  if (const auto group = membership_.find(header.epoch); group && failure.fault == Fault::kPeer) {
    const std::uint64_t culprit = header.total;
    if (culprit >= 1 && culprit <= group->links.size() &&
        static_cast<int>(culprit) - 1 != group->rank) {
      failure.peer = static_cast<int>(culprit) - 1;
      if (header.chunk == static_cast<std::uint16_t>(Departure::kAborted))
        failure.departure = Departure::kAborted;
    }
  }
  if (const std::shared_ptr<Request> request = operations_.find(key)) {
    const int peer = request->group->rank_of(link);
    // The peer has ended the operation, so it reads and writes none of this rank's memory any more.
    if (peer >= 0) request->flows[static_cast<std::size_t>(peer)].lent = 0;
    fail(*request, std::move(failure), sparse(*request->group));
  } else if (const auto group = finished_in(key); group && failure.fault == Fault::kMismatch) {
    failure.rank = group->rank;
    // The operation has finished on this rank, but the ranks posted operations in different orders.
    break_group(*group, failure);
  } else {
    remember_abort(key, std::move(failure));
  }
}

// Remember an aborted operation, so that its frames that are still in flight are dropped on
// arrival.
void Engine::remember_abort(const Key& key, Failure failure) {
  unexpected_.drop_all(key);
  const std::optional<Key> forgotten = aborted_.remember(key, std::move(failure));
  if (!forgotten) return;
  // Operations of one stream are posted in the order of their numbers. Of those that were posted
  // here up to the forgotten one, late frames are dropped without a further question.
  const std::shared_ptr<Group> group = membership_.find(forgotten->epoch);
  const std::uint32_t next = group == nullptr ? 0 : group->posted(*forgotten);
  if (next == 0) return;
  std::uint32_t& last = group->forgotten[Group::stream_of(*forgotten)];
  last = std::max(last, std::min(next - 1, static_cast<std::uint32_t>(forgotten->tag)));
}

// Return whether an operation was aborted, or may have been: it was posted here before an aborted
// operation that is forgotten by now.
bool Engine::was_aborted(const Key& key) const {
  if (aborted_.contains(key)) return true;
  const std::shared_ptr<Group> group = membership_.find(key.epoch);
  if (group == nullptr || group->forgotten.empty()) return false;
  const auto last = group->forgotten.find(Group::stream_of(key));
  return last != group->forgotten.end() && static_cast<std::uint32_t>(key.tag) <= last->second;
}

Failure Engine::no_room(const Request& request, std::size_t bytes, const char* what) const {
  return Failure{Fault::kUsage,
                 "rank " + std::to_string(request.group->rank) + ": the arena has no room for " +
                     show_bytes(bytes) + " of " + what + " for " + describe(request) + ": " +
                     show_bytes(arena_.used()) + " of " + show_bytes(arena_.capacity()) +
                     " are in use" + withheld_words(lent_.withheld_by_peer()),
                 request.group->rank,
                 -1,
                 request.user_tag(),
                 request.sequence()};
}

void Engine::lacks_slot(Request& request) {
  fail(request, no_room(request, slot_bytes(), "a staging slot"), true);
}

// Fail the engine after an exception in its own work, most likely a lack of memory. The interrupted
// work is half done (a frame may have been read and not handled), so no operation can safely
// continue, and no new one can be posted.
void Engine::broke_down(const std::exception& error) noexcept {
  reserve_.reset();
  try {
    // At a second breakdown the links are cut, because telling the peers takes memory.
    if (breakdown_) throw std::bad_alloc();
    breakdown_ = Failure{
        Fault::kInternal, std::string("the engine failed: ") + error.what(), -1, -1, -1, -1};
    tell_breakdown(error);
    fail_everything(breakdown_);
    drain_dirty();
  } catch (const std::exception&) {
    fail_without_memory();
  }
  reserve_.reset(new (std::nothrow) std::byte[kReserveBytes]);
}

// Tell the other members of every group that this rank takes no further part.
void Engine::tell_breakdown(const std::exception& error) {
  for (const auto& [epoch, group] : membership_.groups()) {
    if (group->broken || group->closed) continue;
    group->told =
        Failure{Fault::kPeer,
                "the engine of rank " + std::to_string(group->rank) + " failed: " + error.what(),
                -1,
                -1,
                -1,
                -1};
    tell_failure(*group);
  }
}

// Fail every operation where the memory does not even suffice to tell the peers, which find the
// links cut.
void Engine::fail_without_memory() noexcept {
  const auto brief = [](Failure& failure) {
    if (failure) return;
    failure.fault = Fault::kInternal;
    failure.message = Link::kNoMemory;
  };
  brief(breakdown_);
  for (const auto& [epoch, group] : membership_.groups()) brief(group->broken);
  for (Link* link : links_.made()) {
    if (!link->down) link->end_without_memory();
  }
  while (const std::shared_ptr<Request> request = operations_.take_any())
    end_without_memory(*request);
}

void Engine::end_without_memory(Request& request) noexcept {
  if (request.finished()) return;
  request.failure = Failure{};
  request.failure.fault = Fault::kInternal;
  request.failure.message = Link::kNoMemory;
  request.failure.rank = request.group->rank;
  try {
    finish(request, RequestState::kFailed);
  } catch (const std::exception&) {
    // finish() has published the end of the operation; its caller fails the others.
  }
}

void Engine::end_broken(Request& request) noexcept {
  try {
    fail(request, Failure(breakdown_), false);
  } catch (const std::exception&) {
    fail_without_memory();
    end_without_memory(request);
  }
}

void Engine::fail_everything(const Failure& failure) {
  for (const auto& [epoch, group] : membership_.groups()) {
    if (!group->broken) group->broken = failure;
  }
  for (const auto& request : operations_.open()) fail(*request, failure, false);
  operations_.clear_queue();
}

void Engine::on_bye(Link& link, const wire::Header& header) {
  if (header.epoch == 0) link.said_bye = true;
  if (header.epoch != 0) lent_.left(link, header.epoch);
  link.control(blank_header(wire::FrameKind::kAck));
  membership_.left(link, header.epoch);
  for (const auto& group : membership_.shared_with(link)) {
    if (header.epoch != 0 && header.epoch != group->epoch) continue;
    const int rank = group->rank_of(link);
    peer_left(*group, rank,
              Failure{Fault::kPeer,
                      "rank " + std::to_string(rank) +
                          " closed the group: it called destroy_process_group() or ended",
                      group->rank, rank, -1, -1, Departure::kClosed},
              Leave::kOrderly);
  }
}

// Return whether the rest of `request` depends on `rank`: the request still sends to it, or still
// lacks data from it.
bool Engine::needs(const Request& request, int rank) {
  for (const Chunk& chunk : request.chunks) {
    for (const Segment& segment : chunk.segments) {
      for (std::size_t i = segment.position; i < chunk.step_list->steps.size(); ++i) {
        const Step& step = chunk.step_list->steps[i];
        if (step.peer != rank || step.opcode == Opcode::kReduceAll) continue;
        if (step.opcode == Opcode::kSend) return true;
        bool here = segment.handed && i == segment.position;
        for (const PendingPayload* s = segment.first; s != nullptr; s = s->next)
          here = here || s->peer == rank;
        if (!here) return true;
      }
    }
  }
  return false;
}

// Return whether `request` sends anything to `rank`.
bool Engine::sends_to(const Request& request, int rank) {
  return std::ranges::any_of(request.chunks, [&](const Chunk& chunk) {
    return std::ranges::any_of(chunk.step_list->steps, [&](const Step& step) {
      return step.opcode == Opcode::kSend && step.peer == rank;
    });
  });
}

// Note that `rank` takes no further part in `group`. Operations that still need the rank fail; the
// others continue. A rank that closed in good order has sent all its data, so operations posted
// later may still use that data. After any other end nothing new can be posted.
void Engine::peer_left(Group& group, int rank, const Failure& failure, Leave how) {
  const bool orderly = how == Leave::kOrderly;
  const bool serves = group.aggregation != nullptr || group.fallback != nullptr;
  if (how == Leave::kLost && serves) how = Leave::kBroken;
  Failure reason = failure;
  reason.rank = group.rank;
  reason.peer = rank;
  if (group.aggregation)
    links_.announce(*group.links[static_cast<std::size_t>(rank)], -1, "left", reason.message);
  if (group.fallback && rank == group.size() - 1) {
    if (orderly) reason.message = "the aggregator has ended its service";
    return abandon(group, std::move(reason));
  }
  // A member that leaves a group that has failed is not the cause.
  const bool consequence = orderly && group.broken;
  if (how == Leave::kLost) {
    group.told_losses.erase(rank);
    group.lost.emplace(rank, reason);
  }
  if (orderly) {
    group.left.emplace(rank, std::move(reason));
  } else if (!group.broken) {
    group.broken = std::move(reason);
    pass_on(group, rank);
  }
  std::vector<std::shared_ptr<Request>> victims = operations_.started_in(group);
  std::erase_if(victims, [&](const auto& request) { return !ends_with(*request, rank, how); });
  if (!orderly || group.all_left())
    std::ranges::move(operations_.receives_in(group), std::back_inserter(victims));
  // Every rank owns a share, so an operation without shares needs each rank, as a barrier does.
  std::ranges::move(operations_.held_in(group), std::back_inserter(victims));
  for (const auto& request : victims) {
    Failure each = consequence ? group.broken : failure;
    each.rank = group.rank;
    if (!consequence) each.peer = rank;
    each.message += " (during " + describe(*request) + " " + number_words(request->key.tag) + ")";
    // Tell the peers, because a peer that waits for this rank does not see the cause.
    fail(*request, std::move(each), how != Leave::kBroken);
  }
}

// Return whether `rank`, which takes no further part in the group, ends the request. After an abort
// every collective ends. Otherwise only those end that lack data from the rank, or that the rank
// has not taken data of.
bool Engine::ends_with(const Request& request, int rank, Leave how) const {
  const bool sends = request.key.role == role_send(rank);
  if (!sends && request.key.role != role_receive(rank) && request.key.role != kRoleCollective)
    return false;
  if (how == Leave::kBroken || (how == Leave::kLost && sends)) return true;
  const PeerFlow& flow = request.flows[static_cast<std::size_t>(rank)];
  // A rank that has left grants nothing any more, so the rest of a message is never sent.
  if (sends && flow.sent < request.total) return true;
  // Segments that wait for a grant of this rank, or for a rail to it, will never be sent.
  const Link& link = *request.group->links[static_cast<std::size_t>(rank)];
  if (!flow.credit_blocked.empty() || (how == Leave::kLost && link.holds(request))) return true;
  return needs(request, rank) || flow.lent > 0;
}

// Note that another member has lost `rank`, while this rank has not: what `rank` sent to this rank
// before its end may still be unread. Wait for the data, or for the end of the link, for a limited
// time, in which nothing new can be posted. Return false if there is nothing to wait for.
bool Engine::told_of_loss(Group& group, int rank, const Failure& failure) {
  const Link* link = group.links[static_cast<std::size_t>(rank)];
  const bool serves = group.aggregation != nullptr || group.fallback != nullptr;
  if (link->down || !link->made() || serves || failure.departure == Departure::kAborted)
    return group.lost.contains(rank);
  if (group.told_losses.contains(rank)) return true;
  const std::int64_t until = now_ns() + kToldLossNs;
  group.told_losses.emplace(rank, std::pair(failure, until));
  next_told_loss_ns_ = std::min(next_told_loss_ns_, until);
  if (!group.broken) {
    group.broken = failure;
    group.broken.rank = group.rank;
    group.broken.peer = rank;
    pass_on(group, rank);
  }
  return true;
}

// End the operations that still wait for a member that another member has lost.
void Engine::end_told_losses(std::int64_t now) {
  if (now < next_told_loss_ns_) return;
  next_told_loss_ns_ = WireRail::kNever;
  std::vector<std::pair<std::shared_ptr<Group>, int>> over;
  for (const auto& [epoch, group] : membership_.groups()) {
    for (const auto& [rank, loss] : group->told_losses) {
      if (loss.second <= now)
        over.emplace_back(group, rank);
      else
        next_told_loss_ns_ = std::min(next_told_loss_ns_, loss.second);
    }
  }
  for (const auto& [group, rank] : over) {
    const Failure failure = group->told_losses.at(rank).first;
    peer_left(*group, rank, failure, Leave::kLost);
  }
}

// Return whether a request of a group that has lost a member may still succeed: the operation may
// have completed at that member before its end. A collective may if the member takes no data of
// this rank, a message if the member has sent it.
bool Engine::may_outlive_loss(const Request& request) const {
  const Group& group = *request.group;
  const auto gone = [&](int rank) {
    return group.lost.contains(rank) || group.told_losses.contains(rank);
  };
  if (!gone(group.broken.peer)) return false;  // the group was aborted, or the engine has failed
  if (request.key.role == kRoleCollective) {
    for (int rank = 0; rank < group.size(); ++rank) {
      if (gone(rank) && sends_to(request, rank)) return false;
    }
    return true;
  }
  const auto* frames = unexpected_.find(request.key);
  return frames != nullptr && std::ranges::any_of(*frames, [&](const Unexpected& frame) {
           return gone(group.rank_of(*frame.link));
         });
}

void Engine::link_lost(Link& link) {
  if (link.shm() != nullptr) loop_.unwatch(link.shm()->control_fd());
  membership_.lost(link);
  if (link.said_bye) {
    link.finish_borrowed();
    release_memory(link);
    return;
  }
  for (const auto& group : membership_.shared_with(link)) {
    const int rank = group->rank_of(link);
    Failure failure = link.failure;
    if (failure.fault != Fault::kFrame) failure.fault = Fault::kPeer;
    failure.message = "the link to rank " + std::to_string(rank) + " (" + link.name() +
                      ") closed unexpectedly: " + link.failure.message;
    // The peer may run into the same limit later than this rank, so tell the peer that the link is
    // unusable.
    peer_left(*group, rank, failure, Leave::kLost);
  }
  link.finish_borrowed();  // of the operations that go on without the peer
  release_memory(link);
}

void Engine::check_deadlines(std::int64_t now) {
  for (const auto& request : operations_.late(now)) {
    int peer = -1;
    const std::string who = waiting_for(*request, &peer);
    const Link* link = peer < 0 ? nullptr : request->group->links[static_cast<std::size_t>(peer)];
    const std::string known =
        link == nullptr ? "" : "; of rank " + std::to_string(peer) + ": " + link->condition(now);
    const double seconds = static_cast<double>(request->deadline_ns - request->posted_ns) / 1e9;
    std::string limit = std::to_string(seconds);
    limit.erase(limit.find_last_not_of('0') + 1);
    if (limit.back() == '.') limit.pop_back();
    fail(*request,
         Failure{link != nullptr && link->without_rail() ? Fault::kLink : Fault::kTimeout,
                 "rank " + std::to_string(request->group->rank) + ": " + describe(*request) + " " +
                     number_words(request->key.tag) + " Timed out after " + limit + " s (timeout " +
                     limit + " s) waiting for " + who + known,
                 request->group->rank, peer, request->user_tag(), request->sequence()},
         true);
  }
}

}  // namespace slackline
