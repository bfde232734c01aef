// How operations end, well or badly, and what is said about it.
#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "clock.h"
#include "engine_impl.h"

namespace slackline {
namespace {

constexpr std::size_t kRememberedAborts = 4096;

const char* name_of(wire::Collective c) {
  constexpr std::array<const char*, 11> kNames = {
      "nothing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
      "gather",  "scatter",    "all_to_all",     "barrier",    "message"};
  const auto i = static_cast<std::size_t>(c);
  return i < kNames.size() ? kNames[i] : "unknown collective";
}

const char* name_of(wire::ReduceOp op) {
  constexpr std::array<const char*, 9> kNames = {"",     "sum",  "avg", "min", "max",
                                                 "prod", "band", "bor", "bxor"};
  const auto i = static_cast<std::size_t>(op);
  return i < kNames.size() ? kNames[i] : "unknown reduction";
}

const char* name_of(wire::DType dtype) {
  constexpr std::array<const char*, 14> kNames = {
      "none",  "float32", "float64", "float16", "bfloat16", "int8",   "int16",
      "int32", "int64",   "uint8",   "uint16",  "uint32",   "uint64", "bool"};
  const auto i = static_cast<std::size_t>(dtype);
  return i < kNames.size() ? kNames[i] : "unknown dtype";
}

std::string describe_operation(wire::Collective collective, wire::ReduceOp op, wire::DType dtype,
                               std::uint64_t total, int plan) {
  if (collective == wire::Collective::kBarrier) return "barrier()";
  std::string text = name_of(collective);
  text += "(";
  if (op != wire::ReduceOp::kNone) text += std::string(name_of(op)) + ", ";
  text += std::string(name_of(dtype)) + ", " + std::to_string(total) + " bytes";
  if (plan != 0) text += ", plan " + std::to_string(plan);
  return text + ")";
}

}  // namespace

std::string Engine::describe(const Job& job) const {
  return describe_operation(job.collective, job.op, job.dtype, job.total, 0);
}

Failure Engine::mismatch(const Job& job, const wire::Header& header) const {
  const auto collective = static_cast<wire::Collective>(header.op >> 4);
  const int plan = job.program ? job.program->plan : 0;
  const std::string theirs =
      describe_operation(collective, static_cast<wire::ReduceOp>(header.op & 0xF),
                         static_cast<wire::DType>(header.dtype), header.total, header.flags >> 8);
  const std::string ours = describe_operation(job.collective, job.op, job.dtype, job.total, plan);
  std::string text;
  if (theirs == ours) {
    text = "the ranks disagree on " + describe(job) + ": rank " + std::to_string(header.source) +
           " sent chunk " + std::to_string(header.chunk) + ", which rank " +
           std::to_string(job.group->rank) +
           " does not expect from it (is the root the same on every rank?)";
  } else {
    text = "the ranks disagree: rank " + std::to_string(header.source) + " posted " + theirs +
           " where rank " + std::to_string(job.group->rank) + " posted " + ours;
  }
  return Failure{Fault::kMismatch, std::move(text), job.group->rank,
                 header.source,    job.user_tag(),  job.sequence()};
}

// An operation of the same kind that `rank` has posted, and perhaps given up, and this rank has
// not.
std::optional<Key> Engine::posted_instead(const Job& job, int rank) const {
  for (const auto& [key, frames] : unexpected_) {
    if (key.epoch == job.key.epoch && key.role == job.key.role && !frames.empty() &&
        frames.front().header.source == rank)
      return key;
  }
  for (const auto& [key, failure] : aborted_) {
    const bool told_by_peer = failure.rank < 0 && failure.peer == rank;
    if (key.epoch == job.key.epoch && key.role == job.key.role && told_by_peer) return key;
  }
  return std::nullopt;
}

// Data for an operation that this rank has finished without it: the sender posted something else.
void Engine::on_stray(Group& group, const wire::Header& header) {
  const std::string theirs = describe_operation(
      static_cast<wire::Collective>(header.op >> 4), static_cast<wire::ReduceOp>(header.op & 0xF),
      static_cast<wire::DType>(header.dtype), header.total, 0);
  const auto tag = static_cast<std::uint32_t>(header.tag >> 32) & 0xFFFFFFu;
  const auto sequence = static_cast<std::uint32_t>(header.tag);
  const Failure failure{Fault::kMismatch,
                        "the ranks disagree: rank " + std::to_string(header.source) +
                            " sent data of " + theirs + " tag " + std::to_string(tag) +
                            " sequence " + std::to_string(sequence) + ", which rank " +
                            std::to_string(group.rank) +
                            " has finished without it (is the root the same on every rank?)",
                        group.rank,
                        header.source,
                        tag,
                        sequence};
  if (!group.broken) group.broken = failure;
  std::vector<std::shared_ptr<Job>> open;
  for (const auto& [key, job] : jobs_) {
    if (job->group.get() == &group) open.push_back(job);
  }
  for (const auto& job : open) fail(*job, failure, true);
}

// Who is awaited, and what is known about it. `*peer` is the first such rank, -1 when only
// acknowledgements are missing.
std::string Engine::waiting_for(const Job& job, int* peer) const {
  *peer = -1;
  if (job.any && job.any_source < 0) return "any rank, and none has sent a message with this tag";
  std::vector<bool> awaited(job.lanes.size(), false);
  for (const Chunk& chunk : job.chunks) {
    for (const Segment& segment : chunk.segments) {
      for (std::size_t i = segment.position; i < chunk.chain->steps.size(); ++i) {
        const Step& step = chunk.chain->steps[i];
        if (step.verb == Verb::kSend || step.verb == Verb::kFold) continue;
        bool here = false;
        for (const Stash* s = segment.first; s != nullptr; s = s->next)
          here = here || s->peer == step.peer;
        if (!here) awaited[step.peer] = true;
        if (step.verb != Verb::kHold) break;
      }
    }
  }
  std::string text;
  for (std::size_t rank = 0; rank < awaited.size(); ++rank) {
    if (!awaited[rank]) continue;
    if (*peer < 0) *peer = static_cast<int>(rank);
    if (!text.empty()) text += ", ";
    text += "rank " + std::to_string(rank) +
            (job.lanes[rank].heard ? " (which has begun it)" : " (which has not posted it)");
    if (job.lanes[rank].heard) continue;
    if (const std::optional<Key> other = posted_instead(job, static_cast<int>(rank))) {
      text += " but has posted tag " +
              std::to_string(static_cast<std::uint32_t>(other->tag >> 32) & 0xFFFFFFu) +
              " sequence " + std::to_string(static_cast<std::uint32_t>(other->tag));
    }
  }
  if (text.empty()) {
    for (std::size_t rank = 0; rank < job.lanes.size(); ++rank) {
      if (job.group->links[rank] == nullptr) continue;
      if (!job.lanes[rank].parked.empty() || job.lanes[rank].sent > 0) {
        if (*peer < 0) *peer = static_cast<int>(rank);
        text +=
            (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " to take what was sent";
      }
    }
  }
  return text.empty() ? "its peers" : text;
}

void Engine::finish(Job& job, JobState state) {
  const std::shared_ptr<Job> alive = job.shared_from_this();
  retire(job);
  ++operations_;
  job.state.store(state, std::memory_order_release);
  if (job.async_counted) --async_open_;
  if (waiters_ > 0) finished_.notify_all();
  if (caller_asleep_) ring();  // it may be the sleeper's operation
  if (job.wants_callback) {
    completions_.push_back(alive);
    completion_.notify_one();
  }
}

void Engine::retire(Job& job) {
  const bool started = job.active;
  if (job.active) {
    jobs_.erase(job.key);
    job.active = false;
  }
  const bool failed = static_cast<bool>(job.failure);
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
      // A peer may still read the slot of a failed operation: it is never used again.
      if (segment.slot >= 0 && !failed) release_slot(job, segment);
    }
  }
  if (!failed || !started) {
    for (std::byte* scratch : job.scratch) arena_.free(scratch);
  }
  for (Link* link : job.group->links) {
    // The same frame may be coming in on two rails after one of them failed at the peer: what is
    // left of it must not reach memory that is the caller's again.
    if (link == nullptr || link->streams().size() < 2) continue;
    for (auto& rail : link->streams()) rail->forget(&job, *this);
  }
  job.scratch.clear();
  for (Lane& lane : job.lanes) lane.parked.clear();
}

