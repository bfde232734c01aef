// Groups with a device: the data handed to the device, and the effect of the device's answers on
// operations.
#include "device.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine_impl.h"
#include "segments.h"
#include "slackline/crc32c.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

bool half(wire::DType dtype) {
  return dtype == wire::DType::kFloat16 || dtype == wire::DType::kBfloat16;
}

void divide(const Request& request, std::byte* values, std::size_t count, int divisor) {
  const void* source = values;
  void* target = values;
  kernels::fold(request.dtype, wire::ReduceOp::kAvg, &source, 1, &target, 1, count, divisor, false);
}

[[noreturn]] void refuse(const std::string& what, const wire::Header& header) {
  throw std::invalid_argument(what + ": tag " + std::to_string(header.tag) + " offset " +
                              std::to_string(header.offset) + " length " +
                              std::to_string(header.length));
}

}  // namespace

// Return whether a device can perform the reduction. Devices only add. For an average the engine
// divides the sum of a device; this is allowed only for types for which the result is bit-identical
// to the engine's own average. For half types a device keeps fp32 sums and rounds once, as the
// engine does in a group that adds in rank order; in other groups the engine rounds differently.
bool Engine::offloadable(const Group& group, wire::DType dtype, wire::ReduceOp op) {
  if (op == wire::ReduceOp::kAvg) return dtype == wire::DType::kFloat32;
  if (half(dtype) && !group.rank_order) return false;
  return op == wire::ReduceOp::kSum &&
         (dtype == wire::DType::kFloat32 || dtype == wire::DType::kInt32 || half(dtype));
}

void Engine::attach(Group& group, std::string name) {
  const Lock lock = lock_for_post();
  if (!group.sequences.empty() || group.service)
    throw std::invalid_argument("a device must be attached before the group's first operation");
  group.device = std::make_shared<Device>(std::move(name));
}

std::optional<DeviceWork> Engine::device_work(Group& group) {
  const std::shared_ptr<Device> device = group.device;
  Lock lock(mutex_);
  device->ready.wait(
      lock, [&] { return !device->work.empty() || device->closed || stopped_ || closing_; });
  if (device->closed || stopped_ || closing_) return std::nullopt;
  return std::exchange(device->work, {});
}

// Give the device the input of the step, unless the device has received it already. Return true
// when the device has answered.
bool Engine::offload(Request& request, std::uint32_t chunk, std::uint32_t segment,
                     const Step& step) {
  Chunk& c = request.chunks[chunk];
  Segment& s = c.segments[segment];
  if (request.finished()) return false;
  if (!s.handed) {
    if (step.opcode == Opcode::kReduceAll) {
      if (request.gated) return false;
      for (int rank = 0; rank < request.group->rank; ++rank)
        hand(request, chunk, segment, rank, false);
    } else if (step.opcode == Opcode::kSend) {
      announce(request, c);
    } else if (!hand(request, chunk, segment, step.peer, step.opcode == Opcode::kAdd)) {
      return false;
    }
    s.handed = true;
  }
  if (!s.answered) return false;
  s.handed = s.answered = false;
  return true;
}

// Announce a chunk of an operation to the device, just before the chunk's first data or frame. In a
// ring, therefore, no device knows of a chunk until the first device at or after the chunk's
// starting rank has begun to process it.
void Engine::announce(Request& request, Chunk& chunk) {
  if (std::exchange(chunk.announced, true)) return;
  std::memcpy(chunk.device_memory, chunk.source, chunk.count * request.item_size);
  ++request.open_sends;  // until the device has finished
  request.group->device->work.posts.push_back(
      DevicePost{DeviceKey{request.key.tag, chunk.step_list->chunk}, chunk.step_list->start,
                 request.dtype, chunk.count * request.item_size,
                 chunk.segment_count * request.item_size, request.priority, chunk.device_memory});
  request.group->device->ready.notify_one();
}

