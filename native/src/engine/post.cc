// The conversion of a posted operation into a request, and its start.
#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "../base/clock.h"
#include "engine_impl.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

constexpr std::size_t kSmallestPipelinedSegment = 16u << 10;
constexpr std::uint64_t kStreamFrom = 4u << 20;

bool reduces(wire::Collective c) {
  return c == wire::Collective::kAllReduce || c == wire::Collective::kReduceScatter ||
         c == wire::Collective::kReduce;
}

bool half(wire::DType dtype) {
  return dtype == wire::DType::kFloat16 || dtype == wire::DType::kBfloat16;
}

std::shared_ptr<const Program> point_to_point(const Group& group, bool receives, int peer) {
  auto program = std::make_shared<Program>(wire::Collective::kPointToPoint, std::uint8_t{0},
                                           group.size(), group.rank, 1, false, false, false);
  program->append(receives ? Opcode::kCopy : Opcode::kSend, peer, 0, false);
  return program;
}

std::uint64_t sequence_key(int cls, std::uint32_t tag, std::uint32_t role) {
  return static_cast<std::uint64_t>(cls) << 56 | static_cast<std::uint64_t>(tag & 0xFFFFFF) << 32 |
         role;
}

}  // namespace

std::shared_ptr<Request> Engine::build(Group& group, const Operation& operation) {
  const bool p2p = operation.program == nullptr;
  auto request = std::make_shared<Request>();
  request->group = group.shared_from_this();
  request->program = p2p && !operation.any_source
                         ? point_to_point(group, operation.receives, operation.peer)
                         : operation.program;
  request->collective = p2p ? wire::Collective::kPointToPoint : operation.program->collective;
  if (operation.shares != nullptr && (p2p || !operation.program->splits))
    throw std::invalid_argument("shares need a plan whose chunks are parts of one buffer");
  if (operation.shares != nullptr && operation.shares->program)
    request->program = operation.shares->program;
  if (!p2p && (operation.program->ranks != group.size() || operation.program->rank != group.rank)) {
    throw std::invalid_argument("the program is for rank " +
                                std::to_string(operation.program->rank) + " of " +
                                std::to_string(operation.program->ranks) + ", the group has rank " +
                                std::to_string(group.rank) + " of " + std::to_string(group.size()));
  }
  request->dtype = operation.dtype;
  request->op = operation.op;
  request->item_size = wire::item_size(operation.dtype);
  if (request->item_size == 0)
    throw std::invalid_argument("unknown dtype code " +
                                std::to_string(static_cast<int>(operation.dtype)));
  if (reduces(request->collective) && !kernels::supported(operation.dtype, operation.op)) {
    throw std::invalid_argument("the reduction is not defined for this dtype");
  }
  request->wide = widens(*request);
  const int contributors = group.size() - (group.aggregation ? 1 : 0);
  request->divisor = operation.op == wire::ReduceOp::kAvg ? contributors : 1;
  if (!p2p && operation.program->offloads && operation.count > 0 &&
      Offload::adds(group, operation.dtype, operation.op)) {
    request->offloaded = group.device != nullptr;
    if (!group.aggregation) std::swap(request->divisor, request->last_divisor);
  }
  request->priority = operation.priority;
  request->order = ++posted_;
  request->total = operation.total_bytes;
  request->posted_ns = now_ns();
  request->deadline_ns = later(request->posted_ns, operation.timeout_ns);
  request->flows.resize(static_cast<std::size_t>(group.size()));
  const auto identity = static_cast<std::uint64_t>(std::max<std::int64_t>(operation.tag, 0));
  const int tagged = operation.tag >= 0 ? 1 : 0;
  const int cls = p2p ? 2 : operation.internal == 0 ? tagged : 1 + 2 * operation.internal + tagged;
  const auto tag = static_cast<std::uint32_t>(identity & 0xFFFFFF);
  const std::uint32_t role = !p2p                 ? kRoleCollective
                             : operation.receives ? role_receive(operation.peer)
                                                  : role_send(operation.peer);
  request->key = Key{static_cast<std::uint64_t>(cls) << 56 | static_cast<std::uint64_t>(tag) << 32,
                     group.epoch, role};
  request->shares = operation.shares;
  if (request->shares && request->shares->failure)
    request->failure = request->shares->failure;
  else if (request->shares && !request->shares->known)
    request->undivided = std::make_shared<Operation>(operation);
  else if (!operation.any_source)
    lay_out(*request, operation);
  // The sequence number is taken last. An operation that fails for lack of memory must not use one
  // up, or the ranks would number later operations differently.
  if (operation.key != nullptr)
    request->key = *operation.key;
  else if (in_callback(identity))
    request->key.tag = identity;
  else if (!operation.any_source)
    request->key.tag |= group.sequences[sequence_key(cls, tag, role)]++;
  return request;
}

