#include "worker.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "groups.h"
#include "headers.h"
#include "link.h"
#include "notices.h"
#include "offload.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

// Time without an answer to a probe after which an aggregator is given up, because the fallback
// group can finish the operation without it.
constexpr std::int64_t kPatienceNs = 3'000'000'000;

// Return whether a failure may be one of the aggregator alone, without which the workers go on:
// that of a peer, a link or a frame.
bool may_go_on(const Failure& failure) {
  return failure.fault == Fault::kPeer || failure.fault == Fault::kLink ||
         failure.fault == Fault::kFrame;
}

}  // namespace

void Worker::started(Request& request) {
  const Chunk& chunk = request.chunks.front();
  auto copy = std::make_shared<ReplayCopy>();
  copy->bytes = chunk.count * request.item_size;
  copy->memory = blocks_->take(copy->bytes);
  copy->dtype = request.dtype;
  copy->op = request.op;
  copy->count = chunk.count;
  copy->timeout_ns = request.deadline_ns - request.posted_ns;
  copy->program = repetition_of(request);
  request.replay_copy = copy;
  request.aggregated = true;
  copies_[request.key] = std::move(copy);
}

const std::shared_ptr<const Program>& Worker::repetition_of(const Request& request) const {
  const auto& own = request.program->repeated_by;
  return own ? own : program_;
}

const std::byte* Worker::keep(const Request& request, std::size_t offset, std::size_t bytes) {
  ReplayCopy& copy = *request.replay_copy;
  if (copy.have < offset + bytes) {
    kernels::copy(copy.memory.get() + copy.have, request.chunks.front().source + copy.have,
                  offset + bytes - copy.have, false);
    copy.have = offset + bytes;
  }
  return copy.memory.get() + offset;
}

bool Worker::failed(Request& request, Failure& failure) {
  if (!group_.closed && may_go_on(failure)) {
    abandon(std::move(failure));
    // The request's reduction had not begun if abandon() did not find it.
    if (request.group.get() == &group_ && !request.finished()) divert(request);
    return true;
  }
  if (request.replay_copy) copies_.erase(request.key);
  // Members that have lost the aggregator may repeat the operation in the fallback group already.
  if (group_.broken && !group_.closed)
    uses_.endings.refuse(*fallback_, {request.key.tag, fallback_->epoch, request.key.role},
                         failure);
  return false;
}

// The link to the aggregator is cut so that no later arrival is acknowledged: the aggregator would
// take an acknowledgement as proof that this rank has the result, and would tell the others to drop
// their copies.
void Worker::abandon(Failure failure) {
  Link& link = *group_.links.back();
  if (!group_.broken) {
    uses_.links.events().announce(link, -1, "abandoned", failure.message);
    group_.broken = std::move(failure);
    link.port().cut("the aggregator is not used any more");
  }
  for (const auto& request : uses_.operations.started_in(group_)) divert(*request);
}

void Worker::divert(Request& request) {
  const std::shared_ptr<Request> alive = request.shared_from_this();
  const bool whole = request.active && request.open_segments == 0;
  std::byte* source = request.chunks.front().source;
  if (request.replay_copy) {
    if (request.replay_copy->bytes > 0) keep(request, 0, request.replay_copy->bytes);
    source = request.replay_copy->memory.get();
  }
  for (Link* link : group_.links) {
    if (link == nullptr) continue;
    link->queue().remove(request);
    link->port().forget(request);
  }
  // Only acknowledgements were missing, but other ranks may need this rank's contribution.
  if (whole) {
    if (request.last_divisor > 1) Offload::divide_last(request);
    return uses_.endings.succeed(request);
  }
  copies_.erase(request.key);
  uses_.endings.retire(request);
  begin_anew(request, source);
}

void Worker::begin_anew(Request& request, std::byte* source) {
  Operation operation;
  operation.source = source;
  operation.target = request.chunks.front().target;
  operation.count = request.chunks.front().count;
  request.group = fallback_;
  request.program = repetition_of(request);
  request.key.epoch = fallback_->epoch;
  const std::optional<Tree>& tree = request.program->tree();
  request.divisor = request.op != wire::ReduceOp::kAvg ? 1
                    : tree                             ? tree->leaves
                                                       : fallback_->size();
  request.last_divisor = 1;
  request.open_segments = request.open_sends = 0;
  request.chunks.clear();
  request.flows.assign(static_cast<std::size_t>(fallback_->size()), PeerFlow{});
  try {
    uses_.executor.builder().divide(request, operation);
    uses_.operations.queue(request.shared_from_this());
  } catch (const std::exception&) {
    uses_.endings.end_without_memory(request);  // it is in no table
    throw;
  }
  uses_.bell.wake();
}

bool Worker::left(int rank, const Failure& reason, Leave how) {
  if (rank != group_.size() - 1) return false;
  Failure failure = reason;
  if (how == Leave::kOrderly) failure.message = "the aggregator has ended its service";
  abandon(std::move(failure));
  return true;
}

// Give the aggregator up if it is silent while operations are open.
void Worker::watch() {
  Link& link = *group_.links.back();
  const std::int64_t now = uses_.clock.now();
  const bool silent =
      std::ranges::any_of(uses_.operations.started_in(group_), [&](const auto& request) {
        return now - std::max(link.last_heard_ns, request->posted_ns) > kPatienceNs;
      });
  if (silent && !link.down && link.give_up("the aggregator has not said anything for 3 s"))
    uses_.groups.lost(link);
}

// Drop the copies of operations that are over: every worker has their results.
void Worker::reported(const Payload& payload) {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= payload.length;
       at += sizeof(std::uint64_t)) {
    std::uint64_t tag = 0;
    std::memcpy(&tag, payload.data + at, sizeof tag);
    copies_.erase(Key{tag, group_.epoch, kRoleCollective});
  }
}

std::shared_ptr<ReplayCopy> Worker::take_copy(const Key& key) {
  const auto found = copies_.extract(key);
  return found ? found.mapped() : nullptr;
}

void StandIn::early(const Key& key) {
  const std::shared_ptr<Group> served = served_.lock();
  if (served == nullptr || key.role != kRoleCollective) return;
  Worker& worker = *served->worker;
  if (!served->broken) {
    const int source = uses_.inbox.frames().find(key)->front().header.source;
    worker.abandon(Failure{Fault::kPeer, "rank " + std::to_string(source) + " has lost it",
                           group_.rank, -1, -1, -1});
  }
  const Key own{key.tag, served->epoch, key.role};
  const Failure* failure = uses_.inbox.failure_of(own);
  if (failure != nullptr && !may_go_on(*failure))
    return uses_.endings.refuse(group_, key, *failure);
  const std::shared_ptr<ReplayCopy> copy = worker.take_copy(own);
  if (copy == nullptr) return;
  Operation operation;
  operation.program = copy->program;
  operation.dtype = copy->dtype;
  operation.op = copy->op;
  operation.source = copy->memory.get();
  operation.count = copy->count;
  operation.total_bytes = copy->bytes;
  operation.timeout_ns = copy->timeout_ns;
  operation.key = &key;
  const std::shared_ptr<Request> request = uses_.executor.builder().build(group_, operation);
  request->replay_copy = copy;
  request->aggregated = true;
  request->async_counted = true;
  uses_.bell.unattended();
  uses_.operations.queue(request);
  uses_.bell.wake();
}

}  // namespace slackline
