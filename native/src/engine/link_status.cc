// The report on the rails of a link (its paths to the peer), including the rails that have ended.
#include <memory>
#include <utility>
#include <vector>

#include "link.h"
#include "rail_status.h"

namespace slackline {
namespace {

void add(RailCounters& sum, const RailCounters& more) {
  sum.bytes_sent += more.bytes_sent;
  sum.bytes_received += more.bytes_received;
  sum.frames_sent += more.frames_sent;
  sum.frames_received += more.frames_received;
  sum.packets_sent += more.packets_sent;
  sum.packets_resent += more.packets_resent;
  sum.packets_refused += more.packets_refused;
  sum.system_calls += more.system_calls;
}

}  // namespace

const char* name_of(RailKind kind) { return kind == RailKind::kTcp ? "tcp" : "udp"; }

RailStatus Link::status_of(const ShmRail& shm) const {
  RailStatus status;
  status.link = index_;
  status.kind = status.name = "shm";
  status.state = down ? "ended" : "up";
  status.counters.frames_sent = shm.frames_sent;
  status.counters.frames_received = shm.frames_received;
  return status;
}

RailStatus Link::status_of(const LinkRail& rail) const {
  RailStatus status;
  status.link = index_;
  status.rail = rail.index;
  status.kind = name_of(rail.wire->kind());
  status.name = rail.name;
  if (rail.state == RailState::kSuspect) status.state = "suspect";
  status.counters = rail.wire->counters();
  status.frames_resent = rail.frames_resent;
  status.queued_bytes = rail.wire->waiting_bytes();
  status.unconfirmed_bytes = rail.last.unconfirmed;
  status.confirmed_bytes = rail.confirmed_bytes;
  status.busy_ns = rail.busy_ns;
  status.round_trip_ns = rail.last.round_trip_ns;
  status.probes.assign(rail.probes.begin(), rail.probes.end());
  status.probe_count = rail.probe_count;
  return status;
}

std::vector<RailStatus> Link::rails_in_use() const {
  std::vector<RailStatus> all;
  if (shm_ != nullptr) all.push_back(status_of(*shm_));
  for (const auto& rail : rails_) all.push_back(status_of(*rail));
  return all;
}

// Remember the counts of a rail that ends. Rails of the same index count as one.
void Link::note_end(RailStatus ended) {
  ended.state = "ended";
  ended.queued_bytes = ended.unconfirmed_bytes = 0;
  ended.probes.clear();
  const auto before = ended_.find(ended.rail);
  if (before != ended_.end()) {
    add(ended.counters, before->second.counters);
    ended.frames_resent += before->second.frames_resent;
    ended.confirmed_bytes += before->second.confirmed_bytes;
    ended.busy_ns += before->second.busy_ns;
    ended.probe_count += before->second.probe_count;
  }
  ended_[ended.rail] = std::move(ended);
}

std::unique_ptr<ShmRail> Link::take_shm() {
  note_end(status_of(*shm_));
  counters.shm_wakeups += shm_->wakeups;
  return std::move(shm_);
}

}  // namespace slackline
