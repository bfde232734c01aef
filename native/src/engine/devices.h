// The calls of an engine for devices that add for a group.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "device.h"
#include "entry.h"
#include "group.h"
#include "offload.h"

namespace slackline {

// Any thread may make any call.
class Devices {
 public:
  explicit Devices(Entry& entry) : entry_(entry) {}

  // Attach, before the group's first operation, a device that adds for the group where it can.
  void attach(Group& group, std::string name);
  // Block until there is work for the group's device. Return nothing once the group or the engine
  // is closed.
  std::optional<DeviceWork> work(const Group& group);
  // Accept results of the device: `frames` to send, in order; `completed` operations, whose whole
  // result is in their device memory; `released` operations, which were withdrawn earlier. The
  // device no longer uses the memory of either. Throws std::invalid_argument for an impossible
  // answer; the caller then calls failed().
  void answer(const Group& group, std::span<const std::span<const std::byte>> frames,
              std::span<const DeviceKey> completed, std::span<const DeviceKey> released);
  // Fail the group on every rank because its device will not answer any more.
  void failed(Group& group, const std::string& reason);
  // Declare, after the last work(), that the device is closed and uses no memory any more.
  void closed(const Group& group);

  const OffloadCounters& counters() const { return counters_; }

 private:
  void take(const Group& group, std::span<const std::span<const std::byte>> frames,
            std::span<const DeviceKey> completed);
  void complete(Request& request, std::uint32_t index);

  Entry& entry_;
  OffloadCounters counters_;
};

}  // namespace slackline
