// What callers are told about rails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "link_rail.h"

namespace slackline {

struct RailEvent {
  int link;
  int rail;          // -1: the link as a whole
  std::string what;  // "up", "suspect", "lost", "down"
  std::string reason;
  std::int64_t time_ns;
};

struct RailStatus {
  int link = -1;
  int rail = 0;
  std::string kind;  // "tcp", "udp", "shm"
  std::string name;
  std::string state = "up";  // or "suspect"
  RailCounters counters;
  std::uint64_t frames_resent = 0;
  std::uint64_t queued_bytes = 0;       // in the engine
  std::uint64_t unconfirmed_bytes = 0;  // these and what is under way
  std::uint64_t confirmed_bytes = 0;
  std::int64_t busy_ns = 0;  // time with anything unconfirmed
  std::int64_t round_trip_ns = 0;
  std::vector<Probe> probes;  // the last ones, oldest first
  std::uint64_t probe_count = 0;
};

}  // namespace slackline
