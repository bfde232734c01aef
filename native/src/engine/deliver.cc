// What happens when a frame arrives, and how a segment moves along its chain.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "engine_impl.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

constexpr std::uint64_t kWindowSegments = 8;
constexpr std::uint64_t kStreamFrom =
    8u << 20;  // operations from this size on are stored past the cache

std::size_t elements_in(const Chunk& chunk, std::size_t segment) {
  const std::size_t first = segment * chunk.segment_count;
  return std::min(chunk.segment_count, chunk.count - std::min(chunk.count, first));
}

}  // namespace

std::byte* Engine::landing(Link& link, const wire::Header& header, Job** owner) {
  if (header.kind != static_cast<std::uint8_t>(wire::FrameKind::kData) ||
      (header.flags & wire::kFlagReference) != 0)
    return nullptr;
  const std::shared_ptr<Job> job = find(key_of(header));
  if (!job || job->wide) return nullptr;
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
  if (!link.admit(header.sequence)) {
    if (payload.owned != nullptr) give_buffer(payload.owned);
    return;
  }
  link.note_bulk_arrival(header.length);
  bool kept = false;
  switch (static_cast<wire::FrameKind>(header.kind)) {
    case wire::FrameKind::kData:
      on_data(link, header, payload);
      kept = true;
      break;
    case wire::FrameKind::kGrant:
      on_grant(link, header);
      break;
    case wire::FrameKind::kCredit:
      link.credit(header.offset);
      break;
    case wire::FrameKind::kRelease:
      on_release(link, header);
      break;
    case wire::FrameKind::kAbort:
      on_abort(link, header, payload);
      break;
    case wire::FrameKind::kBye:
      link.keep_bye(header);
      break;
    case wire::FrameKind::kAck:
    case wire::FrameKind::kHello:
      break;
  }
  if (!kept && payload.owned != nullptr) give_buffer(payload.owned);
  while (const std::optional<wire::Header> bye = link.take_due_bye()) on_bye(link, *bye);
}

void Engine::on_data(Link& link, const wire::Header& header, const Payload& payload) {
  const Key key = key_of(header);
  std::shared_ptr<Job> job = find(key);
  if (!job && key.role != kRoleCollective) {
    for (std::size_t i = 0; i < any_source_.size(); ++i) {
      const std::shared_ptr<Job> any = any_source_[i];
      if (any->group->epoch != header.epoch ||
          any->key.tag != (key.tag & ~std::uint64_t{0xFFFFFFFF}))
        continue;
      any_source_.erase(any_source_.begin() + static_cast<std::ptrdiff_t>(i));
      bind_any_source(any, header.source);
      job = find(key);
      break;
    }
  }
  if (job) {
    accept(*job, link, header, payload);
    return;
  }
  if (!aborted_.contains(key) && !closed_epochs_.contains(header.epoch)) {
    Unexpected u{&link, header, {}};
    u.payload.assign(payload.data, payload.data + payload.length);
    unexpected_[key].push_back(std::move(u));
  }
  if (payload.owned != nullptr) give_buffer(payload.owned);
}

