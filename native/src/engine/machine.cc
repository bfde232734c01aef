#include "machine.h"

#include <algorithm>

#include "link.h"

namespace slackline {
namespace {

constexpr std::int64_t kWatchNs = 5'000'000;
constexpr std::int64_t kDeadlineCheckNs = 10'000'000;

}  // namespace

Machine::Machine(const EngineOptions& options, OperationLog& log)
    : memory_(options),
      sleep_(memory_.arena()),
      tables_(log),
      driver_(options, clock_, sleep_, *this),
      links_({clock_, memory_, sleep_, tables_.operations}),
      endings_({clock_, memory_, links_, tables_.membership, tables_.operations, tables_.inbox,
                tables_.reports, tables_.completions, driver_}),
      executor_({options, clock_, memory_, links_, tables_.operations, tables_.inbox,
                 tables_.reports, endings_, driver_}),
      groups_({clock_, memory_, links_, tables_.membership, tables_.operations, tables_.inbox,
               tables_.reports, endings_}),
      arrivals_({clock_, memory_, links_, tables_.membership, tables_.inbox, executor_, groups_,
                 driver_}) {
  rounds_.events.reserve(EventLoop::kMostEvents);
}

Link::Uses Machine::link_uses() {
  return {clock_, memory_, links_, executor_, endings_, tables_.membership, arrivals_};
}

bool Machine::work() noexcept try {
  clock_.begin_step();
  bool any = executor_.start_queued();
  const bool ask_which = links_.watch().many_rails();
  if (!sleep_.reported().empty()) {
    any = serve(sleep_.reported()) || any;
    sleep_.reported().clear();
  } else if (ask_which) {
    any = (sleep_.loop().wait(rounds_.events, 0) && serve(rounds_.events)) || any;
  }
  for (std::size_t i = 0; i < links_.made().size(); ++i) {
    Link& link = *links_.made()[i];
    if (link.down) continue;
    clock_.begin_step();
    any = link.port().serve(!ask_which) || any;
    if (!link.port().broken() || !link.reap()) continue;
    groups_.lost(link);
    any = true;
  }
  clock_.begin_step();
  links_.send();
  const std::int64_t now = clock_.next();
  if (now - rounds_.watched_ns > kWatchNs) watch();
  if (now - rounds_.checked_ns > kDeadlineCheckNs) {
    rounds_.checked_ns = now;
    groups_.end_late();
    links_.send();
  }
  return any;
} catch (const std::exception& error) {
  endings_.broke_down(error);  // no caller could catch the exception on the progress thread
  return true;
}

// Serve the rails that epoll reported. Events of doorbells and of control sockets are left to
// woken().
bool Machine::serve(std::span<const LoopEvent> events) {
  bool any = false;
  for (const LoopEvent& event : events) {
    if (event.source != LoopEvent::Source::kRail) continue;
    Link* link = links_.find(event.link);
    if (link != nullptr && !link->down) any = link->port().serve(event) || any;
  }
  return any;
}

void Machine::watch() {
  rounds_.watched_ns = clock_.now();
  groups_.end_told_losses();
  const bool asking = tables_.operations.any_open();
  for (Link* link : links_.made()) {
    if (link->down) continue;
    link->port().watch(asking);
    if (link->reap()) groups_.lost(*link);
  }
  for (const auto& [epoch, group] : tables_.membership.groups()) {
    for (const auto& role : group->roles) role->watch();
  }
  if (!memory_.loans().empty()) memory_.loans().collect();
  links_.send();
}

bool Machine::queued() const { return tables_.operations.any_queued() || links_.any_dirty(); }

bool Machine::ready_to_sleep() {
  const bool ready = links_.ready_to_sleep();
  return ready && !tables_.operations.any_queued();
}

std::int64_t Machine::due_ns() const {
  return std::min(
      {tables_.operations.next_deadline_ns(), groups_.next_told_loss_ns(), links_.due_ns()});
}

void Machine::woken(bool in_time) {
  if (!in_time) rounds_.checked_ns = rounds_.watched_ns = 0;
  for (const LoopEvent& event : sleep_.ended_by()) {
    if (event.source != LoopEvent::Source::kControl) continue;
    Link* link = links_.find(event.link);
    if (link == nullptr || link->down) continue;  // another thread has noticed the peer's end
    link->port().drain();                         // what was written before the end comes first
    if (link->reap()) groups_.lost(*link);
  }
  sleep_.report();
}

}  // namespace slackline
