// The aggregator: the last member of a group, which adds for the others. An aggregator posts no
// operations. An operation begins when every worker has sent some of its data, with the parameters
// in the headers of the workers' frames.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "../base/clock.h"
#include "engine_impl.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

constexpr std::int64_t kNoTimeout = std::int64_t{1}
                                    << 62;  // the workers have timeouts of their own
// Limits at which the aggregator reports which results every worker has, counted in results and in
// the bytes that the workers keep for them.
constexpr std::size_t kMostTags = 16;
constexpr std::uint64_t kMostTagsBytes = 1u << 20;

}  // namespace

void Engine::serve(Group& group, std::shared_ptr<const Program> program, std::uint32_t onset) {
  const Lock lock = lock_for_post();
  group.service = std::make_unique<Service>();
  group.service->program = std::move(program);
  group.service->onset = onset;
  std::vector<Key> begun;
  for (const auto& [key, frames] : unexpected_) {
    if (key.epoch == group.epoch) begun.push_back(key);
  }
  for (const Key& key : begun) early(key);
  drain_dirty();
  wake();
}

std::string Engine::broken(Group& group) {
  const Lock lock = lock_for_post();
  return group.broken.message;
}

// Handle the first frames of an operation that has not been posted here.
void Engine::early(const Key& key) {
  const std::shared_ptr<Group> group = membership_.find(key.epoch);
  if (group == nullptr || key.role != kRoleCollective) return;
  if (group->service)
    serve(*group, key);
  else if (!group->stands_in_for.expired())
    help(*group, key);
}

void Engine::serve(Group& group, const Key& key) {
  if (group.broken) return;
  std::vector<bool> here(group.links.size(), false);
  for (const Unexpected& u : unexpected_[key]) {
    const int rank = group.rank_of(*u.link);
    if (rank >= 0) here[static_cast<std::size_t>(rank)] = true;
  }
  // Begin an operation only when all workers have begun it. An operation of some workers might have
  // to wait for operations that only the other workers have begun, and would occupy memory
  // meanwhile.
  if (std::count(here.begin(), here.end(), true) + 1 < std::ssize(here)) return;
  std::deque<Key>& waiting = group.service->waiting;
  if (!waiting.empty() || !begin(group, key)) {
    if (std::ranges::find(waiting, key) == waiting.end()) waiting.push_back(key);
  }
}

// Begin an operation at the aggregator. Return false when the arena has no room for its result yet.
bool Engine::begin(Group& group, const Key& key) {
  const auto sent = unexpected_.find(key);
  if (sent == unexpected_.end()) return true;  // a worker has aborted the operation
  const wire::Header header = sent->second.front().header;
  Operation operation;
  operation.program = group.service->program;
  operation.dtype = static_cast<wire::DType>(header.dtype);
  operation.op = static_cast<wire::ReduceOp>(header.op & 0xF);
  operation.total_bytes = header.total;
  operation.key = &key;
  operation.timeout_ns = kNoTimeout;
  const std::size_t item = wire::item_size(operation.dtype);
  std::string wrong;
  if ((header.op >> 4) != static_cast<unsigned>(wire::Collective::kAllReduce)) {
    wrong = "an aggregator only performs all_reduce, not the collective with code " +
            std::to_string(header.op >> 4);
  } else if (item == 0 || header.total % item != 0 ||
             !kernels::supported(operation.dtype, operation.op)) {
    wrong = "an aggregator cannot reduce " + std::to_string(header.total) +
            " bytes of dtype code " + std::to_string(header.dtype) + " by reduction code " +
            std::to_string(header.op & 0xF);
  } else if (header.total > arena_.capacity() / 2) {
    wrong = "the aggregator has no room for " + std::to_string(header.total) + " bytes: it has " +
            std::to_string(arena_.capacity());
  }
  std::byte* memory = nullptr;
  if (wrong.empty() && header.total > 0) {
    memory = arena_.allocate(header.total);
    if (memory == nullptr) return false;
  }
  operation.target = memory;
  operation.count = wrong.empty() ? header.total / item : 0;
  if (!wrong.empty()) operation.dtype = wire::DType::kUint8, operation.op = wire::ReduceOp::kSum;
  const std::shared_ptr<Request> request = build(group, operation);
  if (memory != nullptr) request->scratch.push_back(memory);
  if (!wrong.empty()) request->failure = Failure{Fault::kUsage, wrong, group.rank, -1, -1, -1};
  request->gated = group.service->onset > 1;
  request->async_counted = true;
  ++async_open_;
  start(request);
  return true;
}

// Count a segment's arrival. Start adding once as many segments of every worker have arrived as the
// aggregator waits for (`onset`).
void Engine::count_arrival(Request& request, int peer) {
  ++request.flows[static_cast<std::size_t>(peer)].arrived;
  const auto segments = static_cast<std::uint32_t>(request.chunks[0].segments.size());
  const std::uint32_t enough = std::min(request.group->service->onset, segments);
  for (int rank = 0; rank < request.group->rank; ++rank) {
    if (request.flows[static_cast<std::size_t>(rank)].arrived < enough) return;
  }
  request.gated = false;
  for (std::uint32_t segment = 0; segment < segments; ++segment) advance(request, 0, segment);
}

// Finish an operation whose result every worker has: the workers may drop the copies that they
// keep, and the freed memory may let a waiting operation begin.
void Engine::served(const Request& request) {
  Group& group = *request.group;
  Service& service = *group.service;
  if (!request.failure) {
    service.tags.push_back(request.key.tag);
    service.tags_bytes += request.total;
  }
  if (service.tags.size() >= kMostTags || service.tags_bytes >= kMostTagsBytes) {
    wire::Header header = blank_header(wire::FrameKind::kRelease);
    header.epoch = group.epoch;
    header.source = static_cast<std::uint16_t>(group.rank);
    const std::string text(reinterpret_cast<const char*>(service.tags.data()),
                           service.tags.size() * sizeof(std::uint64_t));
    for (Link* link : group.links) {
      if (link != nullptr && !link->down) link->control(header, text);
    }
    service.tags.clear();
    service.tags_bytes = 0;
  }
  while (!service.waiting.empty()) {
    const Key next = service.waiting.front();
    // begin() may finish the operation at once and call this function again.
    service.waiting.pop_front();
    if (begin(group, next)) continue;
    service.waiting.push_front(next);
    break;
  }
}

}  // namespace slackline
