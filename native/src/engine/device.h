// What adds for a group in the engine's stead: hardware behind it, or a model of hardware. The
// engine stays the link layer; frames go in and come out whole. See docs/design.md, "A device
// behind the engine".
#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "slackline/wire.h"

namespace slackline {

// What a device knows an operation by: a chunk of a tensor, which the plan may begin anywhere in a
// ring. A plan of one chunk has chunk 0.
struct DeviceKey {
  std::uint64_t tag;
  std::uint32_t chunk;
  auto operator<=>(const DeviceKey&) const = default;
};

// An operation that the device takes part in.
struct DevicePost {
  DeviceKey key;
  int start;  // the rank whose data open it, where the device is in a ring
  wire::DType dtype;
  std::uint64_t total;      // bytes
  std::size_t frame_bytes;  // of the element type, in every frame but the last
  int priority;             // lower is more urgent
  // This rank's data, and where the device stores the result. The engine's: after a failure it is
  // not used for anything else until the device has let go of it, so a device may be late.
  std::byte* memory;
};

// One frame for the device, header and payload, neither numbered nor with a payload checksum.
struct DeviceFrame {
  int port;  // the rank that it came from
  std::vector<std::byte> bytes;
};

struct DeviceWork {
  std::vector<DevicePost> posts;
  std::vector<DeviceFrame> frames;   // in the order of their arrival, behind their posts
  std::vector<DeviceKey> withdrawn;  // operations that failed after they were posted

  bool empty() const { return posts.empty() && frames.empty() && withdrawn.empty(); }
};

struct Device {
  explicit Device(std::string name) : name(std::move(name)) {}

  const std::string name;                // for messages
  DeviceWork work;                       // not taken yet
  std::condition_variable ready;         // for device_work
  bool closed = false;                   // there is no more work
  bool gone = false;                     // and it uses no memory any more
  std::map<DeviceKey, std::byte*> held;  // memory of what was withdrawn, until it has let go
};

}  // namespace slackline
