// The role of a rank with a device that adds in place of the engine.
#pragma once

#include <cstdint>
#include <memory>

#include "executor.h"
#include "group.h"
#include "offload.h"
#include "role.h"

namespace slackline {

class DeviceRole final : public Role {
 public:
  DeviceRole(const Group& group, std::shared_ptr<Offload> device, Executor& executor)
      : group_(group), device_(std::move(device)), executor_(executor) {}

  // Give the device the input of the step, unless the device has received it already, and wait for
  // its answer.
  Pass step(Request& request, std::uint32_t chunk, std::uint32_t segment,
            const Step& step) override;
  void close() override { device_->close(); }

 private:
  bool hand(Request& request, std::uint32_t chunk, std::uint32_t segment, int peer, bool partial);

  const Group& group_;
  const std::shared_ptr<Offload> device_;
  Executor& executor_;
};

}  // namespace slackline