void Engine::fail(Job& job, Failure failure, bool tell_peers) {
  if (job.finished()) return;
  const std::shared_ptr<Job> alive = job.shared_from_this();
  if (failure.rank < 0) failure.rank = job.group->rank;
  if (failure.tag < 0) failure.tag = job.user_tag();
  if (failure.sequence < 0) failure.sequence = job.sequence();
  job.failure = std::move(failure);
  std::erase(any_source_, alive);
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
    if (!tell_peers || !concerned || !bound || link->down) continue;
    wire::Header header = header_for(job, wire::FrameKind::kAbort);
    if (job.key.role == role_receive(static_cast<int>(rank))) header.flags |= wire::kFlagToSender;
    header.offset = static_cast<std::uint64_t>(job.failure.fault);
    link->control(header, job.failure.message);
  }
  finish(job, JobState::kFailed);
}

void Engine::on_abort(Link& link, const wire::Header& header, const Payload& payload) {
  const Key key = key_of(header);
  Failure failure;
  failure.fault = header.offset > 0 && header.offset <= static_cast<std::uint64_t>(Fault::kInternal)
                      ? static_cast<Fault>(header.offset)
                      : Fault::kPeer;
  failure.message.assign(reinterpret_cast<const char*>(payload.data), payload.length);
  failure.peer = header.source;
  if (header.tag == ~std::uint64_t{0}) {  // the whole group
    const auto it = groups_.find(header.epoch);
    if (it != groups_.end() && it->second->rank_of(link) >= 0)
      peer_left(*it->second, it->second->rank_of(link), failure);
    return;
  }
  if (const std::shared_ptr<Job> job = find(key)) {
    fail(*job, std::move(failure), false);
  } else {
    remember_abort(key, std::move(failure));
  }
}

