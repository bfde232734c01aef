// How much of an operation's data may be sent to a rank, and how much this rank takes.
#pragma once

#include <cstdint>

#include "clock.h"
#include "request.h"
#include "slackline/engine.h"

namespace slackline {

// The flow control of operations over wires. A sender may send some bytes of an operation at once
// (eager bytes), and more after a grant. See docs/design.md, "Credits, and why nothing waits in a
// circle". All calls are made under the engine's lock.
class Credits {
 public:
  Credits(const EngineOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

  // Return the number of bytes of an operation that may be sent before a grant arrives.
  std::uint64_t eager_bytes(const Request& request) const;
  // Grant each peer on a wire the number of bytes of the operation that it may send, and ask for
  // the links that the operation needs.
  void promise(Request& request) const;
  // Grant a peer that has asked for it, once.
  void answer(Request& request, int peer, std::uint64_t sent) const;
  // Grant more after payloads of the peer have been consumed.
  void renew(Request& request, int peer) const;

 private:
  std::uint64_t window_of(const Request& request, int peer) const;
  std::uint64_t promise_of(const Request& request, int peer, std::uint64_t from) const;

  const EngineOptions& options_;
  const Clock& clock_;
};

}  // namespace slackline
