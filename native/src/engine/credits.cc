#include "credits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "group.h"
#include "link.h"
#include "segments.h"

namespace slackline {

std::uint64_t Credits::eager_bytes(const Request& request) const {
  return request.aggregated ? std::min(options_.eager_bytes, kLeastServiceWindow)
                            : options_.eager_bytes;
}

void Credits::promise(Request& request) const {
  std::vector<std::uint64_t> incoming(request.flows.size(), 0);
  for (const Chunk& chunk : request.chunks) {
    for (const Step& step : chunk.step_list->steps) {
      if (step.opcode == Opcode::kReduceAll) continue;
      if (Link* link = request.group->links[step.peer]) link->want();
      if (step.opcode == Opcode::kSend) continue;
      const std::uint64_t bytes =
          chunk.count *
          (step.opcode == Opcode::kAdd && request.wide ? sizeof(float) : request.item_size);
      incoming[step.peer] += bytes;
      if (step.opcode == Opcode::kBuffer) request.flows[step.peer].buffered += bytes;
    }
  }
  const std::uint64_t eager = eager_bytes(request);
  for (std::size_t peer = 0; peer < incoming.size(); ++peer) {
    request.flows[peer].incoming = incoming[peer];
    Link* link = request.group->links[peer];
    if (link == nullptr || !link->port().rules().grants || incoming[peer] <= eager) continue;
    // Grant everything if the onset threshold exceeds the segments that fit into the smallest
    // window. The threshold would otherwise never be reached.
    const bool held_back = request.onset > kGatedSegments;
    request.flows[peer].promised =
        held_back ? kUnlimited : std::max(promise_of(request, static_cast<int>(peer), 0), eager);
    link->grant(request, static_cast<int>(peer));
  }
}

void Credits::answer(Request& request, int peer, std::uint64_t sent) const {
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  if (std::exchange(flow.answered, true)) return;
  if (flow.promised == 0) flow.promised = promise_of(request, peer, sent);
  request.group->links[static_cast<std::size_t>(peer)]->grant(request, peer);
}

// Return the number of bytes of a peer's data that may wait here until a REDUCE_ALL consumes them.
std::uint64_t Credits::window_of(const Request& request, int peer) const {
  if (!request.group->aggregator) return kWindowSegments * options_.wire_segment_bytes;
  const auto since =
      static_cast<double>(std::max(clock_.now() - request.posted_ns, kServiceWindowNs));
  const auto consumed = static_cast<double>(request.flows[static_cast<std::size_t>(peer)].consumed);
  const auto brought = static_cast<std::uint64_t>(consumed * (kServiceWindowNs / since));
  return std::clamp(brought, kLeastServiceWindow, kMostServiceWindow);
}

// Return the bytes that the peer may send in all, if `from` bytes have left its side or our buffers
// already. The limit ends when the rest of the bytes that wait for a REDUCE_ALL fits into the
// window: nothing else of the operation has to wait here.
std::uint64_t Credits::promise_of(const Request& request, int peer, std::uint64_t from) const {
  const PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  const std::uint64_t window = window_of(request, peer);
  return flow.buffered - flow.reduced <= window ? kUnlimited : from + window;
}

void Credits::renew(Request& request, int peer) const {
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  if (flow.buffered == 0 || flow.promised == 0 || flow.promised == kUnlimited) return;
  const std::uint64_t promise = promise_of(request, peer, flow.consumed);
  if (promise != kUnlimited && flow.promised >= promise - window_of(request, peer) / 4) return;
  flow.promised = promise;
  request.group->links[static_cast<std::size_t>(peer)]->grant(request, peer);
}

}  // namespace slackline
