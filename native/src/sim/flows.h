// The time of an all_reduce around a ring of hosts, computed from flows. A flow is all data that a
// host sends in one step; its frames are not simulated one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "clock.h"

namespace slackline::sim {

// The times of one host, in picoseconds: the first two are points in time, the others durations.
// The chunks of all ranks of the host make up a flow.
struct FlowHost {
  Time begin;        // when the first segments of the host's own sums are ready
  Time begin_last;   // when the last segments of the host's own sums are ready
  Time step;         // for the port to send or receive the flow of one step
  Time head;         // for the port to send or receive the first segments, or the last segments
  Time switched;     // for the port to receive the part of a frame that the switch stores
  Time latency;      // of the cable
  Time add;          // from the arrival of a segment until the sum can be sent
  Time copy;         // from the arrival of a segment until its copy can be sent
  Time cores_add;    // for the cores to add the flow of one step
  Time cores_copy;   // for the cores to copy the flow of one step
  Time spread;       // for the memory to copy the flow of one step to the ranks of the host
  Time spread_last;  // from the end of `spread` until every rank has the last segment
};

// Return the time at which each host has the whole result of an all_reduce around the ring of
// hosts: hosts - 1 steps that add, then hosts - 1 steps that copy. Host i sends to host i + 1.
std::vector<Time> ring_flows(const std::vector<FlowHost>& hosts);

// Return the time at which every host has the whole result, in a ring of `hosts` equal hosts.
Time ring_flows_alike(const FlowHost& host, std::uint32_t hosts);

}  // namespace slackline::sim
