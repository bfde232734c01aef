#include "builder.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "describe.h"
#include "offload.h"
#include "segments.h"
#include "slackline/kernels.h"
#include "split.h"

namespace slackline {
namespace {

constexpr std::size_t kSmallestPipelinedSegment = 16u << 10;
constexpr std::uint64_t kStreamCopiesFrom = 4u << 20;

bool reduces(wire::Collective c) {
  return c == wire::Collective::kAllReduce || c == wire::Collective::kReduceScatter ||
         c == wire::Collective::kReduce;
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

// Return the number that the next receive of the request's tag from `peer` gets.
std::uint32_t& next_from(const Request& request, int peer) {
  return request.group->sequences[sequence_key(2, request.user_tag(), role_receive(peer))];
}

void check(const Group& group, const Operation& operation) {
  const bool p2p = operation.program == nullptr;
  if (operation.shares != nullptr && (p2p || !operation.program->splits))
    throw std::invalid_argument("shares need a plan whose chunks are parts of one buffer");
  if (!p2p && (operation.program->ranks != group.size() || operation.program->rank != group.rank)) {
    throw std::invalid_argument("the program is for rank " +
                                std::to_string(operation.program->rank) + " of " +
                                std::to_string(operation.program->ranks) + ", the group has rank " +
                                std::to_string(group.rank) + " of " + std::to_string(group.size()));
  }
  if (wire::item_size(operation.dtype) == 0)
    throw std::invalid_argument("unknown dtype code " +
                                std::to_string(static_cast<int>(operation.dtype)));
  if (!p2p && reduces(operation.program->collective) &&
      !kernels::supported(operation.dtype, operation.op)) {
    throw std::invalid_argument("the reduction is not defined for this dtype");
  }
}

// Return the offset and the length of chunk number `chunk` in the operation's buffer.
Part part_of(const Request& request, std::uint64_t count, int chunk) {
  if (request.shares != nullptr && !request.shares->weights.empty())
    return split(count, request.shares->weights, request.item_size, chunk);
  return split(count, request.program->chunks(), request.item_size, chunk);
}

// Copy the data of a chunk that no step of this rank stores to its target.
void settle(const Request& request, const Chunk* chunk, std::byte* source, std::byte* target,
            std::uint64_t count) {
  const bool written = chunk != nullptr && chunk->step_list->writes;
  if (written || source == nullptr || target == nullptr || source == target) return;
  const std::size_t bytes = count * request.item_size;
  kernels::copy(target, source, bytes, bytes >= kStreamCopiesFrom);
}

}  // namespace

std::shared_ptr<Request> Builder::build(Group& group, const Operation& operation) {
  check(group, operation);
  const bool p2p = operation.program == nullptr;
  auto request = std::make_shared<Request>();
  request->group = group.shared_from_this();
  request->program = p2p && !operation.any_source
                         ? point_to_point(group, operation.receives, operation.peer)
                         : operation.program;
  request->collective = p2p ? wire::Collective::kPointToPoint : operation.program->collective;
  if (operation.shares != nullptr && operation.shares->program)
    request->program = operation.shares->program;
  request->dtype = operation.dtype;
  request->op = operation.op;
  request->item_size = wire::item_size(operation.dtype);
  request->wide = widens(*request);
  const Tree* tree = p2p || !operation.program->tree() ? nullptr : &*operation.program->tree();
  if (tree != nullptr) request->digest = operation.digest != 0 ? operation.digest : tree->digest;
  if (operation.op == wire::ReduceOp::kAvg && tree == nullptr)
    request->divisor = group.contributors();
  else if (operation.op == wire::ReduceOp::kAvg && group.worker != nullptr)
    request->last_divisor = tree->leaves;  // the aggregator does not know how many there are
  else if (operation.op == wire::ReduceOp::kAvg && !group.aggregator)
    request->divisor = tree->leaves;
  if (!p2p && operation.program->offloads && operation.count > 0 &&
      Offload::adds(group, operation.dtype, operation.op)) {
    request->offloaded = group.device != nullptr;
    if (!group.aggregator) std::swap(request->divisor, request->last_divisor);
  }
  request->aggregated = group.aggregator;
  request->priority = operation.priority;
  request->order = ++posted_;
  request->total = operation.total_bytes;
  request->posted_ns = clock_.now();
  request->deadline_ns = later(request->posted_ns, operation.timeout_ns);
  request->flows.resize(static_cast<std::size_t>(group.size()));
  if (operation.any_source) {
    request->any = true;
    request->any_target = operation.target;
    request->any_count = operation.count;
  }
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
    divide(*request, operation);
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

bool Builder::widens(const Request& request) {
  return request.program && reduces(request.collective) && request.group->rank_order &&
         kernels::half(request.dtype) && request.program->adds;
}

void Builder::divide(Request& request, const Operation& operation) try {
  const Program& program = *request.program;
  request.chunks.resize(program.step_lists.size());
  for (std::size_t i = 0; i < program.step_lists.size(); ++i)
    request.chunks[i].step_list = &program.step_lists[i];
  place(request, operation);
  const std::size_t unit = request.wide ? sizeof(float) : request.item_size;
  for (Chunk& chunk : request.chunks) {
    cut(request, chunk);
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
    if (request.offloaded && !request.group->aggregator)
      chunk.device_memory = room(request, chunk.count * request.item_size, "its device's data");
    if (request.failure) return;
    if (sends_own_wide)
      kernels::widen(request.dtype, chunk.source, reinterpret_cast<float*>(chunk.partial),
                     chunk.count);
  }
} catch (...) {
  for (std::byte* memory : std::exchange(request.scratch, {})) memory_.arena().free(memory);
  for (Chunk& chunk : request.chunks) {
    if (chunk.device_memory != nullptr)
      memory_.arena().free(std::exchange(chunk.device_memory, nullptr));
  }
  throw;
}

// Give each chunk its part of the operation's memory.
void Builder::place(Request& request, const Operation& operation) const {
  const auto give = [&](int index, std::byte* source, std::byte* target, std::uint64_t count) {
    Chunk* chunk = index < 0 ? nullptr : &request.chunks[static_cast<std::size_t>(index)];
    if (chunk != nullptr) {
      chunk->source = source;
      chunk->target = chunk->partial = target;
      chunk->count = count;
    }
    settle(request, chunk, source, target, count);
  };
  const Program& program = *request.program;
  if (request.collective == wire::Collective::kPointToPoint) {
    give(0, operation.source, operation.target, operation.count);
  } else if (program.splits) {
    for (int c = 0; c < program.chunks(); ++c) {
      const Part part = part_of(request, operation.count, c);
      const auto at = [&](std::byte* base) {
        return base == nullptr ? nullptr : base + part.offset * request.item_size;
      };
      give(program.local(c), at(operation.source), at(operation.target), part.count);
    }
  } else {
    for (const ChunkMemory& memory : operation.chunks) {
      give(program.local(static_cast<int>(memory.chunk)), memory.source, memory.target,
           memory.count);
    }
  }
}

// Divide a chunk into segments.
void Builder::cut(const Request& request, Chunk& chunk) const {
  const Program& program = *request.program;
  const std::size_t unit = request.wide ? sizeof(float) : request.item_size;
  const std::size_t limit =
      request.group->all_shared ? options_.memory_segment_bytes : options_.wire_segment_bytes;
  std::size_t bytes = limit;
  if (program.apart()) {
    // A segment is reduced when that segment of every node has come, so the window of one peer must
    // have room for several.
    bytes = std::max(unit, limit * kWindowSegments / (2 * kernels::kMostWaiting));
  } else if (program.forwards) {
    // Use smaller segments for a short chunk, so that several segments are in flight at once, but
    // avoid tiny segments.
    bytes = std::clamp(std::bit_ceil(chunk.count * unit / program.pieces + 1),
                       std::min({kSmallestPipelinedSegment, program.longest_segment, limit}),
                       std::min(program.longest_segment, limit));
  }
  chunk.segment_count = std::max<std::size_t>(1, bytes / unit);
  chunk.segments.resize(
      std::max<std::size_t>(1, (chunk.count + chunk.segment_count - 1) / chunk.segment_count));
}

// Allocate memory for data that passes through this rank without being its result; the memory is
// freed with the request. Return null when the arena has no room: the request then has a failure.
std::byte* Builder::scratch(Request& request, std::size_t bytes) {
  std::byte* memory = room(request, bytes, "partial sums");
  if (memory != nullptr) request.scratch.push_back(memory);
  return memory;
}

std::byte* Builder::room(Request& request, std::size_t bytes, const char* what) {
  std::byte* memory = memory_.allocate(bytes);
  if (memory == nullptr) request.failure = no_room(request, memory_, bytes, what);
  return memory;
}

Key Builder::key_if_from(const Request& request, int peer) {
  return Key{request.key.tag | next_from(request, peer), request.group->epoch, role_receive(peer)};
}

void Builder::bind(Request& request, int peer) {
  request.any_source = peer;
  request.program = point_to_point(*request.group, true, peer);
  request.key.role = role_receive(peer);
  request.key.tag |= next_from(request, peer)++;
  Operation operation;
  operation.target = request.any_target;
  operation.count = request.any_count;
  divide(request, operation);
}

}  // namespace slackline
