#include "asks.h"

#include "group.h"
#include "headers.h"
#include "link.h"

namespace slackline {

void Asks::ask(Request& request, int peer) {
  PeerFlow& flow = request.flows[static_cast<std::size_t>(peer)];
  if (flow.asked || flow.asks) return;
  if (under_way_ >= kMost) {
    flow.asked = true;
    waiting_.emplace_back(request.weak_from_this(), peer);
    return;
  }
  flow.asked = flow.asks = true;
  ++under_way_;
  wire::Header header = header_for(request, wire::FrameKind::kGrant);
  header.flags |= wire::kFlagEager;
  header.total = total_for(request);
  header.offset = flow.sent;
  link_.control(header);
}

void Asks::over() {
  --under_way_;
  while (under_way_ < kMost && !waiting_.empty()) {
    const auto [waiting, peer] = std::move(waiting_.front());
    waiting_.pop_front();
    const std::shared_ptr<Request> request = waiting.lock();
    // An operation that waited to request a grant may have ended, or may now run without this link.
    if (!request || request->finished() || request->group->rank_of(link_) != peer) continue;
    request->flows[static_cast<std::size_t>(peer)].asked = false;
    ask(*request, peer);
  }
}

}  // namespace slackline
