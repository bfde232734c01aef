// The worker's side of an aggregator: copies of the worker's contributions, and, once the
// aggregator is lost, the fallback of operations to a group without the aggregator. See
// docs/design.md, "When an aggregator is lost".
#include <algorithm>
#include <cstring>
#include <utility>

#include "../base/clock.h"
#include "engine_impl.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

// Time without an answer to a probe after which an aggregator is given up, because the fallback
// group can finish the operation without it.
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

void Engine::begin_replay_copy(Request& request) {
  const Chunk& chunk = request.chunks.front();
  auto replay_copy = std::make_shared<ReplayCopy>();
  replay_copy->bytes = chunk.count * request.item_size;
  replay_copy->memory = request.group->blocks->take(replay_copy->bytes);
  replay_copy->dtype = request.dtype;
  replay_copy->op = request.op;
  replay_copy->count = chunk.count;
  replay_copy->timeout_ns = request.deadline_ns - request.posted_ns;
  request.replay_copy = replay_copy;
  request.group->replay_copies[request.key] = std::move(replay_copy);
}

// Copy a contribution up to the end of a segment and return the segment's copy. Called when the
// segment is about to be sent, because before the send no result of the segment can have
// overwritten the data.
const std::byte* Engine::keep(Request& request, std::size_t offset, std::size_t bytes) {
  ReplayCopy& replay_copy = *request.replay_copy;
  if (replay_copy.have < offset + bytes) {
    kernels::copy(replay_copy.memory.get() + replay_copy.have,
                  request.chunks.front().source + replay_copy.have,
                  offset + bytes - replay_copy.have, false);
    replay_copy.have = offset + bytes;
  }
  return replay_copy.memory.get() + offset;
}

// Return whether the operation may still be done without the aggregator.
bool Engine::may_divert(const Request& request, const Failure& failure) {
  return request.group->fallback && !request.group->closed &&
         (failure.fault == Fault::kPeer || failure.fault == Fault::kLink ||
          failure.fault == Fault::kFrame);
}

// Abandon the group and pass its unfinished operations to the fallback. The link to the aggregator
// is cut so that no later arrival is acknowledged: the aggregator would take an acknowledgement as
// proof that this rank has the result, and would tell the others to drop their copies.
void Engine::abandon(Group& group, Failure failure) {
  Link& link = *group.links.back();
  if (!group.broken) {
    links_.announce(link, -1, "abandoned", failure.message);
    group.broken = std::move(failure);
    link.cut("the aggregator is not used any more");
  }
  for (const auto& request : operations_.started_in(group)) divert(*request);
}

void Engine::divert(Request& request) {
  const std::shared_ptr<Request> alive = request.shared_from_this();
  const std::shared_ptr<Group> group = request.group;
  const bool whole = request.active && request.open_segments == 0;
  std::byte* source = request.chunks.front().source;
  std::byte* target = request.chunks.front().target;
  const std::uint64_t count = request.chunks.front().count;
  if (request.replay_copy) {
    if (request.replay_copy->bytes > 0) keep(request, 0, request.replay_copy->bytes);
    source = request.replay_copy->memory.get();
  }
  for (Link* link : group->links) {
    if (link == nullptr) continue;
    link->withdraw(request);
    link->forget(request);
  }
  // Only acknowledgements were missing, but other ranks may need this rank's contribution.
  if (whole) {
    finish(request, RequestState::kDone);
    return;
  }
  group->replay_copies.erase(request.key);
  retire(request);
  request.group = group->fallback;
  request.program = group->fallback_program;
  request.key.epoch = request.group->epoch;
  request.divisor = request.op == wire::ReduceOp::kAvg ? request.group->size() : 1;
  request.open_segments = request.open_sends = 0;
  request.chunks.clear();
  request.flows.assign(static_cast<std::size_t>(request.group->size()), PeerFlow{});
  Operation operation;
  operation.source = source;
  operation.target = target;
  operation.count = count;
  try {
    lay_out(request, operation);
    operations_.queue(alive);
  } catch (const std::exception&) {
    end_without_memory(request);  // it is in no table
    throw;
  }
  wake();
}

// Answer another rank that repeats an operation which is not open here. If this rank has finished
// the operation, send this rank's contribution again. If this rank has not posted the operation
// yet, do nothing: the later post takes part in the repetition.
void Engine::help(Group& group, const Key& key) {
  const std::shared_ptr<Group> served_by = group.stands_in_for.lock();
  if (served_by == nullptr) return;
  if (!served_by->broken) {
    abandon(*served_by,
            Failure{Fault::kPeer,
                    "rank " + std::to_string(unexpected_.find(key)->front().header.source) +
                        " has lost it",
                    group.rank, -1, -1, -1});
  }
  const auto it = served_by->replay_copies.find(Key{key.tag, served_by->epoch, key.role});
  if (it == served_by->replay_copies.end()) return;
  const std::shared_ptr<ReplayCopy> replay_copy = it->second;
  served_by->replay_copies.erase(it);
  Operation operation;
  operation.program = served_by->fallback_program;
  operation.dtype = replay_copy->dtype;
  operation.op = replay_copy->op;
  operation.source = replay_copy->memory.get();
  operation.count = replay_copy->count;
  operation.total_bytes = replay_copy->bytes;
  operation.timeout_ns = replay_copy->timeout_ns;
  operation.key = &key;
  const std::shared_ptr<Request> request = build(group, operation);
  request->replay_copy = replay_copy;
  request->async_counted = true;
  ++async_open_;
  operations_.queue(request);
  wake();
}

// Give up aggregators that are silent while operations are open.
void Engine::watch_aggregators(std::int64_t now) {
  std::vector<Link*> silent;
  for (const auto& [key, request] : operations_.started()) {
    if (!request->group->fallback) continue;
    Link* link = request->group->links.back();
    const std::int64_t since = std::max(link->last_heard_ns, request->posted_ns);
    if (!link->down && now - since > kPatienceNs) silent.push_back(link);
  }
  for (Link* link : silent) {
    if (link->give_up("the aggregator has not said anything for 3 s")) link_lost(*link);
  }
}

// Drop the copies of this rank's contributions to operations that are over: the aggregator reports
// that every worker has their results.
void Engine::forget_replay_copies(const wire::Header& header, const Payload& payload) {
  const std::shared_ptr<Group> group = membership_.find(header.epoch);
  if (group == nullptr) return;
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= payload.length;
       at += sizeof(std::uint64_t)) {
    std::uint64_t tag = 0;
    std::memcpy(&tag, payload.data + at, sizeof tag);
    group->replay_copies.erase(Key{tag, header.epoch, kRoleCollective});
  }
}

}  // namespace slackline
