// The arrival of a frame, and the progress of a segment along its chain of steps.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "clock.h"
#include "engine_impl.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
std::byte* Engine::landing(Link& link, const wire::Header& header, Job** owner) {
  // The acknowledgement in the header counts at once, because the payload may take milliseconds to
  // arrive and the peer sends no separate ACK.
  if (header.acknowledge != 0) link.acknowledged(header.acknowledge);
  mark_dirty(link);
  if (header.kind != static_cast<std::uint8_t>(wire::FrameKind::kData) ||
      (header.flags & wire::kFlagReference) != 0)
    return nullptr;
  // A duplicate of a partial sum may arrive while its segment waits for the result.
  if (!link.is_new(header.sequence)) return nullptr;
  const std::shared_ptr<Job> job = find(key_of(header));
  if (!job || job->wide || job->offloaded) return nullptr;
  const int peer = job->group->rank_of(link);
  const int index = job->program->local(header.chunk);
  if (peer < 0 || index < 0) return nullptr;
  Chunk& chunk = job->chunks[static_cast<std::size_t>(index)];
  const std::size_t segment = header.offset / job->item_size / chunk.segment_count;
  if (segment >= chunk.segments.size() || header.total != total_for(*job, chunk) ||
      header.dtype != static_cast<std::uint8_t>(job->dtype))
    return nullptr;
  const Segment& s = chunk.segments[segment];
  if (s.position >= chunk.chain->steps.size()) return nullptr;
  const Step& step = chunk.chain->steps[s.position];
  if (step.verb != Verb::kCopy || step.peer != peer ||
      header.length != elements_in(chunk, segment) * job->item_size)
    return nullptr;
  *owner = job.get();
  return chunk.target + segment * chunk.segment_count * job->item_size;
}

