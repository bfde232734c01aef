#include "links.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

namespace slackline {
namespace {

// Limit of rounds of one send(), so that other links are read meanwhile.
constexpr int kMostRounds = 64;

constexpr std::array kCounts = {"frames_resent",    "duplicates_dropped", "rails_lost",
                                "rails_suspected",  "rails_restored",     "shm_reference_bytes",
                                "shm_staged_bytes", "shm_inline_bytes",   "wire_payload_bytes",
                                "shm_wakeups"};

// Add the counts of a rail to the counts of all rails of its kind.
void add_counts(Port::Counts& counts, const RailStatus& rail) {
  const RailCounters& counted = rail.counters;
  counts[rail.kind + "_frames_sent"] += counted.frames_sent;
  counts[rail.kind + "_frames_received"] += counted.frames_received;
  if (rail.kind == "shm") return;
  counts[rail.kind + "_bytes_sent"] += counted.bytes_sent;
  counts[rail.kind + "_bytes_received"] += counted.bytes_received;
  counts[rail.kind + "_system_calls"] += counted.system_calls;
}

void add_counts(Port::Counts& counts, const Link& link) {
  link.port().count(counts);
  for (const RailStatus& rail : link.port().rails()) add_counts(counts, rail);
  for (const RailStatus& rail : link.port().ended_rails()) add_counts(counts, rail);
}

}  // namespace

int Links::add(const Link::Uses& uses, std::string name, const LinkOptions& options) {
  make_room();
  links_.emplace(added_, std::make_unique<Link>(uses, added_, std::move(name), options));
  return added_++;
}

// With room for all links, a link can be marked where there is no memory left.
void Links::make_room() {
  for (std::vector<Link*>* each : {&made_, &dirty_, &taken_dirty_}) {
    if (each->capacity() <= links_.size()) each->reserve(2 * links_.size() + 1);
  }
}

Link* Links::find(int number) const {
  const auto found = links_.find(number);
  if (found != links_.end()) return found->second.get();
  if (number < 0 || number >= added_)
    throw std::out_of_range("no link has had the number " + std::to_string(number));
  return nullptr;
}

Link& Links::find_or_renew(int number, const Link::Uses& uses) {
  if (Link* found = find(number)) return *found;
  make_room();
  auto link = std::make_unique<Link>(uses, number, "an engine that has left", LinkOptions{});
  link->forget("its link ended before the group opened");
  return *links_.emplace(number, std::move(link)).first->second;
}

void Links::remove_ended(const std::function<bool(Link&)>& used) {
  for (auto entry = links_.begin(); entry != links_.end();) {
    Link& link = *entry->second;
    if (!link.down || used(link)) {
      ++entry;
      continue;
    }
    if (link.made()) add_counts(removed_, link);
    for (std::vector<Link*>* each : {&made_, &dirty_, &taken_dirty_}) std::erase(*each, &link);
    entry = links_.erase(entry);
  }
}

bool Links::idle() const {
  return std::ranges::all_of(
      links_, [](const auto& entry) { return entry.second->down || entry.second->idle(); });
}

void Links::clear() {
  made_.clear();
  dirty_.clear();
  links_.clear();
}

void Links::leave_to_parent() {
  events_.forget_readers();
  for (const auto& [number, link] : links_) link->port().leave_to_parent();
  new std::map<int, std::unique_ptr<Link>>(std::move(links_));
}

void Links::mark_dirty(Link& link) noexcept {
  if (std::ranges::find(dirty_, &link) == dirty_.end()) dirty_.push_back(&link);
}

std::int64_t Links::due_of(const Link& link) const {
  return link.down ? WireRail::kNever : link.port().due_ns(uses_.operations.any_open());
}

std::int64_t Links::due_ns() const {
  std::int64_t due = WireRail::kNever;
  for (const Link* link : made_) due = std::min(due, due_of(*link));
  return due;
}

void Links::send() try {
  std::int64_t due = WireRail::kNever;
  // Sending on one link may let other links send (by a freed slot or a finished operation).
  for (int rounds = 0; any_dirty() && rounds < kMostRounds; ++rounds) {
    const std::vector<Link*>& links = take_dirty();
    for (Link* link : links) link->pump();
    for (Link* link : links) {
      if (!link->down) link->port().flush();
    }
    // A thread that queries epoll, or sleeps already, does not know that a socket has just become
    // full, so epoll must watch the socket from now on.
    if (uses_.sleep.asleep() || watch_.many_rails()) {
      for (Link* link : links) link->port().ready_to_sleep();
    }
    if (uses_.sleep.asleep()) {
      for (const Link* link : links) due = std::min(due, due_of(*link));
    }
  }
  // The sleeping thread knows only the timers that existed when it fell asleep.
  if (uses_.sleep.asleep() && (any_dirty() || due < uses_.sleep.until_ns()))
    uses_.sleep.loop().ring();
} catch (...) {
  // Frames still wait on the links after a lack of memory.
  for (Link* link : taken_dirty_) mark_dirty(*link);
  throw;
}

bool Links::ready_to_sleep() {
  bool ready = !any_dirty();
  for (Link* link : made_) ready = link->port().ready_to_sleep() && ready;
  return ready;
}

void Links::unmap(Link& link) { rings_.free(link.port().lender()->unmap()); }

std::vector<RailStatus> Links::rails() const {
  std::vector<RailStatus> all;
  for (const auto& [number, link] : links_) {
    if (!link->made()) continue;
    std::ranges::move(link->port().rails(), std::back_inserter(all));
    if (link->down) std::ranges::move(link->port().ended_rails(), std::back_inserter(all));
  }
  return all;
}

void Links::count(Port::Counts& counts) const {
  for (const char* name : kCounts) counts[name];  // each is there, with or without such a link
  for (const auto& [name, count] : removed_) counts[name] += count;
  for (const Link* link : made_) add_counts(counts, *link);
}

}  // namespace slackline
