// The arrival of a frame, and the progress of a segment along its list of steps.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "../base/clock.h"
#include "engine_impl.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
std::byte* Engine::direct_placement(Link& link, const wire::Header& header, Request** owner) {
  // The acknowledgement in the header counts at once, because the payload may take milliseconds to
  // arrive and the peer sends no separate ACK.
  if (header.acknowledge != 0) link.acknowledged(header.acknowledge);
  links_.mark_dirty(link);
  if (header.kind != static_cast<std::uint8_t>(wire::FrameKind::kData) ||
      (header.flags & wire::kFlagReference) != 0)
    return nullptr;
  // A duplicate of a partial sum may arrive while its segment waits for the result.
  if (!link.is_new(header.sequence)) return nullptr;
  const std::shared_ptr<Request> request = operations_.find(key_of(header));
  if (!request || request->wide || request->offloaded) return nullptr;
  const int peer = request->group->rank_of(link);
  const int index = request->program->local(header.chunk);
  if (peer < 0 || index < 0) return nullptr;
  Chunk& chunk = request->chunks[static_cast<std::size_t>(index)];
  const std::size_t segment = header.offset / request->item_size / chunk.segment_count;
  if (segment >= chunk.segments.size() || header.total != total_for(*request, chunk) ||
      header.dtype != static_cast<std::uint8_t>(request->dtype))
    return nullptr;
  const Segment& s = chunk.segments[segment];
  if (s.position >= chunk.step_list->steps.size()) return nullptr;
  const Step& step = chunk.step_list->steps[s.position];
  if (step.opcode != Opcode::kCopy || step.peer != peer ||
      header.length != elements_in(chunk, segment) * request->item_size)
    return nullptr;
  *owner = request.get();
  return chunk.target + segment * chunk.segment_count * request->item_size;
}

void Engine::arrive(Link& link, const wire::Header& header, const Payload& payload) {
  arriving_ = payload.owned;
  try {
    handle(link, header, payload);
  } catch (...) {
    drop_arriving();
    throw;
  }
  drop_arriving();
}

// Give back the buffer of the frame that arrives, unless the buffer has an owner by now.
void Engine::drop_arriving() noexcept {
  if (arriving_ != nullptr) give_buffer(std::exchange(arriving_, nullptr));
}

void Engine::handle(Link& link, const wire::Header& header, const Payload& payload) {
  const std::uint64_t in_use = header.acknowledge;
  if (in_use != 0) link.acknowledged(header.acknowledge);
  links_.mark_dirty(link);
  if (link.condemned() || !link.rightly_numbered(header) || !link.within_window(header.sequence) ||
      !link.admit(header.sequence))
    return;
  link.note_arrival(header.length);
  bool more_comes = false;
  switch (static_cast<wire::FrameKind>(header.kind)) {
    case wire::FrameKind::kData:
      more_comes = on_data(link, header, payload);
      break;
    case wire::FrameKind::kGrant:
      on_grant(link, header);
      break;
    case wire::FrameKind::kCredit:
      link.credit(header.offset);
      break;
    case wire::FrameKind::kRelease:
      if (payload.length > 0)
        forget_replay_copies(header, payload);
      else
        on_release(link, header);
      break;
    case wire::FrameKind::kAbort:
      on_abort(link, header, payload);
      break;
    case wire::FrameKind::kBye:
      link.keep_bye(header);
      break;
    case wire::FrameKind::kProbe:
      link.on_probe(header, now_ns());
      break;
    case wire::FrameKind::kAck:
    case wire::FrameKind::kHello:
      break;
  }
  if (!more_comes) link.acknowledge_owed();
  while (const std::optional<wire::Header> bye = link.take_due_bye()) on_bye(link, *bye);
}

// Return the group of an operation that this rank has posted and finished. Return null when the
// operation was not posted, or when it failed.
std::shared_ptr<Group> Engine::finished_in(const Key& key) const {
  const std::shared_ptr<Group> group = membership_.find(key.epoch);
  if (group == nullptr || was_aborted(key)) return nullptr;
  if (group->posted(key) <= static_cast<std::uint32_t>(key.tag)) return nullptr;
  return operations_.waits_to_start(key) ? nullptr : group;
}

// Return the open operation that a frame belongs to, or null. A receive from any source takes the
// first message that begins to arrive, by data or by a request for a grant.
std::shared_ptr<Request> Engine::find_or_bind(const Key& key, Link& link, int source) {
  std::shared_ptr<Request> request = operations_.find(key);
  if (request || key.role == kRoleCollective) return request;
  const std::shared_ptr<Request> any = operations_.take_receive(key, link, source);
  if (!any) return nullptr;
  try {
    bind_any_source(any, source);
  } catch (const std::exception& error) {
    broke_down(error);
    end_broken(*any);  // it may be in no table
  }
  return operations_.find(key);
}

