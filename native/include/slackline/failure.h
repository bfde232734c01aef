// The failure of a posted operation. The names match the classes of slackline.errors.
#pragma once

#include <cstdint>
#include <string>

namespace slackline {

enum class Fault : std::uint8_t {
  kNone = 0,
  kUsage,     // the caller passed wrong arguments
  kMismatch,  // ranks posted operations that do not match
  kPeer,      // a peer died or left
  kLink,      // no rail to a peer is left
  kFrame,     // a frame arrived truncated or corrupted
  kTimeout,   // the deadline passed
  kClosed,    // the engine or group was used after close
  kInternal,  // an invariant of the engine is broken
};

// How the peer of a kPeer failure ended its part in the group; the values are those in ABORT
// frames.
enum class Departure : std::uint8_t {
  kNone = 0,  // without a word: its process or its link has ended
  kClosed,    // in good order
  kAborted,
};

struct Failure {
  Fault fault = Fault::kNone;
  std::string message;
  int rank = -1;
  int peer = -1;
  std::int64_t tag = -1;
  std::int64_t sequence = -1;
  Departure departure = Departure::kNone;
  int teller = -1;  // the rank that told this one of the failure; -1: this rank saw it itself

  explicit operator bool() const { return fault != Fault::kNone; }
};

// Return whether the failure is that of a member that has ended without a word.
inline bool is_loss(const Failure& failure) {
  return failure.fault == Fault::kPeer && failure.departure == Departure::kNone;
}

}  // namespace slackline
