// The engine's calls about rails (paths to a peer): adding and closing them, injecting faults, and
// reporting their state.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "../rail/far.h"
#include "../rail/stream.h"
#include "../rail/udp.h"
#include "clock.h"
#include "engine_impl.h"

namespace slackline {
namespace {

const char* name_of(RailKind kind) { return kind == RailKind::kTcp ? "tcp" : "udp"; }

}  // namespace

void Engine::add_rail(int link, int rail, RailKind kind, int fd, std::uint32_t job, bool checksums,
                      std::string name, std::size_t most_packet_bytes) {
  const Lock lock = lock_for_post();
  std::unique_ptr<WireRail> wire;
  if (kind == RailKind::kTcp) {
    wire = std::make_unique<StreamRail>(fd, job, checksums, leaves_host(fd));
  } else {
    wire = std::make_unique<UdpRail>(fd, job, most_packet_bytes);
  }
  if (links_.empty()) return;  // the engine is closed; the rail has closed the descriptor
  Link& target = *links_.at(static_cast<std::size_t>(link));
  if (target.down) return;
  watch_fd(fd, rail_token(link, rail), false);
  ++wire_rails_;
  if (wire->far()) ++far_rails_;
  target.add_rail(rail, name.empty() ? name_of(kind) : std::move(name), std::move(wire));
  wake();
}

void Engine::drop_rail(int link, int rail, const std::string& reason) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  Link& target = *links_.at(static_cast<std::size_t>(link));
  LinkRail* found = target.rail(rail);
  if (found == nullptr) return;  // the rail has already gone
  found->wire->give_up(reason);
  if (target.reap()) link_lost(target);
  wake();
}

void Engine::unreachable(int link, const std::string& reason) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  Link& target = *links_.at(static_cast<std::size_t>(link));
  if (target.give_up(reason)) link_lost(target);
  wake();
}

void Engine::set_fault(int link, int rail, const std::optional<FaultState>& state) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  Link& target = *links_.at(static_cast<std::size_t>(link));
  if (target.shm() != nullptr) target.shm()->inject(state);
  for (auto& each : target.rails()) {
    if (rail < 0 || each->index == rail) each->wire->inject(state);
  }
  mark_dirty(target);
  wake();
}

void Engine::announce(const Link& link, int rail, const char* what, std::string reason) {
  events_.push_back(RailEvent{link.index(), rail, what, std::move(reason), now_ns()});
  event_.notify_one();
}

std::optional<RailEvent> Engine::next_event() {
  check_process();
  Lock lock(mutex_);
  event_.wait(lock, [this] { return !events_.empty() || stopped_; });
  if (events_.empty()) return std::nullopt;
  RailEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::vector<RailStatus> Engine::rails() {
  const Lock lock = lock_for_post();
  std::vector<RailStatus> all;
  for (auto& link : links_) {
    if (link->down) continue;
    if (ShmRail* shm = link->shm()) {
      RailStatus& status = all.emplace_back();
      status.link = link->index();
      status.kind = status.name = "shm";
      status.counters.frames_sent = shm->frames_sent;
      status.counters.frames_received = shm->frames_received;
    }
    for (const auto& rail : link->rails()) {
      RailStatus& status = all.emplace_back();
      status.link = link->index();
      status.rail = rail->index;
      status.kind = name_of(rail->wire->kind());
      status.name = rail->name;
      if (rail->state == RailState::kSuspect) status.state = "suspect";
      status.counters = rail->wire->counters();
      status.frames_resent = rail->frames_resent;
      status.queued_bytes = rail->wire->queued_bytes();
      status.unconfirmed_bytes = rail->last.unconfirmed;
      status.confirmed_bytes = rail->confirmed_bytes;
      status.busy_ns = rail->busy_ns;
      status.round_trip_ns = rail->last.round_trip_ns;
      status.probes.assign(rail->probes.begin(), rail->probes.end());
      status.probe_count = rail->probe_count;
    }
  }
  return all;
}

std::map<std::string, std::uint64_t> Engine::counters() {
  const Lock lock = lock_for_post();
  return last_counters_.empty() ? count() : last_counters_;
}

std::map<std::string, std::uint64_t> Engine::count() {
  std::map<std::string, std::uint64_t> c{{"operations", operations_},
                                         {"bytes_reduced", bytes_reduced_},
                                         {"sleeps", sleeps_},
                                         {"device_frames_taken", device_frames_taken_},
                                         {"device_frames_given", device_frames_given_},
                                         {"arena_bytes", arena_.used()},
                                         {"slots", slots_.size()}};
  for (auto& link : links_) {
    c["frames_resent"] += link->counters.frames_resent;
    c["duplicates_dropped"] += link->counters.duplicates_dropped;
    c["rails_lost"] += link->counters.rails_lost;
    c["rails_suspected"] += link->counters.rails_suspected;
    c["rails_restored"] += link->counters.rails_restored;
    c["shm_reference_bytes"] += link->counters.reference_bytes;
    c["shm_staged_bytes"] += link->counters.staged_bytes;
    c["shm_inline_bytes"] += link->counters.inline_bytes;
    c["wire_payload_bytes"] += link->counters.wire_payload_bytes;
    if (link->shm() != nullptr) {
      c["shm_links"] += 1;
      c["shm_frames_sent"] += link->shm()->frames_sent;
      c["shm_frames_received"] += link->shm()->frames_received;
      c["shm_wakeups"] += link->shm()->wakeups;
    }
    for (const auto& rail : link->rails()) {
      const RailCounters& counted = rail->wire->counters();
      const std::string kind = name_of(rail->wire->kind());
      c[kind + "_rails"] += 1;
      c[kind + "_bytes_sent"] += counted.bytes_sent;
      c[kind + "_bytes_received"] += counted.bytes_received;
      c[kind + "_frames_sent"] += counted.frames_sent;
      c[kind + "_frames_received"] += counted.frames_received;
      c[kind + "_system_calls"] += counted.system_calls;
    }
  }
  return c;
}

}  // namespace slackline
