// The data exchanged with a device that adds for a group in place of the engine: hardware behind
// the engine, or a model of hardware. The engine remains the link layer and exchanges whole frames
// with the device. See docs/design.md, "A device behind the engine".
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slackline/wire.h"

namespace slackline {

// The identity of an operation at a device: the operation's tag and one chunk of its tensor. In a
// ring each chunk may start at another rank. A plan of one chunk uses chunk 0.
struct DeviceKey {
  std::uint64_t tag;
  std::uint32_t chunk;
  auto operator<=>(const DeviceKey&) const = default;
};

// An operation that the device takes part in.
struct DevicePost {
  DeviceKey key;
  int start;  // in a ring, the rank whose data starts the chunk
  wire::DType dtype;
  std::uint64_t total;  // bytes of the chunk
  // Bytes of the element type in every frame except the last.
  std::size_t frame_bytes;
  int priority;  // lower is more urgent
  // The arena block that holds this rank's data and receives the device's result. The engine owns
  // the block. After a failure the engine does not reuse the block until the device has released
  // it, so a late write by the device does no harm.
  std::byte* memory;
};

// A frame for the device: header and payload, without a sequence number and without a payload
// checksum.
struct DeviceFrame {
  int port;  // the rank that sent the frame
  std::vector<std::byte> bytes;
};

struct DeviceWork {
  std::vector<DevicePost> posts;
  std::vector<DeviceFrame> frames;   // in order of arrival; their posts come before them
  std::vector<DeviceKey> withdrawn;  // operations that failed after they were posted

  bool empty() const { return posts.empty() && frames.empty() && withdrawn.empty(); }
};

}  // namespace slackline
