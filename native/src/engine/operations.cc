#include "operations.h"

#include <algorithm>
#include <limits>

namespace slackline {
namespace {

using Pointer = Operations::Pointer;

std::vector<Pointer> those_in(const Group& group, const std::vector<Pointer>& requests) {
  std::vector<Pointer> found;
  for (const Pointer& request : requests) {
    if (request->group.get() == &group) found.push_back(request);
  }
  return found;
}

}  // namespace

std::vector<Pointer> Operations::undivided(const Shares& shares) const {
  std::vector<Pointer> found;
  for (const Pointer& request : held_) {
    if (request->undivided && request->shares.get() == &shares) found.push_back(request);
  }
  return found;
}

void Operations::release_barriers(const Group& group) {
  for (auto each = held_.begin(); each != held_.end();) {
    const Request& request = **each;
    if (request.group.get() != &group || request.undivided || open_before(request) != nullptr) {
      ++each;
      continue;
    }
    queued_.push_back(*each);  // an operation is in one of the tables at any time
    each = held_.erase(each);
  }
}

const Request* Operations::open_before(const Request& barrier) const {
  if (barrier.collective != wire::Collective::kBarrier || barrier.key.tag >> 32 != 0)
    return nullptr;
  const auto earlier = [&](const Pointer& request) {
    return request->group == barrier.group && request->key.role == kRoleCollective &&
           request->key.tag < barrier.key.tag && !request->finished();
  };
  for (const auto& [key, request] : started_) {
    if (earlier(request)) return request.get();
  }
  for (const Pointer& request : queued_) {
    if (earlier(request)) return request.get();
  }
  for (const Pointer& request : held_) {
    if (earlier(request)) return request.get();
  }
  return nullptr;
}

Pointer Operations::take_queued() {
  if (queued_.empty()) return nullptr;
  Pointer request = std::move(queued_.front());
  queued_.pop_front();
  return request;
}

bool Operations::waits_to_start(const Key& key) const {
  const auto same = [&](const Pointer& request) { return request->key == key; };
  return std::ranges::any_of(queued_, same) || std::ranges::any_of(held_, same);
}

Pointer Operations::take_receive(const Key& key, const Link& link, int source) {
  const auto meant = [&](const Pointer& request) {
    return request->group->epoch == key.epoch &&
           request->key.tag == (key.tag & ~std::uint64_t{0xFFFFFFFF}) &&
           request->group->rank_of(link) == source;
  };
  const auto found = std::ranges::find_if(any_source_, meant);
  if (found == any_source_.end()) return nullptr;
  Pointer request = std::move(*found);
  any_source_.erase(found);
  return request;
}

void Operations::start(const Pointer& request) {
  started_[request->key] = request;
  request->active = true;
}

bool Operations::refer_to_memory_of(const Link& link) const {
  const auto refers = [&](const Segment& segment) {
    for (const PendingPayload* s = segment.first; s != nullptr; s = s->next) {
      if (s->link == &link && (s->flags & wire::kFlagReference) != 0) return true;
    }
    return false;
  };
  return std::ranges::any_of(started_, [&](const auto& entry) {
    return entry.second->group->rank_of(link) >= 0 &&
           std::ranges::any_of(entry.second->chunks, [&](const Chunk& chunk) {
             return std::ranges::any_of(chunk.segments, refers);
           });
  });
}

void Operations::end(Request& request) {
  if (!std::exchange(request.active, false)) return;
  started_.erase(request.key);
}

void Operations::forget(const Pointer& request) {
  std::erase(any_source_, request);
  std::erase(held_, request);
}

std::vector<Pointer> Operations::open(const Group* group) const {
  std::vector<Pointer> all;
  const auto note = [&](const Pointer& request) {
    if (group != nullptr && request->group.get() != group) return;
    // A failed operation may still stand in the queue.
    if (!request->finished()) all.push_back(request);
  };
  for (const auto& [key, request] : started_) note(request);
  std::ranges::for_each(any_source_, note);
  std::ranges::for_each(queued_, note);
  std::ranges::for_each(held_, note);
  return all;
}

std::vector<Pointer> Operations::started_in(const Group& group) const {
  std::vector<Pointer> found;
  for (const auto& [key, request] : started_) {
    if (request->group.get() == &group) found.push_back(request);
  }
  return found;
}

std::vector<Pointer> Operations::held_in(const Group& group) const {
  return those_in(group, held_);
}

std::vector<Pointer> Operations::receives_in(const Group& group) const {
  return those_in(group, any_source_);
}

Pointer Operations::take_any() noexcept {
  Pointer taken;
  if (!started_.empty()) {
    taken = started_.begin()->second;
    taken->active = false;
    started_.erase(started_.begin());
  } else if (!queued_.empty()) {
    taken = std::move(queued_.front());
    queued_.pop_front();
  } else if (!any_source_.empty()) {
    taken = std::move(any_source_.back());
    any_source_.pop_back();
  } else if (!held_.empty()) {
    taken = std::move(held_.back());
    held_.pop_back();
  }
  return taken;
}

std::vector<Pointer> Operations::late(std::int64_t now_ns) const {
  std::vector<Pointer> found;
  const auto note = [&](const Pointer& request) {
    if (now_ns >= request->deadline_ns) found.push_back(request);
  };
  for (const auto& [key, request] : started_) note(request);
  std::ranges::for_each(any_source_, note);
  std::ranges::for_each(held_, note);
  return found;
}

std::int64_t Operations::next_deadline_ns() const {
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  const auto note = [&](const Pointer& request) { next = std::min(next, request->deadline_ns); };
  for (const auto& [key, request] : started_) note(request);
  std::ranges::for_each(any_source_, note);
  std::ranges::for_each(held_, note);
  return next;
}

}  // namespace slackline
