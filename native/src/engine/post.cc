// The conversion of a posted operation into a job, and its start.
#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <utility>

#include "clock.h"
#include "engine_impl.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
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
  program->append(receives ? Verb::kCopy : Verb::kSend, peer, 0, false);
  return program;
}

std::uint64_t sequence_key(int cls, std::uint32_t tag, std::uint32_t role) {
  return static_cast<std::uint64_t>(cls) << 56 | static_cast<std::uint64_t>(tag & 0xFFFFFF) << 32 |
         role;
}

}  // namespace

std::shared_ptr<Job> Engine::build(Group& group, const Operation& operation) {
  const bool p2p = operation.program == nullptr;
  auto job = std::make_shared<Job>();
  job->group = group.shared_from_this();
  job->program = p2p && !operation.any_source
                     ? point_to_point(group, operation.receives, operation.peer)
                     : operation.program;
  job->collective = p2p ? wire::Collective::kPointToPoint : operation.program->collective;
  if (operation.shares != nullptr && (p2p || !operation.program->splits))
    throw std::invalid_argument("shares are for a plan that cuts one buffer");
  if (operation.shares != nullptr && operation.shares->program)
    job->program = operation.shares->program;
  if (!p2p && (operation.program->ranks != group.size() || operation.program->rank != group.rank)) {
    throw std::invalid_argument("the program is for rank " +
                                std::to_string(operation.program->rank) + " of " +
                                std::to_string(operation.program->ranks) + ", the group has rank " +
                                std::to_string(group.rank) + " of " + std::to_string(group.size()));
  }
  job->dtype = operation.dtype;
  job->op = operation.op;
  job->item_size = wire::item_size(operation.dtype);
  if (job->item_size == 0)
    throw std::invalid_argument("unknown dtype code " +
                                std::to_string(static_cast<int>(operation.dtype)));
  if (reduces(job->collective) && !kernels::supported(operation.dtype, operation.op)) {
    throw std::invalid_argument("the reduction is not defined for this dtype");
  }
  job->wide = widens(*job);
  const int contributors = group.size() - (group.service ? 1 : 0);
  job->divisor = operation.op == wire::ReduceOp::kAvg ? contributors : 1;
  if (!p2p && operation.program->offloads && operation.count > 0 &&
      offloadable(group, operation.dtype, operation.op)) {
    job->offloaded = group.device != nullptr;
    if (!group.service) std::swap(job->divisor, job->last_divisor);
  }
  job->priority = operation.priority;
  job->total = operation.total_bytes;
  job->posted_ns = now_ns();
  job->deadline_ns = later(job->posted_ns, operation.timeout_ns);
  job->lanes.resize(static_cast<std::size_t>(group.size()));
  const int tagged = operation.tag >= 0 ? 1 : 0;
  const int cls = p2p ? 2 : operation.internal == 0 ? tagged : 1 + 2 * operation.internal + tagged;
  const auto tag = static_cast<std::uint32_t>(std::max(operation.tag, 0));
  const std::uint32_t role = !p2p                 ? kRoleCollective
                             : operation.receives ? role_receive(operation.peer)
                                                  : role_send(operation.peer);
  job->key =
      Key{static_cast<std::uint64_t>(cls) << 56 | static_cast<std::uint64_t>(tag & 0xFFFFFF) << 32,
          group.epoch, role};
  job->shares = operation.shares;
  if (job->shares && job->shares->failure)
    job->failure = job->shares->failure;
  else if (job->shares && !job->shares->known)
    job->undivided = std::make_shared<Operation>(operation);
  else if (!operation.any_source)
    lay_out(*job, operation);
  // The sequence number is taken last. An operation that fails for lack of memory must not use one
  // up, or the ranks would number later operations differently.
  if (operation.key != nullptr)
    job->key = *operation.key;
  else if (!operation.any_source)
    job->key.tag |= group.sequences[sequence_key(cls, tag, role)]++;
  return job;
}

// Return whether the job's partial sums travel as fp32.
bool Engine::widens(const Job& job) {
  return job.program && reduces(job.collective) && job.group->rank_order && half(job.dtype) &&
         job.program->adds;
}

