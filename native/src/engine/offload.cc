#include "offload.h"

#include <cstring>
#include <set>
#include <stdexcept>
#include <vector>

#include "../base/renew.h"
#include "../base/wait.h"
#include "headers.h"
#include "segments.h"
#include "slackline/crc32c.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

void divide(const Request& request, std::byte* values, std::size_t count, int divisor) {
  const void* source = values;
  void* target = values;
  kernels::reduce(request.dtype, wire::ReduceOp::kAvg, &source, 1, &target, 1, count, divisor,
                  false);
}

[[noreturn]] void refuse(const std::string& what, const wire::Header& header) {
  throw std::invalid_argument(what + ": tag " + std::to_string(header.tag) + " offset " +
                              std::to_string(header.offset) + " length " +
                              std::to_string(header.length));
}

}  // namespace

// Devices only add. For an average the engine divides the sum of a device; this is allowed only for
// types for which the result is bit-identical to the engine's own average. For half types a device
// keeps fp32 sums and rounds once, as the engine does in a group that adds in rank order; in other
// groups the engine rounds differently.
bool Offload::adds(const Group& group, wire::DType dtype, wire::ReduceOp op) {
  if (op == wire::ReduceOp::kAvg) return dtype == wire::DType::kFloat32;
  if (kernels::half(dtype) && !group.rank_order) return false;
  return op == wire::ReduceOp::kSum &&
         (dtype == wire::DType::kFloat32 || dtype == wire::DType::kInt32 || kernels::half(dtype));
}

// In a ring, no device knows of a chunk until the first device at or after the chunk's starting
// rank has begun to process it, because the chunk is announced as late as possible.
void Offload::announce(Request& request, Chunk& chunk) {
  if (std::exchange(chunk.announced, true)) return;
  std::memcpy(chunk.device_memory, chunk.source, chunk.count * request.item_size);
  ++request.open_sends;  // until the device has finished
  work_.posts.push_back(
      DevicePost{DeviceKey{request.key.tag, chunk.step_list->chunk}, chunk.step_list->start,
                 request.dtype, chunk.count * request.item_size,
                 chunk.segment_count * request.item_size, request.priority, chunk.device_memory});
  ready_.notify_one();
}

void Offload::hand(const Request& request, const Chunk& chunk, std::size_t segment,
                   const PendingPayload& payload, bool partial) {
  wire::Header header = header_for(request, wire::FrameKind::kData);
  header.op = static_cast<std::uint8_t>(static_cast<unsigned>(request.collective) << 4 |
                                        static_cast<unsigned>(wire::ReduceOp::kSum));
  header.source = payload.peer;
  header.chunk = chunk.step_list->chunk;
  header.offset = segment * chunk.segment_count * request.item_size;
  header.total = chunk.count * request.item_size;
  header.length = payload.length;
  if (partial) header.flags |= wire::kFlagPartial;
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
  DeviceFrame frame{payload.peer, std::vector<std::byte>(sizeof header + payload.length)};
  std::memcpy(frame.bytes.data(), &header, sizeof header);
  if (payload.length > 0)
    std::memcpy(frame.bytes.data() + sizeof header, payload.data, payload.length);
  work_.frames.push_back(std::move(frame));
  ready_.notify_one();
  ++counters_.frames_taken;
}

void Offload::withdraw(Request& request) {
  const auto of = [&](const DeviceFrame& frame) {
    wire::Header header;
    std::memcpy(&header, frame.bytes.data(), sizeof header);
    return header.tag == request.key.tag;
  };
  std::erase_if(work_.frames, of);
  const auto posted = [&](const DevicePost& post) { return post.key.tag == request.key.tag; };
  std::set<std::uint32_t> not_taken;
  for (const DevicePost& post : work_.posts) {
    if (posted(post)) not_taken.insert(post.key.chunk);
  }
  std::erase_if(work_.posts, posted);
  for (Chunk& chunk : request.chunks) {
    const DeviceKey key{request.key.tag, chunk.step_list->chunk};
    const bool done = chunk.device_memory == nullptr;
    if (!chunk.announced || done || gone_ || not_taken.contains(key.chunk)) continue;
    held_.emplace(key, std::exchange(chunk.device_memory, nullptr));
    work_.withdrawn.push_back(key);
    ready_.notify_one();
  }
}

void Offload::close() {
  closed_ = true;
  work_ = {};
  ready_.notify_all();
}

std::optional<DeviceWork> Offload::next(std::unique_lock<std::mutex>& lock, const bool& ended) {
  wait_on(ready_, lock, [&] { return !work_.empty() || closed_ || ended; });
  if (closed_ || ended) return std::nullopt;
  return std::exchange(work_, {});
}

