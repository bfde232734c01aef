// The conversion of a posted operation into a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "clock.h"
#include "group.h"
#include "memory.h"
#include "request.h"
#include "slackline/engine.h"

namespace slackline {

// All calls are made under the engine's lock.
class Builder {
 public:
  Builder(const EngineOptions& options, const Clock& clock, Memory& memory)
      : options_(options), clock_(clock), memory_(memory) {}

  // Return a request for the operation, with an identity of its own. Throws std::invalid_argument
  // for an operation that the group cannot perform. A request for which the arena has no room has a
  // failure already and must not start.
  std::shared_ptr<Request> build(Group& group, const Operation& operation);
  // Divide an operation into chunks and segments. Throws std::bad_alloc, and keeps no part of the
  // result, when there is no memory for their description.
  void divide(Request& request, const Operation& operation);
  // Turn a receive from any source into a receive from `peer`.
  void bind(Request& request, int peer);
  // Return the identity that a receive from any source gets if `peer` is its sender.
  static Key key_if_from(const Request& request, int peer);
  // Return whether the request's partial sums are sent as fp32.
  static bool widens(const Request& request);

 private:
  void place(Request& request, const Operation& operation) const;
  void cut(const Request& request, Chunk& chunk) const;
  std::byte* scratch(Request& request, std::size_t bytes);
  std::byte* room(Request& request, std::size_t bytes, const char* what);

  const EngineOptions& options_;
  const Clock& clock_;
  Memory& memory_;
  std::uint64_t posted_ = 0;  // operations, and messages, posted so far
};

}  // namespace slackline
