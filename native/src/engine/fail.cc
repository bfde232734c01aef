// The end of operations, successful or failed, and the failure that is reported.
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "clock.h"
#include "engine_impl.h"

namespace slackline {
namespace {

constexpr std::size_t kRememberedAborts = 4096;

}  // namespace

// Break the group: its open operations fail and no new one can be posted.
void Engine::break_group(Group& group, const Failure& failure) {
  if (!group.broken) group.broken = failure;
  std::vector<std::shared_ptr<Job>> open;
  for (const auto& [key, job] : jobs_) {
    if (job->group.get() == &group) open.push_back(job);
  }
  for (const auto& job : held_) {
    if (job->group.get() == &group) open.push_back(job);
  }
  for (const auto& job : open) fail(*job, failure, true);
}

void Engine::finish(Job& job, JobState state) {
  const std::shared_ptr<Job> alive = job.shared_from_this();
  retire(job);
  ++operations_;
  job.ended_ns = now_ns();
  if (operation_log.enabled()) operation_log.add(record_of(job));
  job.kept.reset();
  job.state.store(state, std::memory_order_release);
  if (job.async_counted) --async_open_;
  if (job.group->service) served(job);
  if (!held_.empty()) start_barriers(*job.group);
  if (job.queue) std::exchange(job.queue, nullptr)->push(alive);
  if (waiters_ > 0) finished_.notify_all();
  if (caller_asleep_) ring();  // the sleeping caller may wait for this operation
  if (job.wants_callback) {
    completions_.push_back(alive);
    if (completion_sleepers_ > completion_calls_) {
      ++completion_calls_;
      wanting_.fetch_add(
          1, std::memory_order_relaxed);  // the driver releases the lock for the woken thread
      completion_.notify_one();
    }
  }
}

void Engine::retire(Job& job) {
  const bool started = job.active;
  if (job.active) {
    jobs_.erase(job.key);
    job.active = false;
  }
  const bool failed = static_cast<bool>(job.failure);
  // Memory of a failed operation that peers may still be reading is never reused.
  const bool read_still = failed && started && !job.group->service &&
                          std::ranges::any_of(job.group->links, [](const Link* link) {
                            return link != nullptr && link->shared_memory();
                          });
  for (Chunk& chunk : job.chunks) {
    for (Segment& segment : chunk.segments) {
      while (segment.first != nullptr) {
        Stash* stash = segment.first;
        segment.first = stash->next;
        if (stash->owned != nullptr) give_buffer(stash->owned);
        if ((stash->flags & wire::kFlagEager) != 0 && !stash->link->shared_memory())
          stash->link->eager_consumed(stash->length);
        stashes_.push_back(stash);
      }
      if (segment.slot < 0 || read_still) continue;
      if (failed)
        free_slots_.push_back(std::exchange(segment.slot, -1));  // nothing of it is sent any more
      else
        release_slot(job, segment);
    }
  }
  for (Chunk& chunk : job.chunks) {
    if (chunk.device_memory != nullptr) arena_.free(std::exchange(chunk.device_memory, nullptr));
  }
  if (!read_still) {
    for (std::byte* scratch : job.scratch) arena_.free(scratch);
  }
  for (Link* link : job.group->links) {
    // The same frame may be arriving on two rails after one of them failed at the peer, even if
    // only the other is left here. The rest of such a frame must not be written to memory that
    // belongs to the caller again.
    if (link == nullptr) continue;
    for (auto& rail : link->rails()) rail->wire->forget(&job, *this);
  }
  for (std::size_t peer = 0; peer < job.lanes.size(); ++peer) {
    if (std::exchange(job.lanes[peer].asks, false)) job.group->links[peer]->ask_over();
  }
  job.scratch.clear();
  for (Lane& lane : job.lanes) lane.parked.clear();
  for (Link* link : job.group->links) {
    if (link != nullptr && link->down) release_memory(*link);
  }
}

void Engine::fail(Job& job, Failure failure, bool tell_peers) {
  if (job.finished()) return;
  const std::shared_ptr<Job> alive = job.shared_from_this();
  if (may_divert(job, failure)) {
    abandon(*job.group, std::move(failure));
    if (job.group->fallback && !job.finished()) divert(job);  // its reduction had not begun
    return;
  }
  if (job.kept) job.group->kept.erase(job.key);
  if (failure.rank < 0) failure.rank = job.group->rank;
  if (failure.tag < 0) failure.tag = job.user_tag();
  if (failure.sequence < 0) failure.sequence = job.sequence();
  job.failure = std::move(failure);
  if (job.offloaded) withdraw(job);
  std::erase(any_source_, alive);
  std::erase(held_, alive);
  job.undivided = nullptr;
  const bool bound = !job.any || job.any_source >= 0;
  if (bound) {
    remember_abort(job.key, job.failure);
  }
  for (std::size_t rank = 0; rank < job.group->links.size(); ++rank) {
    Link* link = job.group->links[rank];
    if (link == nullptr) continue;
    link->forget(job);
    const bool concerned = job.key.role == kRoleCollective ||
                           job.key.role == role_receive(static_cast<int>(rank)) ||
                           job.key.role == role_send(static_cast<int>(rank));
    if (!tell_peers || !concerned || !bound || link->down || !link->wanted()) continue;
    wire::Header header = header_for(job, wire::FrameKind::kAbort);
    if (job.key.role == role_receive(static_cast<int>(rank))) header.flags |= wire::kFlagToSender;
    header.offset = static_cast<std::uint64_t>(job.failure.fault);
    link->control(header, job.failure.message);
  }
  finish(job, JobState::kFailed);
}

void Engine::on_abort(Link& link, const wire::Header& header, const Payload& payload) {
  if (intrudes(link, header)) return;
  const Key key = key_of(header);
  Failure failure;
  failure.fault = header.offset > 0 && header.offset <= static_cast<std::uint64_t>(Fault::kInternal)
                      ? static_cast<Fault>(header.offset)
                      : Fault::kPeer;
  failure.message.assign(reinterpret_cast<const char*>(payload.data), payload.length);
  failure.peer = header.source;
  if (header.tag == ~std::uint64_t{0}) {  // the abort concerns the whole group
    const auto it = groups_.find(header.epoch);
    if (it == groups_.end()) return;
    const std::shared_ptr<Group> group = it->second;
    const int culprit = static_cast<int>(std::min<std::uint64_t>(header.total, 1u << 16)) - 1;
    const bool other = culprit >= 0 && culprit < group->size() && culprit != group->rank;
    peer_left(*group, other ? culprit : group->rank_of(link), failure, Leave::kBroken);
    return;
  }
  if (const std::shared_ptr<Job> job = find(key)) {
    fail(*job, std::move(failure), sparse(*job->group));
  } else if (const auto group = finished_in(key); group && failure.fault == Fault::kMismatch) {
    failure.rank = group->rank;
    // The operation is finished here, but the ranks disagree about the order.
    break_group(*group, failure);
  } else {
    remember_abort(key, std::move(failure));
  }
}

// Remember an aborted operation, so that its frames that are still in flight are dropped on
// arrival.
void Engine::remember_abort(const Key& key, Failure failure) {
  if (const auto it = unexpected_.find(key); it != unexpected_.end()) {
    for (const Unexpected& u : it->second) discard(u);
    unexpected_.erase(it);
  }
  if (!aborted_.emplace(key, std::move(failure)).second) return;
  aborted_order_.push_back(key);
  if (aborted_order_.size() <= kRememberedAborts) return;
  aborted_.erase(aborted_order_.front());
  aborted_order_.pop_front();
}

// Drop a kept frame that no operation will use, and return the eager credit that the frame
// occupied.
void Engine::discard(const Unexpected& frame) {
  frame.link->let_go();
  const bool data = frame.header.kind == static_cast<std::uint8_t>(wire::FrameKind::kData);
  if (data && (frame.header.flags & wire::kFlagEager) != 0 && !frame.link->shared_memory())
    frame.link->eager_consumed(frame.header.length);
}

Failure Engine::no_room(const Job& job, std::size_t bytes, const char* what) const {
  return Failure{Fault::kUsage,
                 "rank " + std::to_string(job.group->rank) + ": the arena has no room for " +
                     std::to_string(bytes) + " bytes of " + what + " for " + describe(job) + ": " +
                     std::to_string(arena_.used()) + " of " + std::to_string(arena_.capacity()) +
                     " bytes are in use",
                 job.group->rank,
                 -1,
                 job.user_tag(),
                 job.sequence()};
}

void Engine::lacks_slot(Job& job) { fail(job, no_room(job, slot_bytes(), "a staging slot"), true); }

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
  for (const auto& [epoch, group] : groups_) {
    if (!group->broken) group->broken = failure;
  }
  std::vector<std::shared_ptr<Job>> open(any_source_);
  for (const auto& [key, job] : jobs_) open.push_back(job);
  for (const auto& job : to_start_) open.push_back(job);
  to_start_.clear();
  open.insert(open.end(), held_.begin(), held_.end());
  for (const auto& job : open) fail(*job, failure, failure.fault != Fault::kClosed);
}