void Offload::release(std::span<const DeviceKey> keys) {
  for (const DeviceKey& key : keys) {
    if (const auto held = held_.extract(key)) arena_.free(held.mapped());
  }
}

void Offload::device_gone() {
  gone_ = true;
  for (const auto& [key, memory] : held_) arena_.free(memory);
  held_.clear();
}

void Offload::leave_to_parent() { renew(ready_); }

wire::Header Offload::header_of(std::span<const std::byte> frame) {
  wire::Header header{};
  if (frame.size() >= sizeof header) std::memcpy(&header, frame.data(), sizeof header);
  if (frame.size() != sizeof header + header.length)
    refuse(
        "a frame of " + std::to_string(frame.size()) + " bytes is not as long as its header states",
        header);
  return header;
}

Offload::Place Offload::store(Request& request, std::span<const std::byte> frame) {
  const wire::Header header = header_of(frame);
  const int index = request.program->local(header.chunk);
  if (index < 0)
    refuse("a frame of chunk " + std::to_string(header.chunk) + ", which the plan does not have",
           header);
  Chunk& chunk = request.chunks[static_cast<std::size_t>(index)];
  const auto& steps = chunk.step_list->steps;
  const std::size_t frame_bytes = chunk.segment_count * request.item_size;
  const std::size_t segment = header.offset / frame_bytes;
  if (segment >= chunk.segments.size() || header.offset % frame_bytes != 0)
    refuse("a frame begins where no segment does", header);
  Segment& s = chunk.segments[segment];
  if (!s.handed || s.answered) refuse("a frame arrived that no step waits for", header);
  const Step& step = steps[s.position];
  const bool sent = step.opcode == Opcode::kSend || (s.position + 1u < steps.size() &&
                                                     steps[s.position + 1].opcode == Opcode::kSend);
  if (!sent) refuse("a frame arrived that the plan sends to no rank", header);
  const bool partial = step.opcode == Opcode::kSend || (step.opcode == Opcode::kAdd && !step.last);
  const std::size_t unit = partial && request.wide ? sizeof(float) : request.item_size;
  const std::size_t elements = elements_in(chunk, segment);
  if (header.length != elements * unit || partial != ((header.flags & wire::kFlagPartial) != 0))
    refuse("a frame's length or flags do not match its step", header);
  std::byte* to = (partial ? chunk.partial : chunk.target) + segment * chunk.segment_count * unit;
  std::memcpy(to, frame.data() + sizeof header, header.length);
  if (request.group->aggregator && request.divisor > 1)
    divide(request, to, elements, request.divisor);
  ++counters_.frames_given;
  s.answered = true;
  return {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(segment)};
}

std::uint32_t Offload::completed(const Request& request, const DeviceKey& key) {
  const int index = request.program->local(static_cast<int>(key.chunk));
  if (index < 0 || request.chunks[static_cast<std::size_t>(index)].device_memory == nullptr)
    throw std::invalid_argument("the device completed a chunk that it was not given: tag " +
                                std::to_string(key.tag) + " chunk " + std::to_string(key.chunk));
  return static_cast<std::uint32_t>(index);
}

bool Offload::store_completed(const Request& request, Chunk& chunk, std::size_t segment) {
  const auto& steps = chunk.step_list->steps;
  Segment& s = chunk.segments[segment];
  const std::size_t first = segment * chunk.segment_count * request.item_size;
  const std::size_t bytes = elements_in(chunk, segment) * request.item_size;
  const auto refuse_result = [&](const char* what) {
    throw std::invalid_argument(what + std::string(": tag ") + std::to_string(request.key.tag) +
                                " chunk " + std::to_string(chunk.step_list->chunk) + " at offset " +
                                std::to_string(first));
  };
  if (s.position >= steps.size()) {
    if (std::memcmp(chunk.target + first, chunk.device_memory + first, bytes) != 0)
      refuse_result("the device sent one result and stored another");
    return false;
  }
  if (!s.handed || s.position + 1u != steps.size() || steps[s.position].opcode != Opcode::kCopy)
    refuse_result("the device completed a chunk before its last step");
  std::memcpy(chunk.target + first, chunk.device_memory + first, bytes);
  s.answered = true;
  return true;
}

void Offload::divide_last(const Request& request) {
  for (const Chunk& chunk : request.chunks) {
    if (chunk.target != nullptr) divide(request, chunk.target, chunk.count, request.last_divisor);
  }
}

}  // namespace slackline