// Return whether the request's partial sums are sent as fp32.
bool Engine::widens(const Request& request) {
  return request.program && reduces(request.collective) && request.group->rank_order &&
         half(request.dtype) && request.program->adds;
}

// Divide an operation into chunks and segments. Throws std::bad_alloc, and keeps no part of the
// result, when there is no memory for their description.
void Engine::lay_out(Request& request, const Operation& operation) try {
  const Program& program = *request.program;
  request.chunks.resize(program.step_lists.size());
  for (std::size_t i = 0; i < program.step_lists.size(); ++i)
    request.chunks[i].step_list = &program.step_lists[i];
  const auto place = [&](int index, std::byte* source, std::byte* target, std::uint64_t count) {
    if (index >= 0) {
      Chunk& chunk = request.chunks[static_cast<std::size_t>(index)];
      chunk.source = source;
      chunk.target = chunk.partial = target;
      chunk.count = count;
    }
    const bool written =
        index >= 0 && request.chunks[static_cast<std::size_t>(index)].step_list->writes;
    if (!written && source != nullptr && target != nullptr && source != target) {
      kernels::copy(target, source, count * request.item_size,
                    count * request.item_size >= kStreamFrom);
    }
  };
  if (request.collective == wire::Collective::kPointToPoint) {
    place(0, operation.source, operation.target, operation.count);
  } else if (program.splits) {
    for (int c = 0; c < program.chunks(); ++c) {
      const Part part = part_of(request, operation.count, c);
      const auto at = [&](std::byte* base) {
        return base == nullptr ? nullptr : base + part.offset * request.item_size;
      };
      place(program.local(c), at(operation.source), at(operation.target), part.count);
    }
  } else {
    for (const ChunkMemory& memory : operation.chunks) {
      place(program.local(static_cast<int>(memory.chunk)), memory.source, memory.target,
            memory.count);
    }
  }
  const std::size_t unit = request.wide ? sizeof(float) : request.item_size;
  const std::size_t limit =
      request.group->all_shared ? options_.memory_segment_bytes : options_.wire_segment_bytes;
  for (Chunk& chunk : request.chunks) {
    std::size_t bytes = limit;
    if (program.forwards) {
      // Use smaller segments for a short chunk, so that several segments are in flight at once, but
      // avoid tiny segments.
      bytes = std::clamp(std::bit_ceil(chunk.count * unit / program.pieces + 1),
                         std::min({kSmallestPipelinedSegment, program.longest_segment, limit}),
                         std::min(program.longest_segment, limit));
    }
    chunk.segment_count = std::max<std::size_t>(1, bytes / unit);
    chunk.segments.resize(
        std::max<std::size_t>(1, (chunk.count + chunk.segment_count - 1) / chunk.segment_count));
    request.open_segments += chunk.segments.size();
    const bool sends_own_wide = request.wide && !chunk.step_list->steps.empty() &&
                                chunk.step_list->steps.front().opcode == Opcode::kSend;
    const bool adds = std::ranges::any_of(chunk.step_list->steps,
                                          [](const Step& s) { return s.opcode == Opcode::kAdd; });
    if (chunk.count == 0) continue;
    if (chunk.step_list->writes && chunk.target == nullptr)
      chunk.target = chunk.partial = scratch(request, chunk.count * request.item_size);
    if (request.wide && (adds || sends_own_wide))
      chunk.partial = scratch(request, chunk.count * unit);
    chunk.offloaded = request.offloaded;
    if (request.offloaded && !request.group->aggregation)
      chunk.device_memory = room(request, chunk.count * request.item_size, "its device's data");
    if (request.failure) return;
    if (sends_own_wide)
      kernels::widen(request.dtype, chunk.source, reinterpret_cast<float*>(chunk.partial),
                     chunk.count);
  }
} catch (...) {
  for (std::byte* memory : std::exchange(request.scratch, {})) arena_.free(memory);
  for (Chunk& chunk : request.chunks) {
    if (chunk.device_memory != nullptr) arena_.free(std::exchange(chunk.device_memory, nullptr));
  }
  throw;
}

// Allocate memory for data that passes through this rank without being its result; the memory is
// freed with the request. Return null when the arena has no room: the request then has a failure
// and must not start.
std::byte* Engine::scratch(Request& request, std::size_t bytes) {
  std::byte* memory = room(request, bytes, "partial sums");
  if (memory != nullptr) request.scratch.push_back(memory);
  return memory;
}

// Allocate arena memory for the request. Return null when the arena has no room: the request then
// has a failure.
std::byte* Engine::room(Request& request, std::size_t bytes, const char* what) {
  std::byte* memory = allocate_room(bytes);
  if (memory == nullptr) request.failure = no_room(request, bytes, what);
  return memory;
}

