// The work of a segment's steps on payload bytes: add, copy, fold, and the release of buffers
// afterwards.
#include <algorithm>

#include "clock.h"
#include "engine_impl.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

// Operations of at least this size store their results past the cache.
constexpr std::uint64_t kStreamFrom = 8u << 20;

}  // namespace

void Engine::consume(Job& job, Chunk& chunk, std::uint32_t segment, Stash* stash,
                     const Step& step) {
  Segment& s = chunk.segments[segment];
  const std::size_t first = segment * chunk.segment_count;
  const std::size_t elements = elements_in(chunk, segment);
  const std::size_t bytes = elements * job.item_size;
  if ((stash->flags & wire::kFlagWritten) != 0) {
    // The peer stored the result into this rank's data: a slot, or the target itself.
    if (s.slot >= 0)
      kernels::copy(chunk.target + first * job.item_size, slot(s.slot), bytes,
                    job.total >= kStreamFrom);
    if (s.readers > 0 && --s.readers == 0) release_slot(job, s);
    --job.open_sends;
    stash->answered = true;
  } else if (elements > 0 && step.verb == Verb::kCopy) {
    std::byte* target = chunk.target + first * job.item_size;
    const bool read_again = s.position + 1u < chunk.chain->steps.size();
    if (stash->data != target)
      kernels::copy(target, stash->data, bytes, job.total >= kStreamFrom && !read_again);
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
  std::vector<const void*>& sources = fold_sources_;
  std::vector<void*>& targets = fold_targets_;
  sources.clear();
  targets.assign(1, chunk.target + first * job.item_size);
  for (int rank = 0; rank < job.group->size() && elements > 0; ++rank) {
    if (rank == job.group->rank) {
      if (chunk.source == nullptr) continue;  // an aggregator has no data of its own
      sources.push_back(chunk.source + first * job.item_size);
      continue;
    }
    for (Stash* stash = s.first; stash != nullptr; stash = stash->next) {
      if (stash->peer != rank) continue;
      sources.push_back(stash->data);
      if (stash->give_back != nullptr && returns_to(rank)) {
        targets.push_back(stash->give_back);
        stash->answered = true;
      }
      break;
    }
  }
  // A result that is then sent over a wire is read again at once, so it should stay in the cache.
  const bool read_again =
      std::any_of(steps.begin() + s.position, steps.end(), [&](const Step& step) {
        return step.verb == Verb::kSend && !answered(job, chunk_index, segment, step.peer);
      });
  if (elements > 0) {
    kernels::fold(job.dtype, job.op, sources.data(), static_cast<int>(sources.size()),
                  targets.data(), static_cast<int>(targets.size()), elements, job.divisor,
                  job.total >= kStreamFrom && !read_again);
    bytes_reduced_ += elements * job.item_size * sources.size();
  }
  Stash** link = &s.first;
  while (*link != nullptr) {
    Stash* stash = *link;
    if (stash->answered) {
      link = &stash->next;  // its SEND step will send WRITTEN
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

// Return the number of bytes of a peer's data that may wait here until a FOLD consumes them.
std::uint64_t Engine::window_of(const Job& job, int peer) const {
  if (!job.group->service) return kWindowSegments * options_.wire_segment_bytes;
  const auto since = static_cast<double>(std::max(now_ns() - job.posted_ns, kServiceWindowNs));
  const auto consumed = static_cast<double>(job.lanes[static_cast<std::size_t>(peer)].consumed);
  const auto brought = static_cast<std::uint64_t>(consumed * (kServiceWindowNs / since));
  return std::clamp(brought, kLeastServiceWindow, kMostServiceWindow);
}

// Return the number of bytes of an operation that may be sent before a grant arrives.
std::uint64_t Engine::eager_bytes(const Job& job) const {
  const bool aggregated = job.group->service != nullptr || job.kept != nullptr;
  return aggregated ? std::min(options_.eager_bytes, kLeastServiceWindow) : options_.eager_bytes;
}

void Engine::maybe_grant(Job& job, int peer) {
  Lane& lane = job.lanes[static_cast<std::size_t>(peer)];
  const std::uint64_t window = window_of(job, peer);
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

}  // namespace slackline
