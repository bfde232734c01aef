// The settings that the model checker explores.
#pragma once

#include <vector>

#include "world.h"

namespace slackline::model {

inline std::vector<Setting> settings() {
  return {
      {"one message over streams", Work::kMessage, RailKind::kTcp},
      {"one message over datagrams", Work::kMessage, RailKind::kUdp},
      {"messages over streams", Work::kMessages, RailKind::kTcp},
      {"segments over streams", Work::kSegments, RailKind::kTcp},
      {"sums over streams", Work::kSums, RailKind::kTcp},
      {"messages over datagrams", Work::kMessages, RailKind::kUdp},
      {"segments over datagrams", Work::kSegments, RailKind::kUdp},
      {"sums over datagrams", Work::kSums, RailKind::kUdp},
      {"uneven shares over streams", Work::kShares, RailKind::kTcp},
      {"uneven shares over datagrams", Work::kShares, RailKind::kUdp},
      {.name = "messages over rails made late",
       .work = Work::kMessages,
       .kind = RailKind::kTcp,
       .late = true},
      {.name = "uneven shares over rails made late",
       .work = Work::kShares,
       .kind = RailKind::kTcp,
       .late = true},
  };
}

}  // namespace slackline::model