void Engine::arrive(Link& link, const wire::Header& header, const Payload& payload) {
  const std::uint64_t in_use = header.acknowledge;
  if (in_use != 0) link.acknowledged(header.acknowledge);
  mark_dirty(link);
  if (link.condemned() || !link.rightly_numbered(header) || !link.within_window(header.sequence) ||
      !link.admit(header.sequence)) {
    if (payload.owned != nullptr) give_buffer(payload.owned);
    return;
  }
  link.note_arrival(header.length);
  bool kept = false;
  bool more_comes = false;
  switch (static_cast<wire::FrameKind>(header.kind)) {
    case wire::FrameKind::kData:
      more_comes = on_data(link, header, payload);
      kept = true;
      break;
    case wire::FrameKind::kGrant:
      on_grant(link, header);
      break;
    case wire::FrameKind::kCredit:
      link.credit(header.offset);
      break;
    case wire::FrameKind::kRelease:
      if (payload.length > 0)
        forget_kept(header, payload);
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
  if (!kept && payload.owned != nullptr) give_buffer(payload.owned);
  if (!more_comes) link.acknowledge_owed();
  while (const std::optional<wire::Header> bye = link.take_due_bye()) on_bye(link, *bye);
}

// Return whether a frame concerns a group of this rank that the peer is no member of.
bool Engine::intrudes(const Link& link, const wire::Header& header) const {
  const auto group = groups_.find(header.epoch);
  return group != groups_.end() && group->second->rank_of(link) < 0;
}

// Return the group of an operation that this rank has posted and finished. Return null when the
// operation was not posted, or when it failed.
std::shared_ptr<Group> Engine::finished_in(const Key& key) const {
  const auto group = groups_.find(key.epoch);
  if (group == groups_.end() || aborted_.contains(key)) return nullptr;
  const auto& sequences = group->second->sequences;
  const auto posted = sequences.find((key.tag & ~std::uint64_t{0xFFFFFFFF}) | key.role);
  if (posted == sequences.end() || posted->second <= static_cast<std::uint32_t>(key.tag))
    return nullptr;
  const auto same = [&](const auto& job) { return job->key == key; };
  const bool starts = std::ranges::any_of(to_start_, same) || std::ranges::any_of(held_, same);
  return starts ? nullptr : group->second;
}

// Accept a DATA frame. Return whether the same peer is sure to send more of the operation.
bool Engine::on_data(Link& link, const wire::Header& header, const Payload& payload) {
  const Key key = key_of(header);
  const bool eager = (header.flags & wire::kFlagEager) != 0 && !link.shared_memory();
  if (eager) link.eager_arrived(header.length);
  if (intrudes(link, header)) {
    if (eager) link.eager_consumed(header.length);
    if (payload.owned != nullptr) give_buffer(payload.owned);
    return false;
  }
  std::shared_ptr<Job> job = find(key);
  if (!job && key.role != kRoleCollective) {
    for (std::size_t i = 0; i < any_source_.size(); ++i) {
      const std::shared_ptr<Job> any = any_source_[i];
      if (any->group->epoch != header.epoch ||
          any->key.tag != (key.tag & ~std::uint64_t{0xFFFFFFFF}) ||
          any->group->rank_of(link) != header.source)
        continue;
      any_source_.erase(any_source_.begin() + static_cast<std::ptrdiff_t>(i));
      bind_any_source(any, header.source);
      job = find(key);
      break;
    }
  }
  if (job) {
    accept(*job, link, header, payload);
    const int peer = job->finished() ? -1 : job->group->rank_of(link);
    return peer >= 0 && job->lanes[static_cast<std::size_t>(peer)].lacks_data();
  }
  // Wire data that is not eager was sent after a grant, so its operation was posted here. A missing
  // operation has therefore already ended.
  const bool wanted = eager || link.shared_memory();
  if (const std::shared_ptr<Group> group = finished_in(key)) {
    if (eager) link.eager_consumed(header.length);
    break_group(*group, stray(*group, header));
  } else if (wanted && !aborted_.contains(key) && !closed_epochs_.contains(header.epoch)) {
    Unexpected u{&link, header, {}};
    u.payload.assign(payload.data, payload.data + payload.length);
    unexpected_[key].push_back(std::move(u));
    link.hold();
    early(key);
  } else if (eager) {
    link.eager_consumed(header.length);
  }
  if (payload.owned != nullptr) give_buffer(payload.owned);
  return false;
}

void Engine::accept(Job& job, Link& link, const wire::Header& header, const Payload& payload) {
  const std::shared_ptr<Job> alive = job.shared_from_this();
  const auto refuse = [&](Failure failure) {
    if (payload.owned != nullptr) give_buffer(payload.owned);
    if ((header.flags & wire::kFlagEager) != 0 && !link.shared_memory())
      link.eager_consumed(header.length);
    fail(job, std::move(failure), true);
  };
  const int peer = job.group->rank_of(link);
  const int index = job.program->local(header.chunk);
  const wire::Header mine = header_for(job, wire::FrameKind::kData);
  const bool same = header.dtype == mine.dtype && header.op == mine.op &&
                    (header.flags >> 8) == (mine.flags >> 8) && peer == header.source;
  if (!same || index < 0 ||
      header.total != total_for(job, job.chunks[static_cast<std::size_t>(index)]))
    return refuse(mismatch(job, header));
  Chunk& chunk = job.chunks[static_cast<std::size_t>(index)];
  const std::size_t segment_index = header.offset / job.item_size / chunk.segment_count;
  if (segment_index >= chunk.segments.size()) return refuse(mismatch(job, header));
  Segment& segment = chunk.segments[segment_index];
  const auto& steps = chunk.chain->steps;
  const auto from_peer = [&](const Step& s) {
    return s.verb != Verb::kSend && s.verb != Verb::kFold && s.peer == peer;
  };
  const bool due = std::any_of(steps.begin() + segment.position, steps.end(), from_peer);
  std::ptrdiff_t here = 0;
  for (const Stash* s = segment.first; s != nullptr; s = s->next) here += s->peer == peer;
  if (!due || here >= std::ranges::count_if(steps, from_peer)) return refuse(mismatch(job, header));
  const bool partial = (header.flags & wire::kFlagPartial) != 0;
  const std::size_t bytes =
      elements_in(chunk, segment_index) * (partial && job.wide ? sizeof(float) : job.item_size);
  Lane& lane = job.lanes[static_cast<std::size_t>(peer)];
  lane.heard = true;
  lane.received += bytes;
  const bool refers = (header.flags & wire::kFlagReference) != 0;
  const bool written = (header.flags & wire::kFlagWritten) != 0;
  if ((refers || written) && link.shm() == nullptr) return refuse(mismatch(job, header));
  if (written ? segment.readers == 0 : payload.length != (refers ? sizeof(Reference) : bytes))
    return refuse(mismatch(job, header));

  Stash* stash = stashes_.empty() ? new Stash : stashes_.back();
  if (!stashes_.empty()) stashes_.pop_back();
  *stash = Stash{};
  stash->link = &link;
  stash->peer = static_cast<std::uint16_t>(peer);
  stash->flags = header.flags;
  stash->length = static_cast<std::uint32_t>(bytes);
  stash->data = payload.data;
  stash->owned = payload.owned;
  bool lent = payload.owned == nullptr && bytes > 0;
  if (written) {
    lent = false;
  } else if (refers) {
    Reference reference;
    std::memcpy(&reference, payload.data, sizeof reference);
    stash->data = link.shm()->peer_memory(reference.offset, bytes);
    if (reference.give_back != Reference::kNowhere)
      stash->give_back = link.shm()->peer_memory(reference.give_back, bytes);
    lent = false;
    const bool inside = stash->data != nullptr &&
                        (reference.give_back == Reference::kNowhere || stash->give_back != nullptr);
    if (!inside) {
      stashes_.push_back(stash);
      return refuse(mismatch(job, header));
    }
  }
  Stash** end = &segment.first;
  while (*end != nullptr) end = &(*end)->next;
  *end = stash;
  if (job.gated) count_arrival(job, peer);
  advance(job, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(segment_index));
  if (lent && !job.finished()) {
    // The segment still waits and the rail needs its buffer back, so copy the payload.
    for (Stash* s = segment.first; s != nullptr; s = s->next) {
      if (s != stash || s->data != payload.data) continue;
      const bool in_place =
          payload.data == chunk.target + segment_index * chunk.segment_count * job.item_size;
      if (in_place) break;
      s->owned = take_buffer(bytes);
      std::memcpy(s->owned, payload.data, bytes);
      s->data = s->owned;
    }
  }
  maybe_finish(job);
}

void Engine::on_grant(Link& link, const wire::Header& header) {
  if (intrudes(link, header)) return;
  const bool request = (header.flags & wire::kFlagEager) != 0;
  const Key key = key_of(header);
  const std::shared_ptr<Job> job = find(key);
  if (!job) {
    const bool over = aborted_.contains(key) || closed_epochs_.contains(header.epoch) ||
                      (!request && finished_in(key) != nullptr);
    if (over) return;
    // The peer was the first to post the operation, so keep its grant. Otherwise this rank would
    // have to request one, and the answer would wait behind the data that the peer sends.
    unexpected_[key].push_back(Unexpected{&link, header, {}});
    link.hold();
    if (request) early(key);
    return;
  }
  const int peer = job->group->rank_of(link);
  if (peer < 0) return;
  Lane& lane = job->lanes[static_cast<std::size_t>(peer)];
  if (request) {
    lane.heard = true;
    if (std::exchange(lane.answered, true)) return;
    if (lane.promised == 0)
      lane.promised = lane.windowed ? header.offset + window_of(*job, peer) : ~std::uint64_t{0};
    link.grant(*job, peer);
    return;
  }
  lane.heard = true;
  lane.granted = std::max(lane.granted, header.offset);
  if (std::exchange(lane.asks, false)) link.ask_over();
  link.unpark(*job, peer);
}

void Engine::on_release(Link& link, const wire::Header& header) {
  const std::shared_ptr<Job> job = find(key_of(header));
  if (!job || job->group->rank_of(link) < 0) return;
  const int index = job->program->local(header.chunk);
  if (index < 0) return;
  Chunk& chunk = job->chunks[static_cast<std::size_t>(index)];
  const std::size_t segment = header.offset / job->item_size / chunk.segment_count;
  if (segment >= chunk.segments.size()) return;
  Segment& s = chunk.segments[segment];
  if (s.readers == 0) return;
  if (--s.readers == 0) release_slot(*job, s);
  send_finished(*job);
}

void Engine::advance(Job& job, std::uint32_t chunk, std::uint32_t segment) {
  Chunk& c = job.chunks[chunk];
  Segment& s = c.segments[segment];
  const auto& steps = c.chain->steps;
  if (s.position >= steps.size() && !steps.empty()) return;
  while (s.position < steps.size()) {
    if (!pass(job, chunk, segment, steps[s.position])) return;
    ++s.position;
  }
  --job.open_segments;
}

bool Engine::pass(Job& job, std::uint32_t chunk, std::uint32_t segment, const Step& step) {
  Chunk& c = job.chunks[chunk];
  Segment& s = c.segments[segment];
  const bool asks_device =
      c.offloaded && step.verb != Verb::kHold && (step.verb != Verb::kSend || step.own_data);
  if (asks_device && !offload(job, chunk, segment, step)) return false;
  switch (step.verb) {
    case Verb::kSend: {
      Link& link = *job.group->links[step.peer];
      ++job.open_sends;
      if (step.copied) ++s.uncopied;
      link.queue(SendItem{job.shared_from_this(), chunk, segment, &step});
      mark_dirty(link);
      return true;
    }
    case Verb::kHold: {
      for (Stash* stash = s.first; stash != nullptr; stash = stash->next) {
        if (stash->peer == step.peer) return true;
      }
      return false;
    }
    case Verb::kAdd:
    case Verb::kCopy: {
      if (c.offloaded) return true;
      Stash* stash = take_stash(s, step.peer);
      if (stash == nullptr) return false;
      consume(job, c, segment, stash, step);
      return true;
    }
    case Verb::kFold:
      if (c.offloaded) return true;
      if (s.uncopied > 0 || job.gated) return false;
      fold(job, chunk, segment);
      return true;
  }
  return false;
}

void Engine::copied(Job& job, std::uint32_t chunk, std::uint32_t segment) {
  if (job.finished() || --job.chunks[chunk].segments[segment].uncopied > 0) return;
  advance(job, chunk, segment);
  maybe_finish(job);
}

void Engine::send_finished(Job& job) {
  if (job.finished()) return;
  --job.open_sends;
  maybe_finish(job);
}

void Engine::maybe_finish(Job& job) {
  if (job.open_segments > 0 || job.open_sends > 0 || job.finished()) return;
  if (job.last_divisor > 1) divide_last(job);
  finish(job, JobState::kDone);
}

}  // namespace slackline
