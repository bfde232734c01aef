// The failure of operations: its causes, the reason that is reported, and the message to the peers.
#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "engine_impl.h"

namespace slackline {

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
  if (request.offloaded) request.group->device->withdraw(request);
  operations_.forget(alive);
  request.undivided = nullptr;
  const bool bound = !request.any || request.any_source >= 0;
  if (bound) {
    remember_abort(request.key, request.failure);
  }
  for (std::size_t rank = 0; rank < request.group->links.size(); ++rank) {
    Link* link = request.group->links[rank];
    if (link == nullptr) continue;
    link->forget(request);
    const bool concerned = request.key.role == kRoleCollective ||
                           request.key.role == role_receive(static_cast<int>(rank)) ||
                           request.key.role == role_send(static_cast<int>(rank));
    if (!tell_peers || !concerned || !bound || link->down || !link->wanted()) continue;
    wire::Header header = header_for(request, wire::FrameKind::kAbort);
    if (request.key.role == role_receive(static_cast<int>(rank)))
      header.flags |= wire::kFlagToSender;
    header.offset = static_cast<std::uint64_t>(request.failure.fault);
    link->control(header, request.failure.message);
  }
  finish(request, RequestState::kFailed);
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
    peer_left(*group, left, failure, Leave::kBroken);
    return;
  }
  if (const std::shared_ptr<Request> request = operations_.find(key)) {
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
                     std::to_string(bytes) + " bytes of " + what + " for " + describe(request) +
                     ": " + std::to_string(arena_.used()) + " of " +
                     std::to_string(arena_.capacity()) + " bytes are in use",
                 request.group->rank,
                 -1,
                 request.user_tag(),
                 request.sequence()};
}

void Engine::lacks_slot(Request& request) {
  fail(request, no_room(request, slot_bytes(), "a staging slot"), true);
}

// Fail every operation after an exception in the engine itself, most likely a lack of memory. The
// interrupted work is half done (a frame may have a number without being sent), so no operation can
// safely continue.
void Engine::broke_down(const std::exception& error) {
  reserve_.reset();
  fail_everything(
      Failure{Fault::kInternal, std::string("the engine failed: ") + error.what(), -1, -1, -1, -1});
  reserve_.reset(new (std::nothrow) std::byte[kReserveBytes]);
}

void Engine::fail_everything(const Failure& failure) {
  for (const auto& [epoch, group] : membership_.groups()) {
    if (!group->broken) group->broken = failure;
  }
  for (const auto& request : operations_.take_all())
    fail(*request, failure, failure.fault != Fault::kClosed);
}

void Engine::on_bye(Link& link, const wire::Header& header) {
  if (header.epoch == 0) link.said_bye = true;
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
  Failure reason = failure;
  reason.rank = group.rank;
  reason.peer = rank;
  if (group.aggregation)
    links_.announce(*group.links[static_cast<std::size_t>(rank)], -1, "left", reason.message);
  if (group.fallback && rank == group.size() - 1) {
    if (orderly) reason.message = "the aggregator has ended its service";
    return abandon(group, std::move(reason));
  }
  if (orderly) {
    group.left.emplace(rank, std::move(reason));
  } else if (!group.broken) {
    group.broken = std::move(reason);
    pass_on(group, rank);
  }
  std::vector<std::shared_ptr<Request>> victims = operations_.started_in(group);
  std::erase_if(victims, [&](const auto& request) {
    const bool between_us =
        request->key.role == role_send(rank) || request->key.role == role_receive(rank);
    if (!between_us && request->key.role != kRoleCollective) return true;
    return orderly && !needs(*request, rank);
  });
  if (!orderly || group.all_left())
    std::ranges::move(operations_.receives_in(group), std::back_inserter(victims));
  // Every rank owns a share, so an operation without shares needs each rank, as a barrier does.
  std::ranges::move(operations_.held_in(group), std::back_inserter(victims));
  for (const auto& request : victims) {
    Failure each = failure;
    each.rank = group.rank;
    each.peer = rank;
    each.message += " (during " + describe(*request) + " tag " +
                    std::to_string(request->user_tag()) + " sequence " +
                    std::to_string(request->sequence()) + ")";
    // Tell the peers, because a peer that waits for this rank does not see the cause.
    fail(*request, std::move(each), orderly);
  }
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
    peer_left(*group, rank, failure, Leave::kBroken);
  }
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
                 "rank " + std::to_string(request->group->rank) + ": " + describe(*request) +
                     " tag " + std::to_string(request->user_tag()) + " sequence " +
                     std::to_string(request->sequence()) + " Timed out after " + limit +
                     " s (timeout " + limit + " s) waiting for " + who + known,
                 request->group->rank, peer, request->user_tag(), request->sequence()},
         true);
  }
}

}  // namespace slackline
