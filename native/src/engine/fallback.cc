// The worker's side of an aggregator: copies of its contributions, and the fallback of operations
// to a group without the aggregator after it is lost. See docs/design.md, "When an aggregator is
// lost".
#include <algorithm>
#include <cstring>
#include <utility>

#include "clock.h"
#include "engine_impl.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

// An aggregator that answers no probe for this long is given up, because the fallback group can
// finish the operation without it.
constexpr std::int64_t kPatienceNs = 3'000'000'000;

}  // namespace

void Engine::fall_back(Group& group, std::shared_ptr<Group> fallback,
                       std::shared_ptr<const Program> program) {
  const Lock lock = lock_for_post();
  fallback->stands_in_for = group.weak_from_this();
  group.fallback = std::move(fallback);
  group.blocks = std::make_shared<Blocks>();
  group.fallback_program = std::move(program);
}

void Engine::begin_keeping(Job& job) {
  const Chunk& chunk = job.chunks.front();
  auto kept = std::make_shared<Kept>();
  kept->bytes = chunk.count * job.item_size;
  kept->memory = job.group->blocks->take(kept->bytes);
  kept->dtype = job.dtype;
  kept->op = job.op;
  kept->count = chunk.count;
  kept->timeout_ns = job.deadline_ns - job.posted_ns;
  job.kept = kept;
  job.group->kept[job.key] = std::move(kept);
}

// Copy a contribution up to the end of a segment and return the segment's copy. Called when the
// segment is about to be sent, because before that its result cannot have overwritten the data.
const std::byte* Engine::keep(Job& job, std::size_t offset, std::size_t bytes) {
  Kept& kept = *job.kept;
  if (kept.have < offset + bytes) {
    kernels::copy(kept.memory.get() + kept.have, job.chunks.front().source + kept.have,
                  offset + bytes - kept.have, false);
    kept.have = offset + bytes;
  }
  return kept.memory.get() + offset;
}

// Return whether the operation may still be done without the aggregator.
bool Engine::may_divert(const Job& job, const Failure& failure) {
  return job.group->fallback && !job.group->closed &&
         (failure.fault == Fault::kPeer || failure.fault == Fault::kLink ||
          failure.fault == Fault::kFrame);
}

// Abandon the group and pass its unfinished operations to the fallback. The link to the aggregator
// is cut so that no later arrival is acknowledged: the aggregator would take an acknowledgement as
// proof that this rank has the result, and would tell the others to drop their copies.
void Engine::abandon(Group& group, Failure failure) {
  Link& link = *group.links.back();
  if (!group.broken) {
    announce(link, -1, "abandoned", failure.message);
    group.broken = std::move(failure);
    link.cut("the aggregator is not used any more");
  }
  std::vector<std::shared_ptr<Job>> open;
  for (const auto& [key, job] : jobs_) {
    if (job->group.get() == &group) open.push_back(job);
  }
  for (const auto& job : open) divert(*job);
}

void Engine::divert(Job& job) {
  const std::shared_ptr<Job> alive = job.shared_from_this();
  const std::shared_ptr<Group> group = job.group;
  const bool whole = job.active && job.open_segments == 0;
  std::byte* source = job.chunks.front().source;
  std::byte* target = job.chunks.front().target;
  const std::uint64_t count = job.chunks.front().count;
  if (job.kept) {
    if (job.kept->bytes > 0) keep(job, 0, job.kept->bytes);
    source = job.kept->memory.get();
  }
  for (Link* link : group->links) {
    if (link == nullptr) continue;
    link->withdraw(job);
    link->forget(job);
  }
  // Only acknowledgements were missing, but other ranks may need this rank's contribution.
  if (whole) {
    finish(job, JobState::kDone);
    return;
  }
  group->kept.erase(job.key);
  retire(job);
  job.group = group->fallback;
  job.program = group->fallback_program;
  job.key.epoch = job.group->epoch;
  job.divisor = job.op == wire::ReduceOp::kAvg ? job.group->size() : 1;
  job.open_segments = job.open_sends = 0;
  job.chunks.clear();
  job.lanes.assign(static_cast<std::size_t>(job.group->size()), Lane{});
  Operation operation;
  operation.source = source;
  operation.target = target;
  operation.count = count;
  lay_out(job, operation);
  to_start_.push_back(alive);
  wake();
}

// React to another rank that repeats an operation which is not open here. If this rank has finished
// the operation, its contribution is sent again. If this rank has not posted it yet, it will do so
// later.
void Engine::help(Group& group, const Key& key) {
  const std::shared_ptr<Group> served_by = group.stands_in_for.lock();
  if (served_by == nullptr) return;
  if (!served_by->broken) {
    abandon(*served_by, Failure{Fault::kPeer,
                                "rank " + std::to_string(unexpected_[key].front().header.source) +
                                    " has lost it",
                                group.rank, -1, -1, -1});
  }
  const auto it = served_by->kept.find(Key{key.tag, served_by->epoch, key.role});
  if (it == served_by->kept.end()) return;
  const std::shared_ptr<Kept> kept = it->second;
  served_by->kept.erase(it);
  Operation operation;
  operation.program = served_by->fallback_program;
  operation.dtype = kept->dtype;
  operation.op = kept->op;
  operation.source = kept->memory.get();
  operation.count = kept->count;
  operation.total_bytes = kept->bytes;
  operation.timeout_ns = kept->timeout_ns;
  operation.key = &key;
  const std::shared_ptr<Job> job = build(group, operation);
  job->kept = kept;
  job->async_counted = true;
  ++async_open_;
  to_start_.push_back(job);
  wake();
}

// Give up aggregators that are silent while operations are open.
void Engine::watch_aggregators(std::int64_t now) {
  std::vector<Link*> silent;
  for (const auto& [key, job] : jobs_) {
    if (!job->group->fallback) continue;
    Link* link = job->group->links.back();
    const std::int64_t since = std::max(link->last_heard_ns, job->posted_ns);
    if (!link->down && now - since > kPatienceNs) silent.push_back(link);
  }
  for (Link* link : silent) {
    if (link->give_up("the aggregator has not said anything for 3 s")) link_lost(*link);
  }
}

// Drop the copies of contributions whose results, as the aggregator reports, every worker has.
void Engine::forget_kept(const wire::Header& header, const Payload& payload) {
  const auto it = groups_.find(header.epoch);
  if (it == groups_.end()) return;
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= payload.length;
       at += sizeof(std::uint64_t)) {
    std::uint64_t tag = 0;
    std::memcpy(&tag, payload.data + at, sizeof tag);
    it->second->kept.erase(Key{tag, header.epoch, kRoleCollective});
  }
}

}  // namespace slackline
