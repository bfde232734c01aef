#include "executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "describe.h"
#include "headers.h"
#include "link.h"
#include "notices.h"
#include "offload.h"
#include "segments.h"
#include "steps.h"

namespace slackline {
namespace {

// Operations up to this size begin in the posting thread, because a hand-over to the driving thread
// would take longer.
constexpr std::uint64_t kInlineStart = 64u << 10;

bool has(const wire::Header& header, std::uint16_t flag) { return (header.flags & flag) != 0; }

// Return the segment that a frame with this header belongs to.
std::size_t segment_of(const Request& request, const Chunk& chunk, const wire::Header& header) {
  return header.offset / request.item_size / chunk.segment_count;
}

std::byte* home_of(const Request& request, const Chunk& chunk, std::size_t segment) {
  return chunk.target + segment * chunk.segment_count * request.item_size;
}

}  // namespace

Executor::Executor(const Uses& uses)
    : uses_(uses),
      builder_(uses.options, uses.clock, uses.memory),
      credits_(uses.options, uses.clock) {}

void Executor::begin(const std::shared_ptr<Request>& request, bool now) try {
  if (request->undivided || uses_.operations.open_before(*request) != nullptr)
    uses_.operations.hold(request);
  else if (request->any)
    start_any_source(request);
  else if (now || request->total <= kInlineStart)
    start(request);
  else
    uses_.operations.queue(request);
  uses_.links.send();
} catch (const std::exception& error) {
  uses_.endings.broke_down(error);
  uses_.endings.end_broken(*request);  // the request may not be in any table yet
}

bool Executor::start_queued() {
  bool any = false;
  while (const std::shared_ptr<Request> request = uses_.operations.take_queued()) {
    try {
      start(request);
    } catch (const std::exception& error) {
      uses_.endings.broke_down(error);
      uses_.endings.end_broken(*request);  // it may be in no table
    }
    any = true;
  }
  return any;
}

void Executor::start(const std::shared_ptr<Request>& request) {
  if (request->finished()) return;
  uses_.reports.started(*request, uses_.clock);
  request->refused = true;
  if (refused(*request)) return;
  request->refused = false;
  for (const auto& role : request->group->roles) role->started(*request);
  credits_.promise(*request);
  std::size_t longest = 0;
  for (const Chunk& chunk : request->chunks) longest = std::max(longest, chunk.segments.size());
  // Start the first segment of every chunk before the second segment of any, so that all chunks
  // progress together.
  for (std::size_t segment = 0; segment < longest; ++segment) {
    for (std::size_t chunk = 0; chunk < request->chunks.size(); ++chunk) {
      if (segment < request->chunks[chunk].segments.size())
        advance(*request, static_cast<std::uint32_t>(chunk), static_cast<std::uint32_t>(segment));
    }
  }
  take_unexpected(*request);
  request->group->each_absent([&](int rank, const Failure& reason) {
    if (!request->finished() && needs(*request, rank))
      uses_.endings.fail(*request, Failure(reason), true);
  });
  maybe_end(*request);
}

void Executor::share(const Shares& shares) {
  for (const auto& request : uses_.operations.undivided(shares)) {
    if (shares.failure) {
      uses_.endings.fail(*request, Failure(shares.failure), true);
      continue;
    }
    if (shares.program) request->program = shares.program;
    request->wide = Builder::widens(*request);
    builder_.divide(*request, *std::exchange(request->undivided, nullptr));
    uses_.operations.queue(request);
    uses_.operations.forget(request);
  }
}

// Fail an operation that cannot start. Return whether it cannot.
bool Executor::refused(Request& request) {
  const Group& group = *request.group;
  if (group.broken && !may_outlive_loss(request)) {
    // Members that have had all data of a lost member still wait for this rank, even if that member
    // has left here in good order. The other end of a message may wait whatever has ended the
    // group. Tell them.
    const bool loss = !group.lost.empty() || !group.told_losses.empty() || is_loss(group.broken);
    const bool message = request.key.role != kRoleCollective;
    uses_.endings.fail(request, Failure(group.broken), loss || message);
    return true;
  }
  if (request.failure) {
    uses_.endings.fail(request, std::exchange(request.failure, {}), true);
    return true;
  }
  const Failure* hindered = nullptr;
  group.each_absent([&](int rank, const Failure& reason) {
    if (hindered == nullptr && sends_to(request, rank)) hindered = &reason;
  });
  if (hindered != nullptr) {
    uses_.endings.fail(request, Failure(*hindered), true);
    return true;
  }
  uses_.operations.start(request.shared_from_this());
  const Failure* aborted = uses_.inbox.failure_of(request.key);
  if (aborted == nullptr) return false;
  uses_.endings.fail(request, Failure(*aborted), sparse(group));
  return true;
}

// Return whether a request of a group that has lost a member may still succeed: the operation may
// have completed at that member before its end. A collective may if the member takes no data of
// this rank, a message if the member has sent it.
bool Executor::may_outlive_loss(const Request& request) const {
  const Group& group = *request.group;
  const auto gone = [&](int rank) {
    return group.lost.contains(rank) || group.told_losses.contains(rank);
  };
  // The group was aborted, or the engine has failed.
  if (group.broken.departure == Departure::kAborted || !gone(group.broken.peer)) return false;
  if (request.key.role == kRoleCollective) {
    for (int rank = 0; rank < group.size(); ++rank) {
      if (gone(rank) && sends_to(request, rank)) return false;
    }
    return true;
  }
  const auto* frames = uses_.inbox.frames().find(request.key);
  return frames != nullptr && std::ranges::any_of(*frames, [&](const Unexpected& frame) {
           return gone(group.rank_of(*frame.link));
         });
}

// Take the frames that came before the operation was posted.
void Executor::take_unexpected(Request& request) {
  if (uses_.inbox.frames().find(request.key) == nullptr) return;
  for (const Unexpected& frame : uses_.inbox.frames().take(request.key)) {
    if (request.finished()) {
      UnexpectedFrames::drop(frame);
      continue;
    }
    UnexpectedFrames::used(frame);
    if (frame.header.kind == static_cast<std::uint8_t>(wire::FrameKind::kGrant)) {
      granted(request, *frame.link, frame.header);
      continue;
    }
    std::byte* none = nullptr;
    const auto length = static_cast<std::uint32_t>(frame.payload.size());
    payload(request, *frame.link, frame.header, {frame.payload.data(), nullptr, length}, &none);
  }
}

void Executor::start_any_source(const std::shared_ptr<Request>& request) {
  const Group& group = *request->group;
  const bool aborted = group.broken && group.lost.empty();
  for (int peer = aborted ? group.size() : 0; peer < group.size(); ++peer) {
    if (peer == group.rank) continue;
    if (uses_.inbox.frames().find(Builder::key_if_from(*request, peer)) != nullptr)
      return bind(request, peer);
  }
  if (group.broken) return uses_.endings.fail(*request, Failure(group.broken), false);
  if (group.all_left())
    return uses_.endings.fail(*request, Failure(group.left.begin()->second), false);
  uses_.operations.wait_for_sender(request);
}

void Executor::bind(const std::shared_ptr<Request>& request, int peer) {
  builder_.bind(*request, peer);
  start(request);
}

std::shared_ptr<Request> Executor::find(const Key& key, const Link& link, int source) {
  std::shared_ptr<Request> request = uses_.operations.find(key);
  if (request || key.role == kRoleCollective) return request;
  const std::shared_ptr<Request> any = uses_.operations.take_receive(key, link, source);
  if (!any) return nullptr;
  try {
    bind(any, source);
  } catch (const std::exception& error) {
    uses_.endings.broke_down(error);
    uses_.endings.end_broken(*any);  // it may be in no table
  }
  return uses_.operations.find(key);
}

std::byte* Executor::place_for(const Link& link, const wire::Header& header,
                               Request** owner) const {
  if (header.kind != static_cast<std::uint8_t>(wire::FrameKind::kData) ||
      has(header, wire::kFlagReference))
    return nullptr;
  const std::shared_ptr<Request> request = uses_.operations.find(key_of(header));
  if (!request || request->wide || request->offloaded) return nullptr;
  const int peer = request->group->rank_of(link);
  const int index = request->program->local(header.chunk);
  if (peer < 0 || index < 0) return nullptr;
  const Chunk& chunk = request->chunks[static_cast<std::size_t>(index)];
  const std::size_t segment = segment_of(*request, chunk, header);
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
  return home_of(*request, chunk, segment);
}

// Return whether a frame fits the request: the ranks have posted the same operation, and a step of
// the frame's segment still waits for the frame.
bool Executor::fits(const Request& request, const Link& link, const wire::Header& header) const {
  const int peer = request.group->rank_of(link);
  const int index = request.program->local_for(header.chunk);
  const wire::Header mine = header_for(request, wire::FrameKind::kData);
  const bool same = header.dtype == mine.dtype && header.op == mine.op &&
                    (header.flags >> 8) == (mine.flags >> 8) && peer == header.source;
  if (!same || index < 0) return false;
  const Chunk& chunk = request.chunks[static_cast<std::size_t>(index)];
  const std::size_t place = segment_of(request, chunk, header);
  if (header.total != total_for(request, chunk) || place >= chunk.segments.size()) return false;
  const Segment& segment = chunk.segments[place];
  const auto& steps = chunk.step_list->steps;
  const auto from_peer = [&](const Step& s) {
    return s.opcode != Opcode::kSend && s.opcode != Opcode::kReduceAll && s.peer == peer &&
           s.chunk == header.chunk;
  };
  const bool due = std::any_of(steps.begin() + segment.position, steps.end(), from_peer);
  std::ptrdiff_t here = 0;
  for (const PendingPayload* s = segment.first; s != nullptr; s = s->next)
    here += s->peer == peer && s->chunk == header.chunk;
  return due && here < std::ranges::count_if(steps, from_peer);
}

// Return whether a frame has the payload that its flags announce: the data, a reference to it in
// the peer's memory, or nothing where the peer has written the result already.
bool Executor::has_payload(const PeerFlow& flow, const Segment& segment, Link& link,
                           const wire::Header& header, std::size_t announced,
                           std::size_t length) const {
  const bool refers = has(header, wire::kFlagReference);
  const bool written = has(header, wire::kFlagWritten);
  if ((refers || written) && link.port().lender() == nullptr) return false;
  if (written) return segment.readers > 0 && flow.lent > 0;
  return length == (refers ? sizeof(Reference) : announced);
}

// Follow a reference to the peer's memory. Return whether the memory is inside the peer's arena.
bool Executor::follow(Link& link, const Payload& payload, PendingPayload& pending) {
  Reference reference;
  std::memcpy(&reference, payload.data, sizeof reference);
  const Lender& lender = *link.port().lender();
  pending.data = lender.peer_memory(reference.offset, pending.length);
  if (reference.give_back != Reference::kNowhere)
    pending.give_back = lender.peer_memory(reference.give_back, pending.length);
  return pending.data != nullptr &&
         (reference.give_back == Reference::kNowhere || pending.give_back != nullptr);
}

void Executor::payload(Request& request, Link& link, const wire::Header& header,
                       const Payload& payload, std::byte** owned) {
  const std::shared_ptr<Request> alive = request.shared_from_this();
  const auto refuse = [&] {
    link.port().consumed_early(header.flags, header.length);
    uses_.endings.fail(request, mismatch(request, header), true);
  };
  if (!fits(request, link, header)) return refuse();
  const int peer = request.group->rank_of(link);
  const auto index = static_cast<std::uint32_t>(request.program->local_for(header.chunk));
  Chunk& chunk = request.chunks[index];
  const auto place = static_cast<std::uint32_t>(segment_of(request, chunk, header));
  Segment& segment = chunk.segments[place];
  const bool partial = has(header, wire::kFlagPartial);
  const std::size_t bytes =
      elements_in(chunk, place) * (partial && request.wide ? sizeof(float) : request.item_size);
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  flow.heard = true;
  flow.received += bytes;
  if (!has_payload(flow, segment, link, header, bytes, payload.length)) return refuse();
  PendingPayload* pending = uses_.memory.take_pending();
  pending->link = &link;
  pending->peer = static_cast<std::uint16_t>(peer);
  pending->chunk = header.chunk;
  pending->flags = header.flags;
  pending->length = static_cast<std::uint32_t>(bytes);
  pending->data = payload.data;
  if (has(header, wire::kFlagReference) && !has(header, wire::kFlagWritten) &&
      !follow(link, payload, *pending)) {
    uses_.memory.give_pending(pending);
    return refuse();
  }
  PendingPayload** end = &segment.first;
  while (*end != nullptr) end = &(*end)->next;
  *end = pending;
  pending->owned = std::exchange(*owned, nullptr);
  if (request.onset > 0) {
    for (const auto& role : request.group->roles) role->arrived(request, peer);
  }
  advance(request, index, place);
  const bool lent = payload.owned == nullptr && bytes > 0 && !has(header, wire::kFlagReference) &&
                    !has(header, wire::kFlagWritten);
  if (lent && !request.finished() && payload.data != home_of(request, chunk, place))
    keep_lent(segment, pending, payload, bytes);
  maybe_end(request);
}

// Copy a payload whose segment still waits: the rail needs its buffer back.
void Executor::keep_lent(const Segment& segment, const PendingPayload* pending,
                         const Payload& payload, std::size_t bytes) {
  for (PendingPayload* s = segment.first; s != nullptr; s = s->next) {
    if (s != pending || s->data != payload.data) continue;
    s->owned = uses_.memory.buffers().take(bytes);
    std::memcpy(s->owned, payload.data, bytes);
    s->data = s->owned;
  }
}

void Executor::granted(Request& request, Link& link, const wire::Header& header) {
  const int peer = request.group->rank_of(link);
  if (peer < 0) return;
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  flow.heard = true;
  if (has(header, wire::kFlagEager)) return credits_.answer(request, peer, header.offset);
  flow.granted = std::max(flow.granted, header.offset);
  if (std::exchange(flow.asks, false)) link.asks().over();
  link.unblock(request, peer);
}

void Executor::released(Request& request, const Link& link, const wire::Header& header) {
  const int peer = request.group->rank_of(link);
  const int index = request.program->local(header.chunk);
  if (peer < 0 || index < 0) return;
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  Chunk& chunk = request.chunks[static_cast<std::size_t>(index)];
  const std::size_t segment = segment_of(request, chunk, header);
  if (segment >= chunk.segments.size()) return;
  Segment& s = chunk.segments[segment];
  if (s.readers == 0 || flow.lent == 0) return;
  --flow.lent;
  if (--s.readers == 0) uses_.endings.release_slot(request, s);
  sent(request);
}

void Executor::advance(Request& request, std::uint32_t chunk, std::uint32_t segment) {
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

// Execute a step. Return false if it has to wait.
bool Executor::pass(Request& request, std::uint32_t chunk, std::uint32_t segment,
                    const Step& step) {
  Chunk& c = request.chunks[chunk];
  Segment& s = c.segments[segment];
  if (c.offloaded) {
    for (const auto& role : request.group->roles) {
      const Role::Pass passed = role->step(request, chunk, segment, step);
      if (passed != Role::Pass::kOthers) return passed == Role::Pass::kDone;
    }
  }
  switch (step.opcode) {
    case Opcode::kSend: {
      Link& link = *request.group->links[step.peer];
      ++request.open_sends;
      if (step.copied) ++s.uncopied;
      link.queue().push(SendItem{request.shared_from_this(), chunk, segment, &step});
      uses_.links.mark_dirty(link);
      return true;
    }
    case Opcode::kBuffer: {
      for (PendingPayload* pending = s.first; pending != nullptr; pending = pending->next) {
        if (pending->peer == step.peer && pending->chunk == step.chunk) return true;
      }
      return false;
    }
    case Opcode::kAdd:
    case Opcode::kCopy: {
      PendingPayload* pending = take_pending(s, step.peer);
      if (pending == nullptr) return false;
      consume(request, c, segment, pending, step);
      return true;
    }
    case Opcode::kReduceAll:
      if (s.uncopied > 0 || request.onset > 0) return false;
      reduce_all(request, chunk, segment);
      return true;
  }
  return false;
}

void Executor::copied(Request& request, std::uint32_t chunk, std::uint32_t segment) {
  if (request.finished() || --request.chunks[chunk].segments[segment].uncopied > 0) return;
  advance(request, chunk, segment);
  maybe_end(request);
}

void Executor::sent(Request& request) {
  if (request.finished()) return;
  --request.open_sends;
  maybe_end(request);
}

void Executor::maybe_end(Request& request) {
  if (request.open_segments > 0 || request.open_sends > 0 || request.finished()) return;
  if (request.last_divisor > 1) Offload::divide_last(request);
  uses_.endings.succeed(request);
}

}  // namespace slackline
