// The engine's side of a device that adds for a group: the work that waits for the device, the
// memory that the device uses, and the checks of the device's answers.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "device.h"
#include "group.h"
#include "slackline/arena.h"

namespace slackline {

// Counts of all devices of an engine.
struct OffloadCounters {
  std::uint64_t frames_taken = 0;  // frames handed to a device
  std::uint64_t frames_given = 0;  // frames that a device has answered
};

// The work of one group's device. All calls are made under the engine's lock; next() releases the
// lock while it waits, and is called by the device's thread.
class Offload {
 public:
  // `name` is used in messages. `arena` has the device memory of the chunks. Both references must
  // be valid at every call.
  Offload(std::string name, Arena& arena, OffloadCounters& counters)
      : name_(std::move(name)), arena_(arena), counters_(counters) {}
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  const std::string& name() const { return name_; }
  // Return whether a device can perform this reduction for the group, with results that are
  // bit-identical to the engine's.
  static bool adds(const Group& group, wire::DType dtype, wire::ReduceOp op);

  // Announce a chunk of an operation to the device and copy this rank's data to the chunk's device
  // memory, just before the chunk's first data or frame. Nothing happens the second time. The
  // request gets one more open send, which lasts until the device has completed the chunk.
  void announce(Request& request, Chunk& chunk);
  // Queue a copy of a peer's payload for the device, as a frame.
  void hand(const Request& request, const Chunk& chunk, std::size_t segment,
            const PendingPayload& payload, bool partial);
  // Remove the request's work that the device has not taken yet. The memory of work that the device
  // has taken stays allocated until the device releases it.
  void withdraw(Request& request);
  // Let no more work out, and end the wait in next().
  void close();

  // Return whether work waits for the device.
  bool any_work() const { return !work_.empty(); }
  // Wait for work and return it. Return nothing once the object is closed or `ended` is true.
  std::optional<DeviceWork> next(std::unique_lock<std::mutex>& lock, const bool& ended);
  // Free the memory of withdrawn operations that the device does not use any more. Other keys are
  // ignored.
  void release(std::span<const DeviceKey> keys);
  // Free the memory of all withdrawn operations: the device will not use any memory again.
  void device_gone();
  // Renew the condition variable in a forked child.
  void leave_to_parent();

  // Return the header of a frame of the device. Throws std::invalid_argument if the frame is not as
  // long as its header states.
  static wire::Header header_of(std::span<const std::byte> frame);
  // The indices of a chunk within its request, and of a segment within the chunk.
  struct Place {
    std::uint32_t chunk;
    std::uint32_t segment;
  };
  // Store the result of a step in the memory of its segment, and mark the segment as answered.
  // `frame` is a header with its payload. Throws std::invalid_argument for a frame that does not
  // answer the step at which the segment waits.
  Place store(Request& request, std::span<const std::byte> frame);
  // Return the index of the chunk that the device has completed. Throws std::invalid_argument for a
  // chunk that the device was not given.
  static std::uint32_t completed(const Request& request, const DeviceKey& key);
  // Store the result of one segment of a completed chunk, and mark the segment as answered. Return
  // false if the segment has passed its last step before. Throws std::invalid_argument if the
  // result differs from the frames that the device gave earlier, or comes before the last step.
  static bool store_completed(const Request& request, Chunk& chunk, std::size_t segment);
  // Divide a complete sum into an average on this rank, once no other rank reads the sum any more.
  // The division is the last step on every rank, because the devices of some ranks can only add.
  static void divide_last(const Request& request);

 private:
  const std::string name_;
  Arena& arena_;
  OffloadCounters& counters_;
  DeviceWork work_;  // work that the device has not taken yet
  std::condition_variable ready_;
  bool closed_ = false;
  bool gone_ = false;
  std::map<DeviceKey, std::byte*> held_;  // memory of withdrawn operations
};

}  // namespace slackline