// Accept a DATA frame. Return whether the same peer will certainly send more data of the operation.
bool Engine::on_data(Link& link, const wire::Header& header, const Payload& payload) {
  const Key key = key_of(header);
  const bool eager = (header.flags & wire::kFlagEager) != 0 && !link.shared_memory();
  if (eager) link.eager_arrived(header.length);
  if (membership_.excludes(link, header.epoch)) {
    if (eager) link.eager_consumed(header.length);
    return false;
  }
  const std::shared_ptr<Request> request = find_or_bind(key, link, header.source);
  if (request) {
    accept(*request, link, header, payload);
    const int peer = request->finished() ? -1 : request->group->rank_of(link);
    return peer >= 0 && request->flows[static_cast<std::size_t>(peer)].lacks_data();
  }
  if ((header.flags & wire::kFlagWritten) != 0) lent_.returned(key, link);
  // Wire data that is not eager was sent after a grant, so its operation was posted here. A missing
  // operation has therefore already ended.
  const bool wanted = eager || link.shared_memory();
  if (const std::shared_ptr<Group> group = finished_in(key)) {
    if (eager) link.eager_consumed(header.length);
    break_group(*group, stray(*group, header));
  } else if (refuses(key)) {
    refuse_message(link, *membership_.find(header.epoch), header);
    if (eager) link.eager_consumed(header.length);
  } else if (wanted && !was_aborted(key) && !membership_.was_closed(header.epoch)) {
    unexpected_.keep(key, link, header, payload);
    early(key);
  } else if (eager) {
    link.eager_consumed(header.length);
  }
  return false;
}

void Engine::accept(Request& request, Link& link, const wire::Header& header,
                    const Payload& payload) {
  const std::shared_ptr<Request> alive = request.shared_from_this();
  const auto refuse = [&](Failure failure) {
    if ((header.flags & wire::kFlagEager) != 0 && !link.shared_memory())
      link.eager_consumed(header.length);
    fail(request, std::move(failure), true);
  };
  const int peer = request.group->rank_of(link);
  const int index = request.program->local(header.chunk);
  const wire::Header mine = header_for(request, wire::FrameKind::kData);
  const bool same = header.dtype == mine.dtype && header.op == mine.op &&
                    (header.flags >> 8) == (mine.flags >> 8) && peer == header.source;
  if (!same || index < 0 ||
      header.total != total_for(request, request.chunks[static_cast<std::size_t>(index)]))
    return refuse(mismatch(request, header));
  Chunk& chunk = request.chunks[static_cast<std::size_t>(index)];
  const std::size_t segment_index = header.offset / request.item_size / chunk.segment_count;
  if (segment_index >= chunk.segments.size()) return refuse(mismatch(request, header));
  Segment& segment = chunk.segments[segment_index];
  const auto& steps = chunk.step_list->steps;
  const auto from_peer = [&](const Step& s) {
    return s.opcode != Opcode::kSend && s.opcode != Opcode::kReduceAll && s.peer == peer;
  };
  const bool due = std::any_of(steps.begin() + segment.position, steps.end(), from_peer);
  std::ptrdiff_t here = 0;
  for (const PendingPayload* s = segment.first; s != nullptr; s = s->next) here += s->peer == peer;
  if (!due || here >= std::ranges::count_if(steps, from_peer))
    return refuse(mismatch(request, header));
  const bool partial = (header.flags & wire::kFlagPartial) != 0;
  const std::size_t bytes = elements_in(chunk, segment_index) *
                            (partial && request.wide ? sizeof(float) : request.item_size);
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  flow.heard = true;
  flow.received += bytes;
  const bool refers = (header.flags & wire::kFlagReference) != 0;
  const bool written = (header.flags & wire::kFlagWritten) != 0;
  if ((refers || written) && link.shm() == nullptr) return refuse(mismatch(request, header));
  if (written ? segment.readers == 0 || flow.lent == 0
              : payload.length != (refers ? sizeof(Reference) : bytes))
    return refuse(mismatch(request, header));

  if (idle_pending_.empty()) {
    idle_pending_.reserve(++pending_made_);  // so that each can be returned without memory
    idle_pending_.push_back(new PendingPayload);
  }
  PendingPayload* pending = idle_pending_.back();
  idle_pending_.pop_back();
  *pending = PendingPayload{};
  pending->link = &link;
  pending->peer = static_cast<std::uint16_t>(peer);
  pending->flags = header.flags;
  pending->length = static_cast<std::uint32_t>(bytes);
  pending->data = payload.data;
  bool lent = payload.owned == nullptr && bytes > 0;
  if (written) {
    lent = false;
  } else if (refers) {
    Reference reference;
    std::memcpy(&reference, payload.data, sizeof reference);
    pending->data = link.shm()->peer_memory(reference.offset, bytes);
    if (reference.give_back != Reference::kNowhere)
      pending->give_back = link.shm()->peer_memory(reference.give_back, bytes);
    lent = false;
    const bool inside = pending->data != nullptr && (reference.give_back == Reference::kNowhere ||
                                                     pending->give_back != nullptr);
    if (!inside) {
      idle_pending_.push_back(pending);
      return refuse(mismatch(request, header));
    }
  }
  PendingPayload** end = &segment.first;
  while (*end != nullptr) end = &(*end)->next;
  *end = pending;
  if (payload.owned != nullptr) pending->owned = std::exchange(arriving_, nullptr);
  if (request.gated) count_arrival(request, peer);
  advance(request, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(segment_index));
  if (lent && !request.finished()) {
    // The segment still waits and the rail needs its buffer back, so copy the payload.
    for (PendingPayload* s = segment.first; s != nullptr; s = s->next) {
      if (s != pending || s->data != payload.data) continue;
      const bool in_place =
          payload.data == chunk.target + segment_index * chunk.segment_count * request.item_size;
      if (in_place) break;
      s->owned = take_buffer(bytes);
      std::memcpy(s->owned, payload.data, bytes);
      s->data = s->owned;
    }
  }
  maybe_finish(request);
}

