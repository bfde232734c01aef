// One rail of a link and what the link knows of it: whether it is used, and how well it does.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "../rail/wire_rail.h"

namespace slackline {

enum class RailState : std::uint8_t {
  kUp,
  kSuspect,  // silent: not used; what it had to send went over the others
};

// A frame to the peer's engine and back. Each host's own monotonic clock, in nanoseconds.
struct Probe {
  std::int64_t sent;      // here
  std::int64_t received;  // there
  std::int64_t answered;  // there
  std::int64_t back;      // here
};

struct LinkRail {
  static constexpr std::size_t kProbes = 32;

  LinkRail(int index, std::string name, std::unique_ptr<WireRail> wire)
      : index(index), name(std::move(name)), wire(std::move(wire)) {}

  // How long what waits here will take. A rail that was never full is as fast as `typical`.
  double backlog_ns(double typical) const {
    return static_cast<double>(wire->queued_bytes()) / (measured ? rate : typical);
  }

  const int index;  // the same at both ends
  const std::string name;
  std::unique_ptr<WireRail> wire;
  RailState state = RailState::kUp;

  // Bandwidth, measured while more waits than the rail takes: an idle one tells nothing.
  double rate = 0;  // bytes per nanosecond
  bool measured = false;
  bool was_full = false;
  bool was_busy = false;
  std::uint64_t picked = 0;  // when it last was, in picks
  std::int64_t busy_ns = 0;
  std::int64_t checked_ns = 0;
  std::uint64_t confirmed_bytes = 0;
  std::int64_t span_ns = 0;  // of the measurement that is under way
  std::uint64_t span_bytes = 0;
  Confirmation last;

  // A rail that comes back may have this much under way; kUnlimited once it has proved itself.
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  std::uint64_t allowance = kUnlimited;
  std::uint64_t proved_bytes = 0;  // confirmed since the allowance was last raised

  std::int64_t suspected_ns = 0;
  std::int64_t next_probe_ns = 0;
  std::int64_t probe_sent_ns = 0;  // 0: none is on its way
  std::deque<Probe> probes;        // the last ones, oldest first
  std::uint64_t probe_count = 0;
  std::uint64_t frames_resent = 0;
};

}  // namespace slackline
