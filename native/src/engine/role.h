// The part of this rank in a group, where it is more than that of an ordinary member.
#pragma once

#include <cstdint>

#include "../rail/rail.h"
#include "request.h"

namespace slackline {

// The way in which a peer left a group: by closing it, by an end of its process or of the link
// after all that it had sent was read, or by an abort.
enum class Leave : std::uint8_t { kOrderly, kLost, kBroken };

// An aggregator, the worker of one, a group that takes over from an aggregator, or a rank with a
// device. Each call tells the role of an event in its group and lets it act. All calls are made
// under the engine's lock.
class Role {
 public:
  virtual ~Role() = default;
  // An operation starts: nothing of it has been sent yet.
  virtual void started(Request&) {}
  // A payload of the operation has arrived from `peer`, and waits for its step.
  virtual void arrived(Request&, int /*peer*/) {}
  // Do the work of a step. Return kOthers to leave it to the engine.
  enum class Pass : std::uint8_t { kOthers, kDone, kWaits };
  virtual Pass step(Request&, std::uint32_t /*chunk*/, std::uint32_t /*segment*/, const Step&) {
    return Pass::kOthers;
  }
  // The operation fails. Return true to end the failure here: the role goes on with it.
  virtual bool failed(Request&, Failure&) { return false; }
  // The operation has ended, whether it failed or not.
  virtual void ended(const Request&) {}
  // A frame has come of an operation that is not posted here.
  virtual void early(const Key&) {}
  // The aggregator reports operations whose results every worker has.
  virtual void reported(const Payload&) {}
  // A member has left. Return true to end the news here.
  virtual bool left(int /*rank*/, const Failure&, Leave) { return false; }
  // Look at what is late; called every few milliseconds while operations are open.
  virtual void watch() {}
  // The group ends on this rank.
  virtual void close() {}
};

}  // namespace slackline