void Engine::on_grant(Link& link, const wire::Header& header) {
  if (membership_.excludes(link, header.epoch)) return;
  const bool eager_request = (header.flags & wire::kFlagEager) != 0;
  const Key key = key_of(header);
  const std::shared_ptr<Request> request =
      eager_request ? find_or_bind(key, link, header.source) : operations_.find(key);
  if (!request) {
    const bool over = was_aborted(key) || membership_.was_closed(header.epoch) ||
                      (!eager_request && finished_in(key) != nullptr);
    if (over) return;
    if (refuses(key)) return refuse_message(link, *membership_.find(header.epoch), header);
    // The peer was the first to post the operation, so keep its grant. Otherwise this rank would
    // have to request one, and the answer would wait behind the data that the peer sends.
    unexpected_.keep(key, link, header);
    if (eager_request) early(key);
    return;
  }
  const int peer = request->group->rank_of(link);
  if (peer < 0) return;
  PeerFlow& flow = request->flows[static_cast<std::size_t>(peer)];
  if (eager_request) {
    flow.heard = true;
    if (std::exchange(flow.answered, true)) return;
    if (flow.promised == 0) flow.promised = promise_of(*request, peer, header.offset);
    link.grant(*request, peer);
    return;
  }
  flow.heard = true;
  flow.granted = std::max(flow.granted, header.offset);
  if (std::exchange(flow.asks, false)) link.ask_over();
  link.unblock(*request, peer);
}

void Engine::on_release(Link& link, const wire::Header& header) {
  const std::shared_ptr<Request> request = operations_.find(key_of(header));
  if (!request) return lent_.returned(key_of(header), link);
  const int peer = request->group->rank_of(link);
  const int index = request->program->local(header.chunk);
  if (peer < 0 || index < 0) return;
  PeerFlow& flow = request->flows[static_cast<std::size_t>(peer)];
  Chunk& chunk = request->chunks[static_cast<std::size_t>(index)];
  const std::size_t segment = header.offset / request->item_size / chunk.segment_count;
  if (segment >= chunk.segments.size()) return;
  Segment& s = chunk.segments[segment];
  if (s.readers == 0 || flow.lent == 0) return;
  --flow.lent;
  if (--s.readers == 0) release_slot(*request, s);
  send_finished(*request);
}

void Engine::advance(Request& request, std::uint32_t chunk, std::uint32_t segment) {
  Chunk& c = request.chunks[chunk];
  Segment& s = c.segments[segment];
  const auto& steps = c.step_list->steps;
  if (s.position >= steps.size() && !steps.empty()) return;
  while (s.position < steps.size()) {
    if (!pass(request, chunk, segment, steps[s.position])) return;
    ++s.position;
  }
  --request.open_segments;
}

bool Engine::pass(Request& request, std::uint32_t chunk, std::uint32_t segment, const Step& step) {
  Chunk& c = request.chunks[chunk];
  Segment& s = c.segments[segment];
  const bool asks_device = c.offloaded && step.opcode != Opcode::kBuffer &&
                           (step.opcode != Opcode::kSend || step.own_data);
  if (asks_device && !offload(request, chunk, segment, step)) return false;
  switch (step.opcode) {
    case Opcode::kSend: {
      Link& link = *request.group->links[step.peer];
      ++request.open_sends;
      if (step.copied) ++s.uncopied;
      link.queue(SendItem{request.shared_from_this(), chunk, segment, &step});
      links_.mark_dirty(link);
      return true;
    }
    case Opcode::kBuffer: {
      for (PendingPayload* pending = s.first; pending != nullptr; pending = pending->next) {
        if (pending->peer == step.peer) return true;
      }
      return false;
    }
    case Opcode::kAdd:
    case Opcode::kCopy: {
      if (c.offloaded) return true;
      PendingPayload* pending = take_pending(s, step.peer);
      if (pending == nullptr) return false;
      consume(request, c, segment, pending, step);
      return true;
    }
    case Opcode::kReduceAll:
      if (c.offloaded) return true;
      if (s.uncopied > 0 || request.gated) return false;
      reduce_all(request, chunk, segment);
      return true;
  }
  return false;
}

void Engine::copied(Request& request, std::uint32_t chunk, std::uint32_t segment) {
  if (request.finished() || --request.chunks[chunk].segments[segment].uncopied > 0) return;
  advance(request, chunk, segment);
  maybe_finish(request);
}

}  // namespace slackline
