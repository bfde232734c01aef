// Groups with a device: the steps that wait for the device, and the effect of the device's answers
// on operations.
#include "device.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "engine_impl.h"

namespace slackline {

void Engine::attach(Group& group, std::string name) {
  const Lock lock = lock_for_post();
  if (!group.sequences.empty() || group.aggregation)
    throw std::invalid_argument("a device must be attached before the group's first operation");
  group.device = std::make_shared<Offload>(std::move(name), arena_, offloaded_);
}

std::optional<DeviceWork> Engine::device_work(Group& group) {
  const std::shared_ptr<Offload> device = group.device;
  Lock lock(mutex_);
  return device->next(lock, closing_);
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
      request.group->device->announce(request, c);
    } else if (!hand(request, chunk, segment, step.peer, step.opcode == Opcode::kAdd)) {
      return false;
    }
    s.handed = true;
  }
  if (!s.answered) return false;
  s.handed = s.answered = false;
  return true;
}

bool Engine::hand(Request& request, std::uint32_t chunk, std::uint32_t segment, int peer,
                  bool partial) {
  Chunk& c = request.chunks[chunk];
  PendingPayload* pending = take_pending(c.segments[segment], peer);
  if (pending == nullptr) return false;
  Offload& device = *request.group->device;
  try {
    if (!request.group->aggregation) device.announce(request, c);
    device.hand(request, c, segment, *pending, partial);
  } catch (...) {
    discard(pending);
    throw;
  }
  drop_pending(request, c, segment, pending);
  return true;
}

void Engine::device_answer(Group& group, std::span<const std::span<const std::byte>> frames,
                           std::span<const DeviceKey> completed,
                           std::span<const DeviceKey> released) {
  const Lock lock = lock_for_post();
  group.device->release(completed);
  group.device->release(released);
  if (group.closed || group.broken || closing_) return;
  change([&] { take_answer(group, frames, completed); });
  wake();
}

void Engine::take_answer(const Group& group, std::span<const std::span<const std::byte>> frames,
                         std::span<const DeviceKey> completed) {
  // An operation that is not found, or not offloaded, has failed in the meantime.
  for (const std::span<const std::byte> frame : frames) {
    const Key key{Offload::header_of(frame).tag, group.epoch, kRoleCollective};
    const std::shared_ptr<Request> request = operations_.find(key);
    if (!request || !request->offloaded) continue;
    const auto [chunk, segment] = group.device->store(*request, frame);
    advance(*request, chunk, segment);
    maybe_finish(*request);
  }
  for (const DeviceKey& key : completed) {
    const std::shared_ptr<Request> request =
        operations_.find(Key{key.tag, group.epoch, kRoleCollective});
    if (request && request->offloaded) complete(*request, Offload::completed(*request, key));
  }
  drain_dirty();
}

// Complete a chunk whose whole result the device has written to the device memory. The parts of the
// result that the plan makes this rank send to a peer have arrived earlier, as frames.
void Engine::complete(Request& request, std::uint32_t index) {
  Chunk& chunk = request.chunks[index];
  for (std::uint32_t segment = 0; segment < chunk.segments.size(); ++segment) {
    if (Offload::store_completed(request, chunk, segment)) advance(request, index, segment);
  }
  arena_.free(std::exchange(chunk.device_memory, nullptr));
  send_finished(request);
}

void Engine::device_closed(Group& group) {
  const Lock lock = lock_for_post();
  group.device->device_gone();
}

void Engine::close_device(Group& group) {
  if (group.device) group.device->close();
}

void Engine::device_failed(Group& group, const std::string& reason) {
  const Lock lock = lock_for_post();
  if (group.closed || group.broken || closing_) return;
  // The loss of an aggregator's device is a peer failure, which the aggregator's workers survive.
  // The loss of any other rank's device is an internal failure of the group.
  const Failure failure{group.aggregation ? Fault::kPeer : Fault::kInternal,
                        "the device of rank " + std::to_string(group.rank) + " (" +
                            group.device->name() + ") failed: " + reason,
                        group.rank,
                        -1,
                        -1,
                        -1};
  change([&] {
    group.told = failure;
    tell_failure(group);
    break_group(group, failure);
    drain_dirty();
  });
  close_device(group);
  wake();
}

}  // namespace slackline