void Engine::accept(Job& job, Link& link, const wire::Header& header, const Payload& payload) {
  const std::shared_ptr<Job> alive = job.shared_from_this();
  const auto refuse = [&](Failure failure) {
    if (payload.owned != nullptr) give_buffer(payload.owned);
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
  const bool due = std::any_of(steps.begin() + segment.position, steps.end(), [&](const Step& s) {
    return s.verb != Verb::kSend && s.verb != Verb::kFold && s.peer == peer;
  });
  if (!due) return refuse(mismatch(job, header));
  const bool partial = (header.flags & wire::kFlagPartial) != 0;
  const std::size_t bytes =
      elements_in(chunk, segment_index) * (partial && job.wide ? sizeof(float) : job.item_size);
  job.lanes[static_cast<std::size_t>(peer)].heard = true;

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
  if ((header.flags & wire::kFlagReference) != 0) {
    Reference reference;
    std::memcpy(&reference, payload.data, sizeof reference);
    stash->data = link.shm()->peer_memory(reference.offset, bytes);
    if (reference.give_back != Reference::kNowhere)
      stash->give_back = link.shm()->peer_memory(reference.give_back, bytes);
    lent = false;
  } else if ((header.flags & wire::kFlagWritten) != 0) {
    lent = false;
  } else if (payload.length != bytes) {
    stashes_.push_back(stash);
    return refuse(mismatch(job, header));
  }
  Stash** end = &segment.first;
  while (*end != nullptr) end = &(*end)->next;
  *end = stash;
  advance(job, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(segment_index));
  if (lent && !job.finished()) {
    // Still waiting and the rail wants its buffer back: keep a copy.
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
  const bool request = (header.flags & wire::kFlagEager) != 0;
  const std::shared_ptr<Job> job = find(key_of(header));
  if (!job) {
    if (request && !aborted_.contains(key_of(header)))
      unexpected_[key_of(header)].push_back(Unexpected{&link, header, {}});
    return;  // else a grant for an operation that is over
  }
  const int peer = job->group->rank_of(link);
  if (peer < 0) return;
  Lane& lane = job->lanes[static_cast<std::size_t>(peer)];
  if (request) {
    lane.heard = true;
    if (lane.promised == 0)
      lane.promised = lane.windowed ? header.offset + kWindowSegments * options_.wire_segment_bytes
                                    : ~std::uint64_t{0};
    link.grant(*job, peer);
    return;
  }
  lane.heard = true;
  lane.granted = std::max(lane.granted, header.offset);
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
  if (s.readers > 0 && --s.readers == 0) release_slot(*job, s);
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
      Stash* stash = take_stash(s, step.peer);
      if (stash == nullptr) return false;
      consume(job, c, segment, stash, step);
      return true;
    }
    case Verb::kFold:
      if (s.uncopied > 0) return false;
      fold(job, chunk, segment);
      return true;
  }
  return false;
}

void Engine::consume(Job& job, Chunk& chunk, std::uint32_t segment, Stash* stash,
                     const Step& step) {
  Segment& s = chunk.segments[segment];
  const std::size_t first = segment * chunk.segment_count;
  const std::size_t elements = elements_in(chunk, segment);
  const std::size_t bytes = elements * job.item_size;
  if ((stash->flags & wire::kFlagWritten) != 0) {
    // The peer stored the result where our data was: in a slot, or in the target itself.
    if (s.slot >= 0)
      kernels::copy(chunk.target + first * job.item_size, slot(s.slot), bytes,
                    job.total >= kStreamFrom);
    if (s.readers > 0 && --s.readers == 0) release_slot(job, s);
    --job.open_sends;
    stash->answered = true;
  } else if (elements > 0 && step.verb == Verb::kCopy) {
    std::byte* target = chunk.target + first * job.item_size;
    if (stash->data != target) kernels::copy(target, stash->data, bytes, job.total >= kStreamFrom);
  } else if (elements > 0) {
    bytes_reduced_ += bytes;
    std::byte* target = chunk.target == nullptr ? nullptr : chunk.target + first * job.item_size;
    const std::byte* own = chunk.source + first * job.item_size;
    if (job.wide) {
      auto* partial = reinterpret_cast<float*>(chunk.partial) + first;
      const auto* incoming = reinterpret_cast<const float*>(stash->data);
      if (step.last) {
        kernels::finish_wide(job.dtype, job.op, incoming, own, target, elements, job.divisor);
      } else {
        kernels::add_wide(job.dtype, job.op, incoming, own, partial, elements);
      }
    } else {
      std::byte* partial = chunk.partial + first * job.item_size;
      const std::byte* mine = step.own_data ? own : partial;
      std::byte* out = step.last && target != nullptr ? target : partial;
      kernels::add(job.dtype, job.op, stash->data, mine, out, elements,
                   step.last ? job.divisor : 1);
    }
  }
  drop_stash(job, chunk, segment, stash);
}

