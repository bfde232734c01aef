#include "links.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "../base/clock.h"
#include "../base/renew.h"
#include "../base/wait.h"

namespace slackline {
namespace {

constexpr std::int64_t kProbeNs = 50'000'000;
constexpr std::int64_t kSlowestProbeNs = 500'000'000;
constexpr int kProbedRails = 8;

// Add the counts of a rail to the counts of all rails of its kind.
void add_counts(Links::Counters& counts, const RailStatus& rail) {
  const RailCounters& counted = rail.counters;
  counts[rail.kind + "_frames_sent"] += counted.frames_sent;
  counts[rail.kind + "_frames_received"] += counted.frames_received;
  if (rail.kind == "shm") return;
  counts[rail.kind + "_bytes_sent"] += counted.bytes_sent;
  counts[rail.kind + "_bytes_received"] += counted.bytes_received;
  counts[rail.kind + "_system_calls"] += counted.system_calls;
}

}  // namespace

int Links::add(Engine& engine, std::string name, bool reconnect, std::uint32_t first_sequence,
               bool shared) {
  const int number = static_cast<int>(links_.size());
  // With room for all links, a link can be marked where there is no memory left.
  for (std::vector<Link*>* each : {&made_, &dirty_, &taken_dirty_}) {
    if (each->capacity() <= links_.size()) each->reserve(2 * links_.size() + 1);
  }
  links_.push_back(std::make_unique<Link>(engine, *this, number, std::move(name), reconnect,
                                          first_sequence, shared));
  return number;
}

bool Links::idle() const {
  return std::ranges::all_of(links_, [](const auto& link) { return link->down || link->idle(); });
}

void Links::clear() {
  made_.clear();
  dirty_.clear();
  links_.clear();
}

void Links::leave_to_parent() {
  renew(event_);
  for (const auto& link : links_) link->leave_to_parent();
  new std::vector<std::unique_ptr<Link>>(std::move(links_));
}

void Links::mark_dirty(Link& link) noexcept {
  if (std::ranges::find(dirty_, &link) == dirty_.end()) dirty_.push_back(&link);
}

void Links::rail_added(const Link& link, int rail, const WireRail& wire) {
  loop_.watch_rail(wire.fd(), link.index(), rail);
  ++wire_rails_;
  if (wire.far()) ++far_rails_;
}

void Links::rail_removed(const WireRail& wire) {
  loop_.unwatch(wire.fd());
  --wire_rails_;
  if (wire.far()) --far_rails_;
}

void Links::watch_room(const Link& link) {
  for (const auto& rail : link.rails()) {
    WireRail& wire = *rail->wire;
    if (wire.blocked() == wire.armed_for_write) continue;
    wire.armed_for_write = wire.blocked();
    loop_.watch_room(wire.fd(), link.index(), rail->index, wire.blocked());
  }
}

std::int64_t Links::probe_pause_ns() const {
  return std::clamp(kProbeNs * wire_rails_ / kProbedRails, kProbeNs, kSlowestProbeNs);
}

std::int64_t Links::due_ns(const Link& link, std::int64_t now_ns, bool probing) {
  if (link.down) return WireRail::kNever;
  std::int64_t due = link.watch_due_ns(now_ns, probing);
  if (link.shm() != nullptr) due = std::min(due, link.shm()->due_ns());
  for (const auto& rail : link.rails()) due = std::min(due, rail->wire->due_ns());
  return due;
}

std::int64_t Links::due_ns(std::int64_t now_ns, bool probing) const {
  std::int64_t due = WireRail::kNever;
  for (const Link* link : made_) due = std::min(due, due_ns(*link, now_ns, probing));
  return due;
}

void Links::announce(const Link& link, int rail, const char* what, std::string reason) {
  events_.push_back(RailEvent{link.index(), rail, what, std::move(reason), now_ns()});
  event_.notify_one();
}

std::optional<RailEvent> Links::next_event(std::unique_lock<std::mutex>& lock, const bool& ended) {
  wait_on(event_, lock, [&] { return !events_.empty() || ended; });
  if (events_.empty()) return std::nullopt;
  RailEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::vector<RailStatus> Links::rails() const {
  std::vector<RailStatus> all;
  for (const auto& link : links_) {
    if (!link->made()) continue;
    std::ranges::move(link->rails_in_use(), std::back_inserter(all));
    if (!link->down) continue;
    for (const auto& [index, status] : link->ended()) all.push_back(status);
  }
  return all;
}

void Links::count(Counters& counters) const {
  for (const Link* link : made_) {
    counters["frames_resent"] += link->counters.frames_resent;
    counters["duplicates_dropped"] += link->counters.duplicates_dropped;
    counters["rails_lost"] += link->counters.rails_lost;
    counters["rails_suspected"] += link->counters.rails_suspected;
    counters["rails_restored"] += link->counters.rails_restored;
    counters["shm_reference_bytes"] += link->counters.reference_bytes;
    counters["shm_staged_bytes"] += link->counters.staged_bytes;
    counters["shm_inline_bytes"] += link->counters.inline_bytes;
    counters["wire_payload_bytes"] += link->counters.wire_payload_bytes;
    counters["shm_wakeups"] += link->counters.shm_wakeups;
    if (link->shm() != nullptr) {
      counters["shm_links"] += 1;
      counters["shm_wakeups"] += link->shm()->wakeups;
    }
    for (const auto& rail : link->rails())
      counters[std::string(name_of(rail->wire->kind())) + "_rails"] += 1;
    for (const RailStatus& rail : link->rails_in_use()) add_counts(counters, rail);
    for (const auto& [index, rail] : link->ended()) add_counts(counters, rail);
  }
}

}  // namespace slackline
