// The work of the executor's steps on payload bytes: add, copy, reduce, and the release of buffers
// afterwards.
#include <algorithm>

#include "executor.h"
#include "headers.h"
#include "link.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

// Operations of at least this size store their results past the cache.
constexpr std::uint64_t kStreamSumsFrom = 8u << 20;

}  // namespace

void Executor::consume(Request& request, Chunk& chunk, std::uint32_t segment,
                       PendingPayload* pending, const Step& step) {
  Segment& s = chunk.segments[segment];
  const std::size_t first = segment * chunk.segment_count;
  const std::size_t elements = elements_in(chunk, segment);
  const std::size_t bytes = elements * request.item_size;
  bool slot_is_free = false;
  if ((pending->flags & wire::kFlagWritten) != 0) {
    // The peer stored the result into memory of this rank: a staging slot, or the target itself.
    if (s.slot >= 0)
      kernels::copy(chunk.target + first * request.item_size, uses_.memory.slot(s.slot), bytes,
                    request.total >= kStreamSumsFrom);
    PeerFlow& flow = request.flows[pending->peer];
    if (flow.lent > 0) --flow.lent;
    slot_is_free = s.readers > 0 && --s.readers == 0;
    --request.open_sends;
    pending->answered = true;
  } else if (elements > 0 && step.opcode == Opcode::kCopy) {
    std::byte* target = chunk.target + first * request.item_size;
    const bool read_again = s.position + 1u < chunk.step_list->steps.size();
    if (pending->data != target)
      kernels::copy(target, pending->data, bytes, request.total >= kStreamSumsFrom && !read_again);
  } else if (elements > 0) {
    add(request, chunk, segment, *pending, step);
  }
  drop_pending(request, chunk, segment, pending);
  if (slot_is_free) uses_.endings.release_slot(request, s);
}

// Add a payload to a segment.
void Executor::add(const Request& request, const Chunk& chunk, std::uint32_t segment,
                   const PendingPayload& pending, const Step& step) {
  const std::size_t first = segment * chunk.segment_count;
  const std::size_t elements = elements_in(chunk, segment);
  bytes_reduced_ += elements * request.item_size;
  std::byte* target = chunk.target == nullptr ? nullptr : chunk.target + first * request.item_size;
  const std::byte* own = chunk.source + first * request.item_size;
  if (request.wide) {
    auto* partial = reinterpret_cast<float*>(chunk.partial) + first;
    const auto* incoming = reinterpret_cast<const float*>(pending.data);
    if (step.last) {
      kernels::finish_wide(request.dtype, request.op, incoming, own, target, elements,
                           request.divisor);
    } else {
      kernels::add_wide(request.dtype, request.op, incoming, own, partial, elements);
    }
    return;
  }
  std::byte* partial = chunk.partial + first * request.item_size;
  const std::byte* mine = step.own_data ? own : partial;
  std::byte* out = step.last && target != nullptr ? target : partial;
  kernels::add(request.dtype, request.op, pending.data, mine, out, elements,
               step.last ? request.divisor : 1);
}