void Engine::on_bye(Link& link, const wire::Header& header) {
  if (header.epoch == 0) link.said_bye = true;
  link.control(blank_header(wire::FrameKind::kAck));
  std::vector<std::shared_ptr<Group>> concerned;
  for (const auto& [epoch, group] : groups_) {
    if ((header.epoch == 0 || header.epoch == epoch) && group->rank_of(link) >= 0)
      concerned.push_back(group);
  }
  for (const auto& group : concerned) {
    const int rank = group->rank_of(link);
    peer_left(*group, rank,
              Failure{Fault::kPeer,
                      "rank " + std::to_string(rank) +
                          " closed the group: it called destroy_process_group() or ended",
                      group->rank, rank, -1, -1},
              Leave::kOrderly);
  }
}

// Return whether the rest of `job` depends on `rank`: the job still sends to it, or still lacks
// data from it.
bool Engine::needs(const Job& job, int rank) {
  for (const Chunk& chunk : job.chunks) {
    for (const Segment& segment : chunk.segments) {
      for (std::size_t i = segment.position; i < chunk.chain->steps.size(); ++i) {
        const Step& step = chunk.chain->steps[i];
        if (step.peer != rank || step.verb == Verb::kFold) continue;
        if (step.verb == Verb::kSend) return true;
        bool here = segment.handed && i == segment.position;
        for (const Stash* s = segment.first; s != nullptr; s = s->next)
          here = here || s->peer == rank;
        if (!here) return true;
      }
    }
  }
  return false;
}

