#include "aggregator.h"

#include <optional>
#include <string>
#include <utility>

#include "headers.h"
#include "link.h"

namespace slackline {

void Aggregator::early(const Key& key) {
  if (key.role != kRoleCollective) return;
  const std::deque<Unexpected>* frames = uses_.inbox.frames().find(key);
  if (group_.broken || frames == nullptr) return;
  if (!group_.left.empty()) return refuse(key, group_.left.begin()->second);
  if (!Aggregation::begun_by_all(group_, *frames)) return;
  if (aggregation_.any_waits() || !begin(key)) aggregation_.wait(key);
}

// Begin an operation. Return false when the arena has no room for its result yet.
bool Aggregator::begin(const Key& key) {
  const std::deque<Unexpected>* sent = uses_.inbox.frames().find(key);
  if (sent == nullptr) return true;  // a worker has aborted the operation
  const wire::Header header = sent->front().header;
  const std::string wrong = Aggregation::refusal(header, uses_.memory.arena().capacity());
  if (!wrong.empty()) {
    refuse(key, Failure{Fault::kUsage, wrong, group_.rank, -1, -1, -1});
    return true;
  }
  std::byte* memory = nullptr;
  if (const std::uint64_t bytes = bytes_of(header); bytes > 0) {
    memory = uses_.memory.arena().allocate(bytes);
    if (memory == nullptr) return false;
  }
  const std::shared_ptr<Request> request =
      uses_.executor.builder().build(group_, aggregation_.operation(key, header, memory));
  if (memory != nullptr) request->scratch.push_back(memory);
  if (aggregation_.onset() > 1) request->onset = aggregation_.onset();
  start(request);
  return true;
}

// Fail an operation that has begun at some workers, so that they do not wait for its result.
void Aggregator::refuse(const Key& key, Failure failure) {
  const wire::Header header = uses_.inbox.frames().find(key)->front().header;
  const std::shared_ptr<Request> request =
      uses_.executor.builder().build(group_, aggregation_.refused(key, header));
  request->failure = std::move(failure);
  start(request);
}

void Aggregator::start(const std::shared_ptr<Request>& request) {
  request->async_counted = true;
  uses_.bell.unattended();
  uses_.executor.start(request);
}

// Count a segment's arrival, and start adding once enough segments have arrived.
void Aggregator::arrived(Request& request, int peer) {
  if (!aggregation_.count_arrival(request, peer)) return;
  request.onset = 0;
  const auto segments = static_cast<std::uint32_t>(request.chunks[0].segments.size());
  for (std::uint32_t segment = 0; segment < segments; ++segment)
    uses_.executor.advance(request, 0, segment);
}

// Every worker has the operation's result: the workers may drop the copies that they keep, and the
// freed memory may let a waiting operation begin.
void Aggregator::ended(const Request& request) {
  if (!request.failure) {
    const std::vector<std::uint64_t> tags =
        aggregation_.note_result(request.key.tag, request.total);
    if (!tags.empty()) report_results(tags);
  }
  // begin() may finish the operation at once and call this function again.
  while (const std::optional<Key> next = aggregation_.take_waiting()) {
    if (begin(*next)) continue;
    aggregation_.wait_again(*next);
    break;
  }
}

// Tell the workers which operations' results all of them have.
void Aggregator::report_results(const std::vector<std::uint64_t>& tags) {
  wire::Header header = blank_header(wire::FrameKind::kRelease);
  header.epoch = group_.epoch;
  header.source = static_cast<std::uint16_t>(group_.rank);
  const std::string text(reinterpret_cast<const char*>(tags.data()),
                         tags.size() * sizeof(std::uint64_t));
  for (Link* link : group_.links) {
    if (link != nullptr && !link->down) link->control(header, text);
  }
}

// After an orderly end of a worker the others learn from nobody else that operations which they
// have begun get no result. A worker of which others say that it is lost has not left: its own link
// tells its end.
bool Aggregator::left(int rank, const Failure& reason, Leave how) {
  if (how != Leave::kOrderly) return false;
  uses_.links.events().announce(*group_.links[static_cast<std::size_t>(rank)], -1, "left",
                                reason.message);
  for (const Key& key : uses_.inbox.frames().keys_in(group_.epoch)) {
    // The end of one operation may begin another, which then has its frames.
    const bool waits = uses_.inbox.frames().find(key) != nullptr;
    if (waits && key.role == kRoleCollective) refuse(key, reason);
  }
  return false;
}

}  // namespace slackline