// Divide an operation into chunks and segments. Throws std::bad_alloc when there is no memory for
// their description; nothing is kept then.
void Engine::lay_out(Job& job, const Operation& operation) try {
  const Program& program = *job.program;
  job.chunks.resize(program.chains.size());
  for (std::size_t i = 0; i < program.chains.size(); ++i) job.chunks[i].chain = &program.chains[i];
  const auto place = [&](int index, std::byte* source, std::byte* target, std::uint64_t count) {
    if (index >= 0) {
      Chunk& chunk = job.chunks[static_cast<std::size_t>(index)];
      chunk.source = source;
      chunk.target = chunk.partial = target;
      chunk.count = count;
    }
    const bool written = index >= 0 && job.chunks[static_cast<std::size_t>(index)].chain->writes;
    if (!written && source != nullptr && target != nullptr && source != target) {
      kernels::copy(target, source, count * job.item_size, count * job.item_size >= kStreamFrom);
    }
  };
  if (job.collective == wire::Collective::kPointToPoint) {
    place(0, operation.source, operation.target, operation.count);
  } else if (program.splits) {
    for (int c = 0; c < program.chunks(); ++c) {
      const Part part = part_of(job, operation.count, c);
      const auto at = [&](std::byte* base) {
        return base == nullptr ? nullptr : base + part.offset * job.item_size;
      };
      place(program.local(c), at(operation.source), at(operation.target), part.count);
    }
  } else {
    for (const ChunkMemory& memory : operation.chunks) {
      place(program.local(static_cast<int>(memory.chunk)), memory.source, memory.target,
            memory.count);
    }
  }
  const std::size_t unit = job.wide ? sizeof(float) : job.item_size;
  const std::size_t limit =
      job.group->all_shared ? options_.memory_segment_bytes : options_.wire_segment_bytes;
  for (Chunk& chunk : job.chunks) {
    std::size_t bytes = limit;
    if (program.forwards) {
      // Use smaller segments for a short chunk, so that several are in the pipeline, but not tiny
      // ones.
      bytes = std::clamp(std::bit_ceil(chunk.count * unit / program.pieces + 1),
                         std::min({kSmallestPipelinedSegment, program.longest_segment, limit}),
                         std::min(program.longest_segment, limit));
    }
    chunk.segment_count = std::max<std::size_t>(1, bytes / unit);
    chunk.segments.resize(
        std::max<std::size_t>(1, (chunk.count + chunk.segment_count - 1) / chunk.segment_count));
    job.open_segments += chunk.segments.size();
    const bool sends_own_wide =
        job.wide && !chunk.chain->steps.empty() && chunk.chain->steps.front().verb == Verb::kSend;
    const bool adds =
        std::ranges::any_of(chunk.chain->steps, [](const Step& s) { return s.verb == Verb::kAdd; });
    if (chunk.count == 0) continue;
    if (chunk.chain->writes && chunk.target == nullptr)
      chunk.target = chunk.partial = scratch(job, chunk.count * job.item_size);
    if (job.wide && (adds || sends_own_wide)) chunk.partial = scratch(job, chunk.count * unit);
    chunk.offloaded = job.offloaded;
    if (job.offloaded && !job.group->service)
      chunk.device_memory = room(job, chunk.count * job.item_size, "what its device adds");
    if (job.failure) return;
    if (sends_own_wide)
      kernels::widen(job.dtype, chunk.source, reinterpret_cast<float*>(chunk.partial), chunk.count);
  }
} catch (...) {
  for (std::byte* memory : std::exchange(job.scratch, {})) arena_.free(memory);
  for (Chunk& chunk : job.chunks) {
    if (chunk.device_memory != nullptr) arena_.free(std::exchange(chunk.device_memory, nullptr));
  }
  throw;
}

// Allocate memory for data that passes through this rank without being its result; the memory is
// freed with the job. Return null when the arena has no room: the job then has a failure and must
// not start.
std::byte* Engine::scratch(Job& job, std::size_t bytes) {
  std::byte* memory = room(job, bytes, "partial sums");
  if (memory != nullptr) job.scratch.push_back(memory);
  return memory;
}

// Allocate arena memory for the job. Return null when there is none: the job then has a failure.
std::byte* Engine::room(Job& job, std::size_t bytes, const char* what) {
  std::byte* memory = arena_.allocate(bytes);
  if (memory == nullptr) job.failure = no_room(job, bytes, what);
  return memory;
}

// Grant each peer on a wire the number of bytes of the operation that it may send.
void Engine::promise(Job& job) {
  std::vector<std::uint64_t> incoming(job.lanes.size(), 0);
  for (const Chunk& chunk : job.chunks) {
    for (const Step& step : chunk.chain->steps) {
      if (step.verb == Verb::kFold) continue;
      if (Link* link = job.group->links[step.peer]) link->want();
      if (step.verb == Verb::kSend) continue;
      incoming[step.peer] +=
          chunk.count * (step.verb == Verb::kAdd && job.wide ? sizeof(float) : job.item_size);
      if (step.verb == Verb::kHold) job.lanes[step.peer].windowed = true;
    }
  }
  const std::uint64_t eager = eager_bytes(job);
  for (std::size_t peer = 0; peer < incoming.size(); ++peer) {
    job.lanes[peer].incoming = incoming[peer];
    Link* link = job.group->links[peer];
    if (link == nullptr || link->shared_memory() || incoming[peer] <= eager) continue;
    // Grant everything if the onset threshold exceeds the segments that fit into the smallest
    // window. The threshold would otherwise never be reached.
    const bool held_back = job.gated && job.group->service->onset > kGatedSegments;
    const std::uint64_t window = std::max(window_of(job, static_cast<int>(peer)), eager);
    job.lanes[peer].promised = job.lanes[peer].windowed && !held_back ? window : kUnlimited;
    link->grant(job, static_cast<int>(peer));
  }
}

