// What adds for a group in the engine's stead: hardware behind it, or a model of hardware. The
// engine stays the link layer; frames go in and come out whole. See docs/design.md, "A device
// behind the engine".
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slackline/wire.h"

namespace slackline {

// An operation that the device takes part in.
struct DevicePost {
  std::uint64_t tag;
  wire::DType dtype;
  std::uint64_t total;      // bytes
  std::size_t frame_bytes;  // of the element type, in every frame but the last
  int priority;             // lower is more urgent
  // This rank's data, and where the device stores the result. The engine's: after a failure it is
  // never used again, so a device may be late.
  std::byte* memory;
};

// One frame for the device, header and payload, neither numbered nor with a payload checksum.
struct DeviceFrame {
  int port;  // the rank that it came from
  std::vector<std::byte> bytes;
};

struct DeviceWork {
  std::vector<DevicePost> posts;
  std::vector<DeviceFrame> frames;       // in the order of their arrival, behind their posts
  std::vector<std::uint64_t> withdrawn;  // operations that failed after they were posted

  bool empty() const { return posts.empty() && frames.empty() && withdrawn.empty(); }
};

struct Device {
  explicit Device(std::string name) : name(std::move(name)) {}

  const std::string name;         // for messages
  DeviceWork work;                // not taken yet
  std::condition_variable ready;  // for device_work
  bool closed = false;
};

}  // namespace slackline
