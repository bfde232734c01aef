// The BYE frames of one peer.
#pragma once

#include <list>
#include <optional>

#include "port.h"
#include "slackline/wire.h"

namespace slackline {

// A BYE may overtake frames that were sent before it when it travels over another connection. It
// waits here until all of them have arrived.
class Byes {
 public:
  void keep(const wire::Header& header) { waiting_.push_back(header); }
  // Remove and return the first BYE if all frames before it have arrived over `port`.
  std::optional<wire::Header> take_due(const Port& port) {
    if (waiting_.empty() || !port.all_before(waiting_.front().sequence)) return std::nullopt;
    const wire::Header bye = waiting_.front();
    waiting_.pop_front();
    return bye;
  }

 private:
  std::list<wire::Header> waiting_;
};

}  // namespace slackline
