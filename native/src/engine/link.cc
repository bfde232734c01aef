#include "link.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "executor.h"
#include "headers.h"
#include "links.h"
#include "segments.h"
#include "slackline/crc32c.h"
#include "slackline/kernels.h"
#include "worker.h"

namespace slackline {
Link::~Link() {
  for (Retained& r : retained_) {
    if (r.owned != nullptr) uses_.memory.buffers().give(r.owned);
  }
  for (auto& rail : rails_) rail->wire->abandon(uses_.sink);
}

bool Link::idle() const {
  if (!made_) return true;
  return retained_.empty() && control_.empty() && !(shm_ != nullptr && shm_->holds_back()) &&
         std::ranges::all_of(ready_, [](const auto& entry) { return entry.second.empty(); });
}

void Link::queue(SendItem item) {
  auto& queue = ready_[item.request->priority];
  const auto later = [](std::uint64_t order, const SendItem& other) {
    return order < other.request->order;
  };
  const auto place = std::upper_bound(queue.begin(), queue.end(), item.request->order, later);
  queue.insert(place, std::move(item));
}

bool Link::holds(const Request& request) const {
  return std::ranges::any_of(ready_, [&](const auto& entry) {
    return std::ranges::any_of(
        entry.second, [&](const SendItem& item) { return item.request.get() == &request; });
  });
}

void Link::withdraw(const Request& request) {
  for (auto& [priority, queue] : ready_)
    std::erase_if(queue, [&](const SendItem& item) { return item.request.get() == &request; });
}

void Link::unblock(Request& request, int peer) {
  auto& credit_blocked = request.flows[static_cast<std::size_t>(peer)].credit_blocked;
  if (credit_blocked.empty()) return;
  auto& queue = ready_[request.priority];
  const auto earlier = [](const SendItem& other, std::uint64_t order) {
    return other.request->order < order;
  };
  const auto place = std::lower_bound(queue.begin(), queue.end(), request.order, earlier);
  queue.insert(place, std::make_move_iterator(credit_blocked.begin()),
               std::make_move_iterator(credit_blocked.end()));
  credit_blocked.clear();
  uses_.links.mark_dirty(*this);
}

// Let the sends whose frames the rail carries end only when the peer has acknowledged the frames.
void Link::await_acknowledgement(const LinkRail& rail) {
  for (Departing& each : departing_) {
    if (each.rail == &rail) each.rail = nullptr;
  }
}

void Link::transmit_queued() {
  if (down || !made_) return;
  while (!control_.empty()) {
    auto& [header, text] = control_.front();
    if (shm_ == nullptr) {
      if (any_rail() == nullptr) return;
      const auto [waiting, words] = std::move(control_.front());
      control_.pop_front();
      control(waiting, words);
      continue;
    }
    if (!shm_->push(header, text.data(), text.size())) return;
    control_.pop_front();
  }
  while (!ready_.empty()) {
    auto it = ready_.begin();
    auto& queue = it->second;
    while (!queue.empty()) {
      SendItem item = std::move(queue.front());
      queue.pop_front();
      if (item.request->finished()) continue;
      const Outcome outcome = transmit(item);
      if (outcome == Outcome::kNoRoom) {
        queue.push_front(std::move(item));
        for (auto& rail : rails_) rail->wire->flush(uses_.clock.now());
        if (retained_.size() >= kMostRetained || pick_rail() == nullptr || shm_ != nullptr) return;
      } else if (outcome == Outcome::kBlocked) {
        PeerFlow& flow = item.request->flows[item.step->peer];
        flow.credit_blocked.push_back(std::move(item));
      }
    }
    if (ready_.size() > 1)
      ready_.erase(it);
    else
      break;
  }
  flush_rails();
}

Link::Outcome Link::transmit(const SendItem& item) {
  Request& request = *item.request;
  Chunk& chunk = request.chunks[item.chunk];
  const Step& step = *item.step;
  const std::size_t first = item.segment * chunk.segment_count;
  const std::size_t elements =
      std::min(chunk.segment_count, chunk.count - std::min(chunk.count, first));
  const bool wide = request.wide && !step.complete;
  const std::size_t item_size = wide ? sizeof(float) : request.item_size;
  const std::byte* base =
      step.complete ? (step.own_data ? chunk.source : chunk.target)
                    : (step.own_data && !wide && !request.offloaded ? chunk.source : chunk.partial);
  wire::Header header = header_for(request, wire::FrameKind::kData);
  header.chunk = chunk.step_list->chunk;
  header.offset = first * request.item_size;
  header.total = total_for(request, chunk);
  if (!step.complete) header.flags |= wire::kFlagPartial;
  const std::byte* data = elements == 0 ? nullptr : base + first * item_size;
  const std::size_t bytes = elements * item_size;
  if (request.group->worker != nullptr && elements > 0)
    data = Worker::keep(request, first * item_size, bytes);
  if (shm_) request.rails |= kSharedMemoryBit;
  const Outcome outcome =
      shm_ ? transmit_shared(item, header, data, bytes) : transmit_wire(item, header, data, bytes);
  if (outcome == Outcome::kSent && step.copied)
    uses_.executor.copied(request, item.chunk, item.segment);
  return outcome;
}

Link::Outcome Link::transmit_shared(const SendItem& item, wire::Header& header,
                                    const std::byte* data, std::size_t bytes) {
  Request& request = *item.request;
  Chunk& chunk = request.chunks[item.chunk];
  Segment& segment = chunk.segments[item.segment];
  const Step& step = *item.step;
  PeerFlow& flow = request.flows[step.peer];
  if (step.complete && Executor::answered(request, item.chunk, item.segment, step.peer)) {
    header.flags |= wire::kFlagWritten;  // the reduction stored the result in the peer's memory
    if (!shm_->push(header, nullptr, 0)) return Outcome::kNoRoom;
    uses_.executor.forget_answer(request, item.chunk, item.segment, step.peer);
    uses_.executor.sent(request);
    return Outcome::kSent;
  }
  if (bytes <= ShmRail::kInlineBytes) {
    header.length = static_cast<std::uint32_t>(bytes);
    if (!shm_->push(header, data, bytes)) return Outcome::kNoRoom;
    counters.inline_bytes += bytes;
    flow.sent += bytes;
    uses_.executor.sent(request);
    return Outcome::kSent;
  }
  Reference reference{0, Reference::kNowhere};
  Arena& arena = uses_.memory.arena();
  bool staged = false;
  if (!step.copied && arena.contains(data, bytes)) {
    reference.offset = arena.offset_of(data);
    const bool wide = request.wide && !step.complete;
    if (!wide && chunk.target != nullptr) {
      const std::byte* home = chunk.target + item.segment * chunk.segment_count * request.item_size;
      if (arena.contains(home, bytes)) reference.give_back = arena.offset_of(home);
    }
  } else {
    if (!flow.credit_blocked.empty()) return Outcome::kBlocked;
    if (segment.slot >= 0 && segment.slot_complete != step.complete) return Outcome::kBlocked;
    if (segment.slot < 0) {
      if (flow.slots >= kSlotsPerPeer) return Outcome::kBlocked;
      segment.slot = uses_.memory.take_slot();
      if (segment.slot < 0) {
        uses_.endings.lacks_slot(request);
        return Outcome::kSent;  // the request has failed; nothing waits for the send
      }
      segment.slot_peer = step.peer;
      segment.slot_complete = step.complete;
      ++flow.slots;
      kernels::copy(uses_.memory.slot(segment.slot), data, bytes, false);
      counters.staged_bytes += bytes;
    }
    staged = true;
    reference.offset = reference.give_back = arena.offset_of(uses_.memory.slot(segment.slot));
  }
  header.flags |= wire::kFlagReference;
  header.length = sizeof reference;
  if (!shm_->push(header, &reference, sizeof reference, bytes)) {
    if (staged && segment.readers == 0) uses_.endings.release_slot(request, segment);
    return Outcome::kNoRoom;
  }
  ++segment.readers;
  ++flow.lent;
  flow.sent += bytes;
  counters.reference_bytes += bytes;
  return Outcome::kSent;
}

Link::Outcome Link::transmit_wire(const SendItem& item, wire::Header& header, const std::byte* data,
                                  std::size_t bytes) {
  Request& request = *item.request;
  PeerFlow& flow = request.flows[item.step->peer];
  if (!flow.credit_blocked.empty()) return Outcome::kBlocked;
  bool eager = false;
  if (flow.sent + bytes > flow.granted || flow.granted == 0) {
    eager = flow.granted == 0 &&
            flow.sent + bytes <= uses_.executor.credits().eager_bytes(request) &&
            eager_sent_ + bytes + kEagerFrame - eager_credited_ <= kEagerPool;
    if (!eager) {
      ask(request, item.step->peer);
      return Outcome::kBlocked;
    }
  }
  LinkRail* rail = retained_.size() < kMostRetained ? pick_rail() : nullptr;
  if (rail == nullptr) return Outcome::kNoRoom;
  if (eager) {
    header.flags |= wire::kFlagEager;
    eager_sent_ += bytes + kEagerFrame;
  }
  flow.sent += bytes;
  request.rails |= rail_bit(rail->index);
  counters.wire_payload_bytes += bytes;
  const auto length = static_cast<std::uint32_t>(bytes);
  std::byte* owned = nullptr;
  std::shared_ptr<Request> holder;
  // An operation of an aggregator ends only when every worker has acknowledged the result.
  const bool awaited = length > kOwnedBytes || (length > 0 && request.group->aggregator);
  if (awaited && !item.step->copied) {
    holder = item.request;
  } else if (length > 0) {
    owned = uses_.memory.buffers().take(length);
    std::memcpy(owned, data, length);
    data = owned;
  }
  if (request.priority > 0) rail->wire->expect_urgent();
  if (holder != nullptr) {
    put_on_wire(*rail, header, data, nullptr, length, std::move(holder));
  } else {
    put_owned(*rail, header, owned, length);
    departing_.push_back({header.sequence, item.request, rail, rail->wire->enqueued()});
  }
  return Outcome::kSent;
}

void Link::put_on_wire(LinkRail& rail, wire::Header& header, const std::byte* payload,
                       std::byte* owned, std::uint32_t length, std::shared_ptr<Request> request) {
  header.length = length;
  header.job = rail.wire->job();
  header.sequence =
      header.kind == static_cast<std::uint8_t>(wire::FrameKind::kAck) ? 0 : next_sequence_;
  header.acknowledge = expected_;
  header.payload_checksum = rail.wire->checksums() && length > 0 ? crc32c(0, payload, length) : 0;
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
  // A frame that no memory is left for takes no number: the peer would wait for it for ever.
  if (header.sequence != 0)
    retained_.push_back(Retained{header, payload, owned, length, std::move(request), &rail});
  try {
    rail.wire->enqueue(header, payload, length);
  } catch (const std::bad_alloc&) {
    if (header.sequence != 0) {
      rail.wire->release(header.sequence);
      retained_.pop_back();
    }
    throw;
  }
  if (header.sequence != 0 && ++next_sequence_ == 0) next_sequence_ = 1;
  unacknowledged_frames_ = 0;
  unacknowledged_bytes_ = 0;
  acknowledgement_owed_ = acknowledge_now_ = false;
  if (header.sequence == 0) limit_answers(rail);
}

void Link::control(wire::Header header, const std::string& text) {
  if (down) return;
  const auto length = static_cast<std::uint32_t>(std::min<std::size_t>(text.size(), 4096));
  header.length = length;
  if (!made_) {
    control_.emplace_back(header, text.substr(0, length));
    return;
  }
  if (shm_) {
    if (!control_.empty() || !shm_->push(header, text.data(), length))
      control_.emplace_back(header, text.substr(0, length));
    uses_.links.mark_dirty(*this);
    return;
  }
  LinkRail* rail = any_rail();
  if (rail == nullptr) {
    if (reconnect_) control_.emplace_back(header, text.substr(0, length));
    return;
  }
  std::byte* owned = nullptr;
  if (length > 0) {
    owned = uses_.memory.buffers().take(length);
    std::memcpy(owned, text.data(), length);
  }
  put_owned(*rail, header, owned, length);
  uses_.links.mark_dirty(*this);
}

// Put a frame on a wire whose payload, if any, is in a buffer of its own. The buffer is given back
// if that fails.
void Link::put_owned(LinkRail& rail, wire::Header& header, std::byte* owned, std::uint32_t length) {
  try {
    put_on_wire(rail, header, owned, owned, length, nullptr);
  } catch (const std::bad_alloc&) {
    if (owned != nullptr) uses_.memory.buffers().give(owned);
    throw;
  }
}

void Link::ask(Request& request, int peer) {
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  if (flow.asked || flow.asks) return;
  if (asked_ >= kMostAsked) {
    flow.asked = true;
    unasked_.emplace_back(request.weak_from_this(), peer);
    return;
  }
  flow.asked = flow.asks = true;
  ++asked_;
  wire::Header header = header_for(request, wire::FrameKind::kGrant);
  header.flags |= wire::kFlagEager;
  header.total = request.total;
  header.offset = flow.sent;
  control(header);
}

void Link::ask_over() {
  --asked_;
  while (asked_ < kMostAsked && !unasked_.empty()) {
    const auto [waiting, peer] = std::move(unasked_.front());
    unasked_.pop_front();
    const std::shared_ptr<Request> request = waiting.lock();
    // An operation that waited to request a grant may have ended, or may now run without this link.
    if (!request || request->finished() || request->group->rank_of(*this) != peer) continue;
    request->flows[static_cast<std::size_t>(peer)].asked = false;
    ask(*request, peer);
  }
}

void Link::finish_borrowed() {
  for (Retained& r : retained_) {
    if (r.request) uses_.executor.sent(*std::exchange(r.request, nullptr));
  }
  for (const Departing& each : std::exchange(departing_, {})) uses_.executor.sent(*each.request);
}

void Link::grant(Request& request, int peer) {
  wire::Header header = header_for(request, wire::FrameKind::kGrant);
  if (request.key.role != kRoleCollective) header.flags |= wire::kFlagToSender;
  header.total = request.total;
  header.offset = request.flows[static_cast<std::size_t>(peer)].promised;
  control(header);
}

void Link::stop_writing(const Request& request) {
  for (auto& rail : rails_) rail->wire->forget(&request, uses_.sink);
}

void Link::forget(const Request& request) {
  stop_writing(request);
  std::erase_if(departing_, [&](const Departing& each) { return each.request.get() == &request; });
  for (Retained& r : retained_) {
    if (r.request.get() != &request) continue;
    r.request.reset();
    if (r.owned != nullptr) continue;
    // The frame may have to be resent although its memory returns to the caller, so copy the
    // payload.
    try {
      r.owned = uses_.memory.buffers().take(r.length);
    } catch (const std::bad_alloc&) {
      r.payload = nullptr;
      r.length = 0;
      end_without_memory();
      throw;
    }
    std::memcpy(r.owned, r.payload, r.length);
    for (auto& rail : rails_) rail->wire->repoint(r.header.sequence, r.owned);
    r.payload = r.owned;
  }
}

}  // namespace slackline
