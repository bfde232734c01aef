// What went wrong with a posted operation, in the words of slackline.errors.
#pragma once

#include <cstdint>
#include <string>

namespace slackline {

enum class Fault : std::uint8_t {
  kNone = 0,
  kUsage,     // the caller's arguments
  kMismatch,  // ranks posted operations that do not fit together
  kPeer,      // a peer died or left
  kLink,      // no rail to a peer is left
  kFrame,     // a frame arrived truncated or corrupted
  kTimeout,   // the deadline passed
  kClosed,    // used after close
  kInternal,  // our own invariant is broken
};

struct Failure {
  Fault fault = Fault::kNone;
  std::string message;
  int rank = -1;
  int peer = -1;
  std::int64_t tag = -1;
  std::int64_t sequence = -1;

  explicit operator bool() const { return fault != Fault::kNone; }
};

}  // namespace slackline
