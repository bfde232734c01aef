#include "flows.h"

#include <algorithm>

namespace slackline::sim {
namespace {

// The times of one host in one step of the ring.
struct State {
  Time head_ready;    // when the first segments of the next step can be sent
  Time tail_ready;    // when the last segments of the next step can be sent
  Time begun, ended;  // when the host's port begins and ends sending the flow of this step
  Time received;      // when the port has received the flow of the previous step
  Time worked;        // when the cores have processed the flow of the previous step
  Time spread;        // when the ranks of the host have copies of the flow of the previous step
};

State first(const FlowHost& host) {
  return State{host.begin, host.begin_last, 0, 0, 0, host.begin, host.begin_last};
}

void send(const FlowHost& host, State& state) {
  state.begun = std::max(state.head_ready, state.ended);
  state.ended = std::max(after(state.begun, host.step), after(state.tail_ready, host.head));
}

// Update a host's times by the flow that the host `from` sends in this step. `adds` is true if the
// flow is added to the host's data, `whole` if the flow is part of the result.
void take(const FlowHost& from, const State& source, const FlowHost& host, State& state, bool adds,
          bool whole) {
  const Time way = after(after(from.latency, host.latency), host.switched);
  const Time head = after(after(source.begun, std::max(from.head, host.head)), way);
  const Time port = after(source.begun, after(from.latency, from.switched));
  state.received = std::max(after(std::max(port, state.received), host.step),
                            after(source.ended, after(from.latency, host.switched)));
  const Time tail = after(state.received, host.latency);
  const Time work = adds ? host.add : host.copy;
  state.head_ready = std::max(after(head, work), after(state.worked, work));
  state.worked =
      std::max(after(state.worked, adds ? host.cores_add : host.cores_copy), after(tail, work));
  state.tail_ready = std::max(state.worked, host.begin_last);
  if (whole)
    state.spread =
        std::max(after(state.spread, host.spread), after(state.tail_ready, host.spread_last));
}

Time end(const State& state) { return std::max({state.ended, state.spread, state.tail_ready}); }

}  // namespace

std::vector<Time> ring_flows(const std::vector<FlowHost>& hosts) {
  const std::size_t count = hosts.size();
  std::vector<State> states;
  for (const FlowHost& host : hosts) states.push_back(first(host));
  for (std::size_t step = 1; step + 1 < 2 * count; ++step) {
    for (std::size_t host = 0; host < count; ++host) send(hosts[host], states[host]);
    const bool adds = step < count, whole = step + 1 >= count;
    for (std::size_t host = 0; host < count; ++host) {
      const std::size_t before = host == 0 ? count - 1 : host - 1;
      take(hosts[before], states[before], hosts[host], states[host], adds, whole);
    }
  }
  std::vector<Time> ends;
  for (const State& state : states) ends.push_back(end(state));
  return ends;
}

Time ring_flows_alike(const FlowHost& host, std::uint32_t hosts) {
  State state = first(host);
  for (std::uint64_t step = 1; step + 1 < 2 * std::uint64_t{hosts}; ++step) {
    send(host, state);
    const State sent = state;
    take(host, sent, host, state, step < hosts, step + 1 >= hosts);
  }
  return end(state);
}

}  // namespace slackline::sim
