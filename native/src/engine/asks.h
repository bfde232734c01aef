// The requests for grants that this engine sends to one peer.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <utility>

#include "request.h"

namespace slackline {

class Link;

// A limited number of operations has asked the peer at a time; the others wait here. All calls are
// made under the engine's lock.
class Asks {
 public:
  static constexpr std::size_t kMost = 4096;

  explicit Asks(Link& link) : link_(link) {}

  // Request a grant from the peer for an operation whose data must not be sent eagerly.
  void ask(Request& request, int peer);
  // Count a request for a grant as over: the peer has answered it, or its operation has ended.
  void over();

 private:
  Link& link_;
  std::size_t under_way_ = 0;
  std::list<std::pair<std::weak_ptr<Request>, int>> waiting_;  // with the peer's rank in its group
};

}  // namespace slackline
