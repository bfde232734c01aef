// What a rail asks of the engine that drives it. All calls happen under the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slackline/failure.h"
#include "slackline/wire.h"

namespace slackline {

class Link;
struct Job;

// A payload whose memory the rail lends (`owned` null: valid during the call only) or hands over
// (`owned` is freed by the receiver).
struct Payload {
  const std::byte* data = nullptr;
  std::byte* owned = nullptr;
  std::uint32_t length = 0;
};

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Where a long payload should be stored right away, or null: the rail then takes a buffer. `*job`
  // is set to the owner of the memory.
  virtual std::byte* landing(Link& link, const wire::Header& header, Job** job) = 0;
  virtual void arrive(Link& link, const wire::Header& header, const Payload& payload) = 0;
  virtual std::byte* take_buffer(std::size_t bytes) = 0;
  virtual void give_buffer(std::byte* buffer) = 0;
  // Another thread wants the engine: stop after this frame.
  virtual bool hurried() const = 0;
};

inline constexpr std::uint32_t kMaxPayload = 16u << 20;  // no honest frame is longer

}  // namespace slackline
