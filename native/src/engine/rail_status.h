// Events and status records about rails that callers receive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "link_rail.h"

namespace slackline {

struct RailEvent {
  int link;
  int rail;  // -1: the link as a whole
  // "up", "suspect", "lost", "closed" (the peer has closed its engine in good order) or "down". For
  // a link as a whole also "wanted" (an operation needs the link, which has no rail yet), "left" (a
  // worker has left its aggregator) and "abandoned" (the engine gives the link up, because the
  // aggregator at its end has failed).
  std::string what;
  std::string reason;
  std::int64_t time_ns;
};

struct RailStatus {
  int link = -1;
  int rail = 0;
  std::string kind;  // "tcp", "udp", "shm"
  std::string name;
  std::string state = "up";  // or "suspect", or "ended" once the rail or its link has ended
  RailCounters counters;
  std::uint64_t frames_resent = 0;
  std::uint64_t queued_bytes = 0;       // bytes in the engine that the system has not taken yet
  std::uint64_t unconfirmed_bytes = 0;  // queued bytes and bytes in flight
  std::uint64_t confirmed_bytes = 0;
  std::int64_t busy_ns = 0;  // time during which anything was unconfirmed
  std::int64_t round_trip_ns = 0;
  std::vector<Probe> probes;  // the most recent ones, oldest first
  std::uint64_t probe_count = 0;
};

inline const char* name_of(RailKind kind) { return kind == RailKind::kTcp ? "tcp" : "udp"; }

}  // namespace slackline
