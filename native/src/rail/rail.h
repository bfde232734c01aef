// The interface that a rail (one path to a peer) needs from the engine that drives it. All calls
// are made under the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slackline/failure.h"
#include "slackline/wire.h"

namespace slackline {

class Link;
struct Request;

// A received payload. The rail either lends the memory (`owned` is null; `data` is valid during the
// call only) or hands it over (the receiver frees `owned`).
struct Payload {
  const std::byte* data = nullptr;
  std::byte* owned = nullptr;
  std::uint32_t length = 0;
};

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Return the address at which a long payload should be stored directly, or null: the rail then
  // takes a buffer.
  // `*owner` is set to the owner of the memory.
  virtual std::byte* direct_placement(Link& link, const wire::Header& header, Request** owner) = 0;
  virtual void arrive(Link& link, const wire::Header& header, const Payload& payload) = 0;
  virtual std::byte* take_buffer(std::size_t bytes) = 0;
  virtual void give_buffer(std::byte* buffer) = 0;
  // Return whether another thread waits for the engine's lock; the rail should then stop after the
  // current frame.
  virtual bool lock_wanted() const = 0;
};

inline constexpr std::uint32_t kMaxPayload = 16u << 20;  // no valid frame is longer

}  // namespace slackline