// Frames of an aborted operation that are still under way are dropped when they come.
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

// A frame that nobody will use: the room that it took with the peer's eager credit is free again.
void Engine::discard(const Unexpected& frame) {
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

// The engine's own machinery threw: nothing on it can be trusted to go on.
void Engine::fail_everything(const Failure& failure) {
  for (const auto& [epoch, group] : groups_) {
    if (!group->broken) group->broken = failure;
  }
  std::vector<std::shared_ptr<Job>> open(any_source_);
  for (const auto& [key, job] : jobs_) open.push_back(job);
  for (const auto& job : to_start_) open.push_back(job);
  to_start_.clear();
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
                      group->rank, rank, -1, -1});
  }
}

// Whether what is left of `job` cannot be done without `rank`: it sends to it, or needs what has
// not arrived from it.
bool Engine::needs(const Job& job, int rank) {
  for (const Chunk& chunk : job.chunks) {
    for (const Segment& segment : chunk.segments) {
      for (std::size_t i = segment.position; i < chunk.chain->steps.size(); ++i) {
        const Step& step = chunk.chain->steps[i];
        if (step.peer != rank || step.verb == Verb::kFold) continue;
        if (step.verb == Verb::kSend) return true;
        bool here = false;
        for (const Stash* s = segment.first; s != nullptr; s = s->next)
          here = here || s->peer == rank;
        if (!here) return true;
      }
    }
  }
  return false;
}

// Whether `job` sends anything to `rank`.
bool Engine::sends_to(const Job& job, int rank) {
  return std::ranges::any_of(job.chunks, [&](const Chunk& chunk) {
    return std::ranges::any_of(chunk.chain->steps, [&](const Step& step) {
      return step.verb == Verb::kSend && step.peer == rank;
    });
  });
}

// `rank` takes no further part in `group`. What still needs it fails and what does not goes on. One
// that closed in good order has sent all that it owed, so operations that are posted later may find
// that waiting for them; otherwise nothing new can be posted.
void Engine::peer_left(Group& group, int rank, const Failure& failure) {
  const bool orderly = failure.message.find(" closed the group") != std::string::npos;
  Failure reason = failure;
  reason.rank = group.rank;
  reason.peer = rank;
  if (orderly) {
    group.left.emplace(rank, std::move(reason));
  } else if (!group.broken) {
    group.broken = std::move(reason);
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
  for (const auto& job : victims) {
    Failure each = failure;
    each.rank = group.rank;
    each.peer = rank;
    each.message += " (during " + describe(*job) + " tag " + std::to_string(job->user_tag()) +
                    " sequence " + std::to_string(job->sequence()) + ")";
    // Whoever waits for us does not see what we waited for.
    fail(*job, std::move(each), orderly);
  }
}

void Engine::link_lost(Link& link) {
  if (link.said_bye) {
    link.finish_borrowed();
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
    // The peer may stand before a wall that we see first: it has to learn that its link to us is
    // useless.
    peer_left(*group, rank, failure);
  }
}

void Engine::check_deadlines(std::int64_t now) {
  std::vector<std::shared_ptr<Job>> late;
  for (const auto& [key, job] : jobs_) {
    if (now >= job->deadline_ns) late.push_back(job);
  }
  for (const auto& job : any_source_) {
    if (now >= job->deadline_ns) late.push_back(job);
  }
  for (const auto& job : late) {
    int peer = -1;
    const std::string who = waiting_for(*job, &peer);
    const double seconds = static_cast<double>(job->deadline_ns - job->posted_ns) / 1e9;
    std::string limit = std::to_string(seconds);
    limit.erase(limit.find_last_not_of('0') + 1);
    if (limit.back() == '.') limit.pop_back();
    fail(*job,
         Failure{Fault::kTimeout,
                 "rank " + std::to_string(job->group->rank) + ": " + describe(*job) + " tag " +
                     std::to_string(job->user_tag()) + " sequence " +
                     std::to_string(job->sequence()) + " Timed out after " + limit +
                     " s (timeout " + limit + " s) waiting for " + who,
                 job->group->rank, peer, job->user_tag(), job->sequence()},
         true);
  }
}

}  // namespace slackline