// Return whether `job` sends anything to `rank`.
bool Engine::sends_to(const Job& job, int rank) {
  return std::ranges::any_of(job.chunks, [&](const Chunk& chunk) {
    return std::ranges::any_of(chunk.chain->steps, [&](const Step& step) {
      return step.verb == Verb::kSend && step.peer == rank;
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
  if (group.service)
    announce(*group.links[static_cast<std::size_t>(rank)], -1, "left", reason.message);
  if (group.fallback && rank == group.size() - 1) {
    if (orderly) reason.message = "it has ended its service";
    return abandon(group, std::move(reason));
  }
  if (orderly) {
    group.left.emplace(rank, std::move(reason));
  } else if (!group.broken) {
    group.broken = std::move(reason);
    pass_on(group, rank);
  }
  std::vector<std::shared_ptr<Job>> victims;
  const auto concerned = [&](const Job& job) {
    if (job.group.get() != &group) return false;
    const bool between_us = job.key.role == role_send(rank) || job.key.role == role_receive(rank);
    if (!between_us && job.key.role != kRoleCollective) return false;
    return !orderly || needs(job, rank);
  };
  for (const auto& [key, job] : jobs_) {
    if (concerned(*job)) victims.push_back(job);
  }
  for (const auto& job : any_source_) {
    if (job->group.get() == &group && (!orderly || group.all_left())) victims.push_back(job);
  }
  // Every rank owns a share, so an operation without shares needs each rank, as a barrier does.
  for (const auto& job : held_) {
    if (job->group.get() == &group) victims.push_back(job);
  }
  for (const auto& job : victims) {
    Failure each = failure;
    each.rank = group.rank;
    each.peer = rank;
    each.message += " (during " + describe(*job) + " tag " + std::to_string(job->user_tag()) +
                    " sequence " + std::to_string(job->sequence()) + ")";
    // Tell the peers, because a peer that waits for this rank does not see the cause.
    fail(*job, std::move(each), orderly);
  }
}

void Engine::link_lost(Link& link) {
  if (link.shm() != nullptr) unwatch_fd(link.shm()->control_fd());
  if (link.said_bye) {
    link.finish_borrowed();
    release_memory(link);
    return;
  }
  std::vector<std::shared_ptr<Group>> concerned;
  for (const auto& [epoch, group] : groups_) {
    if (group->rank_of(link) >= 0) concerned.push_back(group);
  }
  for (const auto& group : concerned) {
    const int rank = group->rank_of(link);
    Failure failure = link.failure;
    if (failure.fault != Fault::kFrame) failure.fault = Fault::kPeer;
    failure.message = "the link to rank " + std::to_string(rank) + " (" + link.name() +
                      ") closed unexpectedly: " + link.failure.message;
    // The peer may run into the same limit later than this rank, so tell it that the link is
    // unusable.
    peer_left(*group, rank, failure, Leave::kBroken);
  }
  release_memory(link);
}

void Engine::check_deadlines(std::int64_t now) {
  std::vector<std::shared_ptr<Job>> late;
  for (const auto& [key, job] : jobs_) {
    if (now >= job->deadline_ns) late.push_back(job);
  }
  for (const auto& job : any_source_) {
    if (now >= job->deadline_ns) late.push_back(job);
  }
  for (const auto& job : held_) {
    if (now >= job->deadline_ns) late.push_back(job);
  }
  for (const auto& job : late) {
    int peer = -1;
    const std::string who = waiting_for(*job, &peer);
    const Link* link = peer < 0 ? nullptr : job->group->links[static_cast<std::size_t>(peer)];
    const std::string known =
        link == nullptr ? "" : "; of rank " + std::to_string(peer) + ": " + link->condition(now);
    const double seconds = static_cast<double>(job->deadline_ns - job->posted_ns) / 1e9;
    std::string limit = std::to_string(seconds);
    limit.erase(limit.find_last_not_of('0') + 1);
    if (limit.back() == '.') limit.pop_back();
    fail(*job,
         Failure{link != nullptr && link->without_rail() ? Fault::kLink : Fault::kTimeout,
                 "rank " + std::to_string(job->group->rank) + ": " + describe(*job) + " tag " +
                     std::to_string(job->user_tag()) + " sequence " +
                     std::to_string(job->sequence()) + " Timed out after " + limit +
                     " s (timeout " + limit + " s) waiting for " + who + known,
                 job->group->rank, peer, job->user_tag(), job->sequence()},
         true);
  }
}

}  // namespace slackline