void Executor::reduce_all(Request& request, std::uint32_t chunk_index, std::uint32_t segment) {
  Chunk& chunk = request.chunks[chunk_index];
  Segment& s = chunk.segments[segment];
  const std::size_t first = segment * chunk.segment_count;
  const std::size_t elements = elements_in(chunk, segment);
  const auto& steps = chunk.step_list->steps;
  const auto returns_to = [&](int peer) {
    return std::any_of(steps.begin() + s.position, steps.end(), [&](const Step& step) {
      return step.opcode == Opcode::kSend && step.peer == peer;
    });
  };
  std::vector<const void*>& sources = reduce_sources_;
  std::vector<void*>& targets = reduce_targets_;
  sources.clear();
  targets.assign(1, chunk.target + first * request.item_size);
  // Add the data that `rank` has for this segment of a chunk.
  const auto take = [&](int rank, int number) {
    if (rank == request.group->rank) {
      const auto own = static_cast<std::size_t>(request.program->local(number));
      const std::byte* source = request.chunks[own].source;
      // An aggregator has no data of its own.
      if (source != nullptr) sources.push_back(source + first * request.item_size);
      return;
    }
    for (PendingPayload* pending = s.first; pending != nullptr; pending = pending->next) {
      if (pending->peer != rank || pending->chunk != number) continue;
      sources.push_back(pending->data);
      // The result is stored where the peer expects it: in place of the same chunk's data.
      const bool own_chunk = pending->chunk == chunk.step_list->chunk;
      if (own_chunk && pending->give_back != nullptr && returns_to(rank)) {
        targets.push_back(pending->give_back);
        pending->answered = true;
      }
      return;
    }
  };
  const int number = chunk.step_list->chunk;
  const std::optional<Tree>& tree = request.program->tree();
  if (elements > 0 && tree) {
    for (std::size_t node = 0; node < tree->ranks.size(); ++node)
      take(tree->ranks[node],
           tree->apart ? number + request.group->size() * static_cast<int>(node) : number);
  } else if (elements > 0) {
    for (int rank = 0; rank < request.group->size(); ++rank) take(rank, number);
  }
  // A result that is then sent over a wire is read again at once, so it should stay in the cache.
  const bool read_again =
      std::any_of(steps.begin() + s.position, steps.end(), [&](const Step& step) {
        return step.opcode == Opcode::kSend && !answered(request, chunk_index, segment, step.peer);
      });
  if (elements > 0 && tree) {
    kernels::reduce_tree(request.dtype, request.op, sources.data(), tree->sums.data(),
                         static_cast<int>(sources.size()), targets.data(),
                         static_cast<int>(targets.size()), elements, request.divisor);
  } else if (elements > 0) {
    kernels::reduce(request.dtype, request.op, sources.data(), static_cast<int>(sources.size()),
                    targets.data(), static_cast<int>(targets.size()), elements, request.divisor,
                    request.total >= kStreamSumsFrom && !read_again);
  }
  bytes_reduced_ += elements * request.item_size * sources.size();
  PendingPayload** link = &s.first;
  while (*link != nullptr) {
    PendingPayload* pending = *link;
    if (pending->answered) {
      link = &pending->next;  // its SEND step will send WRITTEN
      continue;
    }
    *link = pending->next;
    request.flows[pending->peer].reduced += pending->length;
    drop_pending(request, chunk, segment, pending);
  }
}

PendingPayload* Executor::take_pending(Segment& segment, int peer) {
  for (PendingPayload** link = &segment.first; *link != nullptr; link = &(*link)->next) {
    PendingPayload* pending = *link;
    if (pending->peer != peer || pending->answered) continue;
    *link = pending->next;
    return pending;
  }
  return nullptr;
}

void Executor::drop_pending(Request& request, Chunk& chunk, std::uint32_t segment,
                            PendingPayload* pending) {
  const PendingPayload used = *pending;
  uses_.memory.give_pending(pending);
  if ((used.flags & wire::kFlagReference) != 0 && !used.answered) {
    wire::Header header = header_for(request, wire::FrameKind::kRelease);
    if (request.key.role != kRoleCollective) header.flags |= wire::kFlagToSender;
    header.chunk = used.chunk;
    header.offset = segment * chunk.segment_count * request.item_size;
    used.link->control(header);
  }
  request.flows[used.peer].consumed += used.length;
  used.link->port().consumed_early(used.flags, used.length);
  credits_.renew(request, used.peer);
}

bool Executor::answered(const Request& request, std::uint32_t chunk, std::uint32_t segment,
                        int peer) {
  for (const PendingPayload* s = request.chunks[chunk].segments[segment].first; s != nullptr;
       s = s->next) {
    if (s->peer == peer && s->answered) return true;
  }
  return false;
}

void Executor::forget_answer(Request& request, std::uint32_t chunk, std::uint32_t segment,
                             int peer) {
  for (PendingPayload** link = &request.chunks[chunk].segments[segment].first; *link != nullptr;
       link = &(*link)->next) {
    PendingPayload* pending = *link;
    if (pending->peer != peer || !pending->answered) continue;
    *link = pending->next;
    uses_.memory.give_pending(pending);
    return;
  }
}

}  // namespace slackline
