// Rings of hosts by flows: a host's part of one step is one flow, whatever frames it consists of.
#pragma once

#include <cstdint>
#include <vector>

#include "clock.h"

namespace slackline::sim {

// The times of one host, in picoseconds. Chunks of all ranks of the host make up a flow.
struct FlowHost {
  Time begin;        // the first segments of the host's own sums are ready
  Time begin_last;   // ... and the last ones
  Time step;         // its port sends or receives the flow of a step
  Time head;         // its port sends or receives the first segments, or the last ones
  Time switched;     // its port receives what the switch has stored before it forwards the rest
  Time latency;      // of the cable
  Time add;          // from the arrival of a segment until the sum can be sent
  Time copy;         // from the arrival of a segment until its copy can be sent
  Time cores_add;    // its cores work on the flow of a step that is added
  Time cores_copy;   // ... and of one that is copied
  Time spread;       // its memory spreads the flow of a step within the host
  Time spread_last;  // from the end of that until every rank has the last segment
};

// Return the time at which each host has the whole result of an all_reduce round the ring of hosts:
// hosts - 1 steps that add, then as many that copy. Host i sends to host i + 1.
std::vector<Time> ring_flows(const std::vector<FlowHost>& hosts);

// The same for so many hosts that are all like `host`.
Time ring_flows_alike(const FlowHost& host, std::uint32_t hosts);

}  // namespace slackline::sim