bool Engine::hand(Request& request, std::uint32_t chunk, std::uint32_t segment, int peer,
                  bool partial) {
  Chunk& c = request.chunks[chunk];
  PendingPayload* pending = take_pending(c.segments[segment], peer);
  if (pending == nullptr) return false;
  if (!request.group->service) announce(request, c);
  wire::Header header = header_for(request, wire::FrameKind::kData);
  header.op = static_cast<std::uint8_t>(static_cast<unsigned>(request.collective) << 4 |
                                        static_cast<unsigned>(wire::ReduceOp::kSum));
  header.source = static_cast<std::uint16_t>(peer);
  header.chunk = c.step_list->chunk;
  header.offset = segment * c.segment_count * request.item_size;
  header.total = c.count * request.item_size;
  header.length = pending->length;
  if (partial) header.flags |= wire::kFlagPartial;
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
  DeviceFrame frame{peer, std::vector<std::byte>(sizeof header + pending->length)};
  std::memcpy(frame.bytes.data(), &header, sizeof header);
  if (pending->length > 0)
    std::memcpy(frame.bytes.data() + sizeof header, pending->data, pending->length);
  request.group->device->work.frames.push_back(std::move(frame));
  request.group->device->ready.notify_one();
  ++device_frames_taken_;
  drop_pending(request, c, segment, pending);
  return true;
}

void Engine::device_answer(Group& group, std::span<const std::span<const std::byte>> frames,
                           std::span<const DeviceKey> completed,
                           std::span<const DeviceKey> released) {
  const Lock lock = lock_for_post();
  release_withdrawn(*group.device, completed);
  release_withdrawn(*group.device, released);
  if (group.closed || group.broken || closing_) return;
  for (const std::span<const std::byte> frame : frames) take_answer(group, frame);
  for (const DeviceKey& key : completed) complete(group, key);
  drain_dirty();
  wake();
}

void Engine::take_answer(const Group& group, std::span<const std::byte> frame) {
  wire::Header header{};
  if (frame.size() >= sizeof header) std::memcpy(&header, frame.data(), sizeof header);
  if (frame.size() != sizeof header + header.length)
    refuse(
        "a frame of " + std::to_string(frame.size()) + " bytes is not as long as its header states",
        header);
  const std::shared_ptr<Request> request = find(Key{header.tag, group.epoch, kRoleCollective});
  if (!request || !request->offloaded) return;  // the operation has failed in the meantime
  const int index = request->program->local(header.chunk);
  if (index < 0)
    refuse("a frame of chunk " + std::to_string(header.chunk) + ", which the plan does not have",
           header);
  Chunk& chunk = request->chunks[static_cast<std::size_t>(index)];
  const auto& steps = chunk.step_list->steps;
  const std::size_t frame_bytes = chunk.segment_count * request->item_size;
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
  const std::size_t unit = partial && request->wide ? sizeof(float) : request->item_size;
  const std::size_t elements = elements_in(chunk, segment);
  if (header.length != elements * unit || partial != ((header.flags & wire::kFlagPartial) != 0))
    refuse("a frame's length or flags do not match its step", header);
  std::byte* to = (partial ? chunk.partial : chunk.target) + segment * chunk.segment_count * unit;
  std::memcpy(to, frame.data() + sizeof header, header.length);
  if (request->group->service && request->divisor > 1)
    divide(*request, to, elements, request->divisor);
  ++device_frames_given_;
  s.answered = true;
  advance(*request, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(segment));
  maybe_finish(*request);
}

