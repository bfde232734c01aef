#include "rail_events.h"

#include <utility>

#include "../base/renew.h"
#include "../base/wait.h"
#include "link.h"

namespace slackline {

void RailEvents::announce(const Link& link, int rail, const char* what, std::string reason) {
  events_.push_back(RailEvent{link.index(), rail, what, std::move(reason), clock_.now()});
  event_.notify_one();
}

std::optional<RailEvent> RailEvents::next(std::unique_lock<std::mutex>& lock, const bool& ended) {
  wait_on(event_, lock, [&] { return !events_.empty() || ended; });
  if (events_.empty()) return std::nullopt;
  RailEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void RailEvents::forget_readers() { renew(event_); }

}  // namespace slackline
