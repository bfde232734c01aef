// The calls of an engine about what a rank is beside a member of a group.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "device.h"
#include "entry.h"
#include "group.h"
#include "offload.h"

namespace slackline {

// Any thread may make any call.
class Roles {
 public:
  explicit Roles(Entry& entry) : entry_(entry) {}

  // Make this rank, the last member of `group`, an aggregator. An aggregator posts no operations
  // itself: frames from the other members begin the operations, and the aggregator adds according
  // to its part of `program`, or of `tree` for sums of one node of each member in a tree over as
  // many leaves, if it is not null. Addition starts when `onset` segments of every member have
  // arrived.
  void serve(Group& group, std::shared_ptr<const Program> program, std::uint32_t onset,
             std::shared_ptr<const Program> tree = nullptr);
  // Make `fallback` take over unfinished operations of `group` when the group's last member, an
  // aggregator, is lost. `program` is this rank's part of the plan that `fallback` then runs. Both
  // groups must be new.
  void fall_back(Group& group, std::shared_ptr<Group> fallback,
                 std::shared_ptr<const Program> program);
  // Attach, before the group's first operation, a device that adds for the group where it can.
  void attach(Group& group, std::string name);
  // Block until there is work for the group's device. Return nothing once the group or the engine
  // is closed.
  std::optional<DeviceWork> device_work(const Group& group);
  // Accept results of the device: `frames` to send, in order; `completed` operations, whose whole
  // result is in their device memory; `released` operations, which were withdrawn earlier. The
  // device no longer uses the memory of either. Throws std::invalid_argument for an impossible
  // answer; the caller then calls device_failed().
  void device_answer(const Group& group, std::span<const std::span<const std::byte>> frames,
                     std::span<const DeviceKey> completed, std::span<const DeviceKey> released);
  // Fail the group on every rank because its device will not answer any more.
  void device_failed(Group& group, const std::string& reason);
  // Declare, after the last device_work(), that the device is closed and uses no memory any more.
  void device_closed(const Group& group);

  const OffloadCounters& counters() const { return counters_; }

 private:
  void take(const Group& group, std::span<const std::span<const std::byte>> frames,
            std::span<const DeviceKey> completed);
  void complete(Request& request, std::uint32_t index);

  Entry& entry_;
  OffloadCounters counters_;
};

}  // namespace slackline
