// A rail of a link (a path to its peer), and what the link knows about it: its state and its
// measured speed.
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
  kSuspect,  // silent: not used; its frames were sent again over the other rails
};

// The four times of one probe, a small frame to the peer's engine and back, in nanoseconds. Each
// host uses its own monotonic clock.
struct Probe {
  std::int64_t sent;      // this rank sent the probe
  std::int64_t received;  // the peer received the probe
  std::int64_t answered;  // the peer sent the answer
  std::int64_t back;      // this rank received the answer
};

struct LinkRail {
  static constexpr std::size_t kProbes = 32;

  LinkRail(int index, std::string name, std::unique_ptr<WireRail> wire)
      : index(index), name(std::move(name)), wire(std::move(wire)) {}

  // Return the time in nanoseconds that the bytes queued on this rail will take to send. A rail
  // whose rate has not been measured is assumed to be as fast as `typical`.
  double backlog_ns(double typical) const {
    return static_cast<double>(wire->queued_bytes()) / (measured ? rate : typical);
  }

  // Return whether the rail may carry frames.
  bool up() const { return state == RailState::kUp && !wire->failure(); }

  const int index;  // same index at both ends
  const std::string name;
  std::unique_ptr<WireRail> wire;
  RailState state = RailState::kUp;

  // Bandwidth, measured only while more data is queued than the rail takes. An idle rail reveals
  // nothing about its bandwidth.
  double rate = 0;  // bytes per nanosecond
  bool measured = false;
  bool was_full = false;
  bool was_busy = false;
  std::uint64_t picked = 0;  // when the rail was last picked, counted in picks
  std::int64_t busy_ns = 0;
  std::int64_t checked_ns = 0;
  std::uint64_t confirmed_bytes = 0;
  std::int64_t span_ns = 0;  // duration of the measurement in progress
  std::uint64_t span_bytes = 0;
  Confirmation last;

  // Bytes that a restored rail may have in flight. The value is kUnlimited for a rail that has
  // proved itself.
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  std::uint64_t slow_start_window = kUnlimited;
  std::uint64_t proved_bytes = 0;  // bytes confirmed since the window was last raised

  std::int64_t suspected_ns = 0;
  std::int64_t next_probe_ns = 0;
  std::int64_t probe_sent_ns = 0;  // 0 while no probe is in flight
  std::deque<Probe> probes;        // the most recent ones, oldest first
  std::uint64_t probe_count = 0;
  std::uint64_t frames_resent = 0;
};

}  // namespace slackline
