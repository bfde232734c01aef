// The settings that the model checker explores.
#pragma once

#include <vector>

#include "world.h"

namespace slackline::model {

inline std::vector<Setting> settings() {
  return {
      {"messages over streams", Work::kMessages, RailKind::kTcp},
      {"segments over streams", Work::kSegments, RailKind::kTcp},
      {"sums over streams", Work::kSums, RailKind::kTcp},
      {"messages over datagrams", Work::kMessages, RailKind::kUdp},
      {"segments over datagrams", Work::kSegments, RailKind::kUdp},
      {"sums over datagrams", Work::kSums, RailKind::kUdp},
  };
}

}  // namespace slackline::model