void Engine::fold(Job& job, std::uint32_t chunk_index, std::uint32_t segment) {
  Chunk& chunk = job.chunks[chunk_index];
  Segment& s = chunk.segments[segment];
  const std::size_t first = segment * chunk.segment_count;
  const std::size_t elements = elements_in(chunk, segment);
  const auto& steps = chunk.chain->steps;
  const auto returns_to = [&](int peer) {
    return std::any_of(steps.begin() + s.position, steps.end(), [&](const Step& step) {
      return step.verb == Verb::kSend && step.peer == peer;
    });
  };
  constexpr int kMost = 256;
  std::array<const void*, kMost> sources;
  std::array<void*, kMost> targets;
  int n_sources = 0;
  int n_targets = 0;
  targets[static_cast<std::size_t>(n_targets++)] = chunk.target + first * job.item_size;
  for (int rank = 0; rank < job.group->size() && elements > 0; ++rank) {
    if (rank == job.group->rank) {
      sources[static_cast<std::size_t>(n_sources++)] = chunk.source + first * job.item_size;
      continue;
    }
    for (Stash* stash = s.first; stash != nullptr; stash = stash->next) {
      if (stash->peer != rank) continue;
      sources[static_cast<std::size_t>(n_sources++)] = stash->data;
      if (stash->give_back != nullptr && returns_to(rank)) {
        targets[static_cast<std::size_t>(n_targets++)] = stash->give_back;
        stash->answered = true;
      }
      break;
    }
  }
  if (elements > 0) {
    kernels::fold(job.dtype, job.op, sources.data(), n_sources, targets.data(), n_targets, elements,
                  job.divisor, job.total >= kStreamFrom);
    bytes_reduced_ += elements * job.item_size * static_cast<std::size_t>(n_sources);
  }
  Stash** link = &s.first;
  while (*link != nullptr) {
    Stash* stash = *link;
    if (stash->answered) {
      link = &stash->next;  // its SEND says WRITTEN
      continue;
    }
    *link = stash->next;
    drop_stash(job, chunk, segment, stash);
  }
}

Stash* Engine::take_stash(Segment& segment, int peer) {
  for (Stash** link = &segment.first; *link != nullptr; link = &(*link)->next) {
    Stash* stash = *link;
    if (stash->peer != peer || stash->answered) continue;
    *link = stash->next;
    return stash;
  }
  return nullptr;
}

void Engine::drop_stash(Job& job, Chunk& chunk, std::uint32_t segment, Stash* stash) {
  if ((stash->flags & wire::kFlagReference) != 0 && !stash->answered) {
    wire::Header header = header_for(job, wire::FrameKind::kRelease);
    if (job.key.role != kRoleCollective) header.flags |= wire::kFlagToSender;
    header.chunk = chunk.chain->chunk;
    header.offset = segment * chunk.segment_count * job.item_size;
    stash->link->control(header);
  }
  if (!stash->link->shared_memory()) {
    job.lanes[stash->peer].consumed += stash->length;
    if ((stash->flags & wire::kFlagEager) != 0) stash->link->eager_consumed(stash->length);
    maybe_grant(job, stash->peer);
  }
  if (stash->owned != nullptr) give_buffer(stash->owned);
  stashes_.push_back(stash);
}

void Engine::maybe_grant(Job& job, int peer) {
  Lane& lane = job.lanes[static_cast<std::size_t>(peer)];
  const std::uint64_t window = kWindowSegments * options_.wire_segment_bytes;
  if (!lane.windowed || lane.promised == 0 || lane.promised >= lane.consumed + window / 4 * 3)
    return;
  lane.promised = lane.consumed + window;
  job.group->links[static_cast<std::size_t>(peer)]->grant(job, peer);
}

bool Engine::answered(const Job& job, std::uint32_t chunk, std::uint32_t segment, int peer) const {
  for (const Stash* s = job.chunks[chunk].segments[segment].first; s != nullptr; s = s->next) {
    if (s->peer == peer && s->answered) return true;
  }
  return false;
}

void Engine::forget_answer(Job& job, std::uint32_t chunk, std::uint32_t segment, int peer) {
  for (Stash** link = &job.chunks[chunk].segments[segment].first; *link != nullptr;
       link = &(*link)->next) {
    Stash* stash = *link;
    if (stash->peer != peer || !stash->answered) continue;
    *link = stash->next;
    stashes_.push_back(stash);
    return;
  }
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
  if (job.open_segments == 0 && job.open_sends == 0 && !job.finished())
    finish(job, JobState::kDone);
}

}  // namespace slackline