// Complete a chunk whose whole result the device has written to the device memory. The parts of the
// result that the plan makes this rank send to a peer have arrived earlier, as frames.
void Engine::complete(const Group& group, const DeviceKey& key) {
  const std::shared_ptr<Request> request = find(Key{key.tag, group.epoch, kRoleCollective});
  if (!request || !request->offloaded) return;  // the operation has failed in the meantime
  const std::string name = "tag " + std::to_string(key.tag) + " chunk " + std::to_string(key.chunk);
  const int index = request->program->local(static_cast<int>(key.chunk));
  if (index < 0 || request->chunks[static_cast<std::size_t>(index)].device_memory == nullptr)
    throw std::invalid_argument("the device completed a chunk that it was not given: " + name);
  Chunk& chunk = request->chunks[static_cast<std::size_t>(index)];
  const auto& steps = chunk.step_list->steps;
  for (std::size_t segment = 0; segment < chunk.segments.size(); ++segment) {
    Segment& s = chunk.segments[segment];
    const std::size_t first = segment * chunk.segment_count * request->item_size;
    const std::size_t bytes = elements_in(chunk, segment) * request->item_size;
    const std::string where = name + " at offset " + std::to_string(first);
    if (s.position >= steps.size()) {
      if (std::memcmp(chunk.target + first, chunk.device_memory + first, bytes) != 0)
        throw std::invalid_argument("the device sent one result and stored another: " + where);
      continue;
    }
    if (!s.handed || s.position + 1u != steps.size() || steps[s.position].opcode != Opcode::kCopy)
      throw std::invalid_argument("the device completed a chunk before its last step: " + where);
    std::memcpy(chunk.target + first, chunk.device_memory + first, bytes);
    s.answered = true;
    advance(*request, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(segment));
  }
  arena_.free(std::exchange(chunk.device_memory, nullptr));
  send_finished(*request);
}

// Divide a complete sum into an average on this rank once no other rank reads the sum any more.
// The division is the last step on every rank, because the devices of some ranks can only add.
void Engine::divide_last(const Request& request) {
  for (const Chunk& chunk : request.chunks) {
    if (chunk.target != nullptr) divide(request, chunk.target, chunk.count, request.last_divisor);
  }
}

// Remove the request's work that the device has not taken yet. The memory of work that the device
// has taken stays allocated until the device releases it.
void Engine::withdraw(Request& request) {
  Device& device = *request.group->device;
  const auto of = [&](const DeviceFrame& frame) {
    wire::Header header;
    std::memcpy(&header, frame.bytes.data(), sizeof header);
    return header.tag == request.key.tag;
  };
  std::erase_if(device.work.frames, of);
  const auto posted = [&](const DevicePost& post) { return post.key.tag == request.key.tag; };
  std::set<std::uint32_t> not_taken;
  for (const DevicePost& post : device.work.posts) {
    if (posted(post)) not_taken.insert(post.key.chunk);
  }
  std::erase_if(device.work.posts, posted);
  for (Chunk& chunk : request.chunks) {
    const DeviceKey key{request.key.tag, chunk.step_list->chunk};
    const bool done = chunk.device_memory == nullptr;
    if (!chunk.announced || done || device.gone || not_taken.contains(key.chunk)) continue;
    device.held.emplace(key, std::exchange(chunk.device_memory, nullptr));
    device.work.withdrawn.push_back(key);
    device.ready.notify_one();
  }
}

void Engine::release_withdrawn(Device& device, std::span<const DeviceKey> keys) {
  for (const DeviceKey& key : keys) {
    if (const auto held = device.held.extract(key)) arena_.free(held.mapped());
  }
}

void Engine::device_closed(Group& group) {
  const Lock lock = lock_for_post();
  Device& device = *group.device;
  device.gone = true;
  for (const auto& [key, memory] : device.held) arena_.free(memory);
  device.held.clear();
}

void Engine::close_device(Group& group) {
  if (!group.device) return;
  group.device->closed = true;
  group.device->work = {};
  group.device->ready.notify_all();
}

void Engine::device_failed(Group& group, const std::string& reason) {
  const Lock lock = lock_for_post();
  if (group.closed || group.broken || closing_) return;
  // The loss of an aggregator's device is a peer failure, which the aggregator's workers survive.
  // The loss of any other rank's device is an internal failure of the group.
  const Failure failure{group.service ? Fault::kPeer : Fault::kInternal,
                        "the device of rank " + std::to_string(group.rank) + " (" +
                            group.device->name + ") failed: " + reason,
                        group.rank,
                        -1,
                        -1,
                        -1};
  group.told = failure;
  tell_failure(group);
  break_group(group, failure);
  close_device(group);
  drain_dirty();
  wake();
}

}  // namespace slackline
