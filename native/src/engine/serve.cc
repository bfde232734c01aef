// The aggregator: the last member of a group, which adds for the others. An aggregator posts no
// operations. An operation begins when every worker has sent some of its data, with the parameters
// in the headers of the workers' frames.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine_impl.h"

namespace slackline {
void Engine::serve(Group& group, std::shared_ptr<const Program> program, std::uint32_t onset) {
  const Lock lock = lock_for_post();
  group.aggregation = std::make_shared<Aggregation>(std::move(program), onset);
  change([&] {
    for (const Key& key : unexpected_.keys_in(group.epoch)) early(key);
    drain_dirty();
  });
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
  if (group->aggregation)
    serve(*group, key);
  else if (!group->stands_in_for.expired())
    help(*group, key);
}

void Engine::serve(Group& group, const Key& key) {
  const std::deque<Unexpected>* frames = unexpected_.find(key);
  if (group.broken || frames == nullptr || !Aggregation::begun_by_all(group, *frames)) return;
  Aggregation& aggregation = *group.aggregation;
  if (aggregation.any_waits() || !begin(group, key)) aggregation.wait(key);
}

// Begin an operation at the aggregator. Return false when the arena has no room for its result yet.
bool Engine::begin(Group& group, const Key& key) {
  const std::deque<Unexpected>* sent = unexpected_.find(key);
  if (sent == nullptr) return true;  // a worker has aborted the operation
  const wire::Header header = sent->front().header;
  const std::string wrong = Aggregation::refusal(header, arena_.capacity());
  std::byte* memory = nullptr;
  if (wrong.empty() && header.total > 0) {
    memory = arena_.allocate(header.total);
    if (memory == nullptr) return false;
  }
  const Aggregation& aggregation = *group.aggregation;
  const std::shared_ptr<Request> request =
      build(group, wrong.empty() ? aggregation.operation(key, header, memory)
                                 : aggregation.refused(key, header));
  if (memory != nullptr) request->scratch.push_back(memory);
  if (!wrong.empty()) request->failure = Failure{Fault::kUsage, wrong, group.rank, -1, -1, -1};
  request->gated = aggregation.onset() > 1;
  request->async_counted = true;
  ++async_open_;
  start(request);
  return true;
}

// Count a segment's arrival, and start adding once enough segments have arrived.
void Engine::count_arrival(Request& request, int peer) {
  if (!request.group->aggregation->count_arrival(request, peer)) return;
  request.gated = false;
  const auto segments = static_cast<std::uint32_t>(request.chunks[0].segments.size());
  for (std::uint32_t segment = 0; segment < segments; ++segment) advance(request, 0, segment);
}

// Finish an operation whose result every worker has: the workers may drop the copies that they
// keep, and the freed memory may let a waiting operation begin.
void Engine::served(const Request& request) {
  Group& group = *request.group;
  Aggregation& aggregation = *group.aggregation;
  if (!request.failure) {
    const std::vector<std::uint64_t> tags = aggregation.note_result(request.key.tag, request.total);
    if (!tags.empty()) report_results(group, tags);
  }
  // begin() may finish the operation at once and call this function again.
  while (const std::optional<Key> next = aggregation.take_waiting()) {
    if (begin(group, *next)) continue;
    aggregation.wait_again(*next);
    break;
  }
}

// Tell the workers which operations' results all of them have.
void Engine::report_results(const Group& group, const std::vector<std::uint64_t>& tags) {
  wire::Header header = blank_header(wire::FrameKind::kRelease);
  header.epoch = group.epoch;
  header.source = static_cast<std::uint16_t>(group.rank);
  const std::string text(reinterpret_cast<const char*>(tags.data()),
                         tags.size() * sizeof(std::uint64_t));
  for (Link* link : group.links) {
    if (link != nullptr && !link->down) link->control(header, text);
  }
}

}  // namespace slackline