// Return an untagged collective operation that was posted on the group before the barrier and has
// not ended, or null. A barrier begins after them, so that the end of a barrier on all ranks means
// the end of everything that they posted before, as in torch's gloo backend. Tagged operations and
// those of the library itself are no part of that order.
const Job* Engine::open_before(const Job& barrier) const {
  if (barrier.collective != wire::Collective::kBarrier || barrier.key.tag >> 32 != 0)
    return nullptr;
  const auto earlier = [&](const std::shared_ptr<Job>& job) {
    return job->group == barrier.group && job->key.role == kRoleCollective &&
           job->key.tag < barrier.key.tag && !job->finished();
  };
  for (const auto& [key, job] : jobs_) {
    if (earlier(job)) return job.get();
  }
  for (const auto& job : to_start_) {
    if (earlier(job)) return job.get();
  }
  for (const auto& job : held_) {
    if (earlier(job)) return job.get();
  }
  return nullptr;
}

// Start the barriers of the group whose earlier operations have ended.
void Engine::start_barriers(const Group& group) {
  std::erase_if(held_, [&](const std::shared_ptr<Job>& job) {
    if (job->group.get() != &group || job->undivided || open_before(*job) != nullptr) return false;
    to_start_.push_back(job);
    return true;
  });
}

void Engine::start(const std::shared_ptr<Job>& job) {
  if (job->finished()) return;
  if (operation_log.enabled() && job->started_ns == 0) job->started_ns = now_ns();
  if (job->group->broken) {
    Failure failure = job->group->broken;
    fail(*job, std::move(failure), false);
    return;
  }
  if (job->failure) {
    fail(*job, std::exchange(job->failure, {}), true);
    return;
  }
  for (const auto& [rank, reason] : job->group->left) {
    if (!sends_to(*job, rank)) continue;
    fail(*job, Failure(reason), true);
    return;
  }
  jobs_[job->key] = job;
  job->active = true;
  if (const auto it = aborted_.find(job->key); it != aborted_.end()) {
    Failure failure = it->second;
    fail(*job, std::move(failure), sparse(*job->group));
    return;
  }
  if (job->group->fallback) begin_keeping(*job);
  promise(*job);
  std::size_t longest = 0;
  for (const Chunk& chunk : job->chunks) longest = std::max(longest, chunk.segments.size());
  // Start the first segment of every chunk before the second segment of any, so that all chunks
  // progress together.
  for (std::size_t segment = 0; segment < longest; ++segment) {
    for (std::size_t chunk = 0; chunk < job->chunks.size(); ++chunk) {
      if (segment < job->chunks[chunk].segments.size())
        advance(*job, static_cast<std::uint32_t>(chunk), static_cast<std::uint32_t>(segment));
    }
  }
  if (const auto it = unexpected_.find(job->key); it != unexpected_.end()) {
    std::deque<Unexpected> waiting = std::move(it->second);
    unexpected_.erase(it);
    for (Unexpected& u : waiting) {
      if (job->finished()) {
        discard(u);
        continue;
      }
      u.link->let_go();
      const auto length = static_cast<std::uint32_t>(u.payload.size());
      if (u.header.kind == static_cast<std::uint8_t>(wire::FrameKind::kGrant)) {
        on_grant(*u.link, u.header);
      } else {
        accept(*job, *u.link, u.header, Payload{u.payload.data(), nullptr, length});
      }
    }
  }
  for (const auto& [rank, reason] : job->group->left) {
    if (job->finished()) return;
    if (needs(*job, rank)) fail(*job, Failure(reason), true);
  }
  maybe_finish(*job);
}

void Engine::start_any_source(const std::shared_ptr<Job>& job) {
  if (job->group->broken) {
    Failure failure = job->group->broken;
    fail(*job, std::move(failure), false);
    return;
  }
  for (int peer = 0; peer < job->group->size(); ++peer) {
    if (peer == job->group->rank) continue;
    const std::uint32_t next =
        job->group->sequences[sequence_key(2, job->user_tag(), role_receive(peer))];
    if (unexpected_.contains(Key{job->key.tag | next, job->group->epoch, role_receive(peer)})) {
      bind_any_source(job, peer);
      return;
    }
  }
  if (job->group->all_left()) {
    fail(*job, Failure(job->group->left.begin()->second), false);
    return;
  }
  any_source_.push_back(job);
}

void Engine::bind_any_source(const std::shared_ptr<Job>& job, int peer) {
  job->any_source = peer;
  job->program = point_to_point(*job->group, true, peer);
  job->key.role = role_receive(peer);
  job->key.tag |= job->group->sequences[sequence_key(2, job->user_tag(), role_receive(peer))]++;
  Operation operation;
  operation.target = job->any_target;
  operation.count = job->any_count;
  lay_out(*job, operation);
  start(job);
}

}  // namespace slackline