// Grant each peer on a wire the number of bytes of the operation that it may send.
void Engine::promise(Request& request) {
  std::vector<std::uint64_t> incoming(request.flows.size(), 0);
  for (const Chunk& chunk : request.chunks) {
    for (const Step& step : chunk.step_list->steps) {
      if (step.opcode == Opcode::kReduceAll) continue;
      if (Link* link = request.group->links[step.peer]) link->want();
      if (step.opcode == Opcode::kSend) continue;
      const std::uint64_t bytes =
          chunk.count *
          (step.opcode == Opcode::kAdd && request.wide ? sizeof(float) : request.item_size);
      incoming[step.peer] += bytes;
      if (step.opcode == Opcode::kBuffer) request.flows[step.peer].buffered += bytes;
    }
  }
  const std::uint64_t eager = eager_bytes(request);
  for (std::size_t peer = 0; peer < incoming.size(); ++peer) {
    request.flows[peer].incoming = incoming[peer];
    Link* link = request.group->links[peer];
    if (link == nullptr || link->shared_memory() || incoming[peer] <= eager) continue;
    // Grant everything if the onset threshold exceeds the segments that fit into the smallest
    // window. The threshold would otherwise never be reached.
    const bool held_back = request.gated && request.group->aggregation->onset() > kGatedSegments;
    request.flows[peer].promised =
        held_back ? kUnlimited : std::max(promise_of(request, static_cast<int>(peer), 0), eager);
    link->grant(request, static_cast<int>(peer));
  }
}

void Engine::start(const std::shared_ptr<Request>& request) {
  if (request->finished()) return;
  if (operation_log.enabled() && request->started_ns == 0) request->started_ns = now_ns();
  request->refused = true;
  if (request->group->broken && !may_outlive_loss(*request)) {
    Failure failure = request->group->broken;
    // Members that have had all data of a lost member still wait for this rank: tell them.
    const bool loss = !request->group->lost.empty() || !request->group->told_losses.empty();
    fail(*request, std::move(failure), loss);
    return;
  }
  if (request->failure) {
    fail(*request, std::exchange(request->failure, {}), true);
    return;
  }
  const Failure* hindered = nullptr;
  request->group->each_absent([&](int rank, const Failure& reason) {
    if (hindered == nullptr && sends_to(*request, rank)) hindered = &reason;
  });
  if (hindered != nullptr) return fail(*request, Failure(*hindered), true);
  operations_.start(request);
  if (const Failure* aborted = aborted_.find(request->key)) {
    fail(*request, Failure(*aborted), sparse(*request->group));
    return;
  }
  request->refused = false;
  if (request->group->fallback) begin_replay_copy(*request);
  promise(*request);
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
  if (unexpected_.find(request->key) != nullptr) {
    for (const Unexpected& frame : unexpected_.take(request->key)) {
      if (request->finished()) {
        UnexpectedFrames::drop(frame);
        continue;
      }
      UnexpectedFrames::used(frame);
      const auto length = static_cast<std::uint32_t>(frame.payload.size());
      if (frame.header.kind == static_cast<std::uint8_t>(wire::FrameKind::kGrant)) {
        on_grant(*frame.link, frame.header);
      } else {
        accept(*request, *frame.link, frame.header, Payload{frame.payload.data(), nullptr, length});
      }
    }
  }
  request->group->each_absent([&](int rank, const Failure& reason) {
    if (!request->finished() && needs(*request, rank)) fail(*request, Failure(reason), true);
  });
  maybe_finish(*request);
}

void Engine::start_any_source(const std::shared_ptr<Request>& request) {
  const bool aborted = request->group->broken && request->group->lost.empty();
  for (int peer = aborted ? request->group->size() : 0; peer < request->group->size(); ++peer) {
    if (peer == request->group->rank) continue;
    const std::uint32_t next =
        request->group->sequences[sequence_key(2, request->user_tag(), role_receive(peer))];
    const Key key{request->key.tag | next, request->group->epoch, role_receive(peer)};
    if (unexpected_.find(key) != nullptr) {
      bind_any_source(request, peer);
      return;
    }
  }
  if (request->group->broken) {
    Failure failure = request->group->broken;
    fail(*request, std::move(failure), false);
    return;
  }
  if (request->group->all_left()) {
    fail(*request, Failure(request->group->left.begin()->second), false);
    return;
  }
  operations_.wait_for_sender(request);
}

void Engine::bind_any_source(const std::shared_ptr<Request>& request, int peer) {
  request->any_source = peer;
  request->program = point_to_point(*request->group, true, peer);
  request->key.role = role_receive(peer);
  request->key.tag |=
      request->group->sequences[sequence_key(2, request->user_tag(), role_receive(peer))]++;
  Operation operation;
  operation.target = request->any_target;
  operation.count = request->any_count;
  lay_out(*request, operation);
  start(request);
}

}  // namespace slackline
