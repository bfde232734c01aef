#include "wire_port.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include "executor.h"
#include "headers.h"
#include "links.h"

namespace slackline {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
// Time after which a silent rail is closed. TCP retries a silent path at ever longer intervals, so
// a new connection notices a restored path sooner.
constexpr std::int64_t kLostNs = 1000 * kMillisecond;
constexpr std::int64_t kLostRoundTrips = 20;
constexpr std::int64_t kWatchRailsNs = 10 * kMillisecond;
constexpr std::int64_t kAliveNs = 1000 * kMillisecond;

std::string seconds(std::int64_t ns) {
  const std::int64_t tenths = (ns + 50 * kMillisecond) / (100 * kMillisecond);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

bool is_eager(std::uint16_t flags) { return (flags & wire::kFlagEager) != 0; }

}  // namespace

const Port::Rules& WirePort::rules() const {
  static constexpr Rules kRules{true, false, std::numeric_limits<std::uint32_t>::max()};
  return kRules;
}

void WirePort::add_rail(int index, std::string name, std::unique_ptr<WireRail> wire) {
  LinkRail* old = rail(index);
  LinkRail& rail = channel_.rails().add(index, std::move(name), std::move(wire));
  if (old != nullptr) {
    old->wire->give_up("replaced by a new one");
    link_.reap();
  }
  if (channel_.counters().rails_lost > 0) {
    RailSet::begin_slowly(rail);
    ++channel_.counters().rails_restored;
  }
  if (!channel_.condemned().empty()) rail.wire->give_up(channel_.condemned());
  if (channel_.counters().rails_lost > 0 || channel_.counters().rails_suspected > 0 ||
      link_.said_bye)
    channel_.place_frames();
  uses_.links.events().announce(link_, rail.index, "up", rail.name);
  link_.connected();
}

// --- sending

Port::Outcome WirePort::send(const SendItem& item, wire::Header& header, const std::byte* data,
                             std::size_t bytes) {
  Request& request = *item.request;
  PeerFlow& flow = request.flows[item.step->peer];
  if (!flow.credit_blocked.empty()) return Outcome::kBlocked;
  bool eager = false;
  if (flow.sent + bytes > flow.granted || flow.granted == 0) {
    eager = flow.granted == 0 &&
            flow.sent + bytes <= uses_.executor.credits().eager_bytes(request) &&
            eager_.may_send(bytes);
    if (!eager) {
      link_.asks().ask(request, item.step->peer);
      return Outcome::kBlocked;
    }
  }
  LinkRail* rail = channel_.full() ? nullptr : channel_.rails().pick(uses_.clock.now());
  if (rail == nullptr) return Outcome::kNoRoom;
  if (eager) {
    header.flags |= wire::kFlagEager;
    eager_.send(bytes);
  }
  flow.sent += bytes;
  request.rails |= rail_bit(rail->index);
  channel_.counters().payload_bytes += bytes;
  const auto length = static_cast<std::uint32_t>(bytes);
  // An operation of an aggregator ends only when every worker has acknowledged the result.
  const bool awaited = length > Channel::kCopiedBytes || (length > 0 && request.group->aggregator);
  if (request.priority > 0) rail->wire->expect_urgent();
  if (awaited && !item.step->copied)
    channel_.lend(*rail, header, data, length, item.request);
  else
    channel_.copy(*rail, header, data, length, item.request);
  return Outcome::kSent;
}

bool WirePort::control(wire::Header header, const std::string& text) {
  LinkRail* rail = any_rail();
  if (rail == nullptr) return !reconnect_;  // without a new rail the frame is not needed any more
  channel_.copy(*rail, header, reinterpret_cast<const std::byte*>(text.data()),
                static_cast<std::uint32_t>(text.size()), nullptr);
  return true;
}

bool WirePort::make_room() {
  for (auto& rail : channel_.rails().all()) rail->wire->flush(uses_.clock.now());
  return !channel_.full() && channel_.rails().pick(uses_.clock.now()) != nullptr;
}

// Send what the rails hold, with the acknowledgement that is due, if any: in one burst.
void WirePort::push() {
  if (channel_.rails().empty()) return;
  if (channel_.must_acknowledge()) control(blank_header(wire::FrameKind::kAck), {});
  for (auto& rail : channel_.rails().all()) rail->wire->flush(uses_.clock.now());
}

void WirePort::flush() {
  push();
  channel_.note_departures();
}

void WirePort::stop_writing(const Request& request) {
  for (auto& rail : channel_.rails().all()) rail->wire->forget(&request, uses_.sink);
}

void WirePort::forget(const Request& request) {
  stop_writing(request);
  channel_.forget(request);
}

// --- receiving

bool WirePort::begins(const wire::Header& header) {
  if (header.acknowledge != 0) channel_.acknowledged(header.acknowledge);
  return channel_.is_new(header.sequence);
}

bool WirePort::admit(const wire::Header& header) {
  if (header.acknowledge != 0) channel_.acknowledged(header.acknowledge);
  if (!channel_.condemned().empty() || !channel_.may_come(header) ||
      !channel_.admit(header.sequence))
    return false;
  channel_.note_payload(header.length);
  return true;
}

void WirePort::handled(bool more_comes) {
  if (!more_comes) channel_.acknowledge_owed();
}

void WirePort::note(const wire::Header& header) {
  if (header.kind == static_cast<std::uint8_t>(wire::FrameKind::kCredit))
    eager_.credit(header.offset);
  else if (header.kind == static_cast<std::uint8_t>(wire::FrameKind::kProbe))
    on_probe(header);
}

bool WirePort::all_before(std::uint32_t sequence) const {
  return sequence == 0 || static_cast<std::int32_t>(sequence - channel_.numbers().expected) < 0;
}

void WirePort::arrived_early(std::uint16_t flags, std::uint64_t bytes) {
  if (!is_eager(flags)) return;
  if (const std::optional<std::uint64_t> waiting = eager_.arrive(bytes))
    channel_.condemn("it sent " + std::to_string(*waiting) +
                     " bytes, headers included, that nothing had asked for: " +
                     std::to_string(EagerBytes::kPool) + " may wait at a time");
}

void WirePort::consumed_early(std::uint16_t flags, std::uint64_t bytes) {
  if (!is_eager(flags)) return;
  const std::optional<std::uint64_t> total = eager_.consume(bytes);
  if (!total) return;
  wire::Header header = blank_header(wire::FrameKind::kCredit);
  header.offset = *total;
  link_.control(header);
}

// --- driving

bool WirePort::poll(LinkRail& rail) {
  const std::int64_t now = uses_.clock.next();
  if (!rail.wire->poll(link_, uses_.sink, now)) return false;
  link_.last_heard_ns = now;
  uses_.links.mark_dirty(link_);  // there may be room now
  return true;
}

bool WirePort::serve(bool all) {
  bool any = false;
  for (auto& rail : channel_.rails().all()) {
    WireRail& wire = *rail->wire;
    if ((all || wire.ending()) && !wire.failure()) any = poll(*rail) || any;
    if (wire.due_ns() != WireRail::kNever) {
      const std::int64_t now = uses_.clock.next();
      if (wire.due_ns() <= now) {
        wire.tick(now);
        uses_.links.mark_dirty(link_);
      }
    }
    if (all && wire.blocked()) {
      wire.writable();
      uses_.links.mark_dirty(link_);
    }
  }
  return any;
}

bool WirePort::serve(const LoopEvent& event) {
  LinkRail* found = rail(event.rail);
  if (found == nullptr) return false;
  if (event.writable) {
    found->wire->writable();
    uses_.links.mark_dirty(link_);
  }
  return event.readable && poll(*found);
}

void WirePort::drain() {
  for (auto& rail : channel_.rails().all()) {
    while (poll(*rail)) {
    }
  }
}

bool WirePort::broken() const {
  const auto& rails = channel_.rails().all();
  return (rails.empty() && !channel_.condemned().empty()) ||
         std::ranges::any_of(rails, [](const auto& rail) { return bool(rail->wire->failure()); });
}

void WirePort::watch(bool probing) {
  const std::int64_t now = uses_.clock.now();
  RailSet& rails = channel_.rails();
  for (auto& rail : rails.all()) {
    rail->last = rail->wire->confirmation(now);
    RailSet::measure(*rail, now, channel_.carries(*rail), link_.last_heard_ns);
  }
  for (auto& entry : rails.all()) {
    LinkRail& rail = *entry;
    const bool quiet = RailSet::silent(rail, now);
    const std::int64_t for_ns = now - rail.last.quiet_since_ns;
    const std::int64_t lost = std::max(kLostNs, kLostRoundTrips * rail.last.round_trip_ns);
    if (quiet && reconnect_ && rail.wire->kind() == RailKind::kTcp && for_ns > lost) {
      rail.wire->give_up("silent for " + seconds(for_ns));
      continue;
    }
    if (quiet && rail.state == RailState::kUp && rails.another_is_well(rail, now))
      suspect(rail, "silent for " + seconds(for_ns));
    // Unacknowledged frames also justify a probe: the reply to the probe acknowledges the frames,
    // and then no more monitoring is needed.
    const bool wanted =
        probing || !channel_.retained().empty() || rail.state == RailState::kSuspect;
    if (wanted && rail.probe_sent_ns == 0 && now >= rail.next_probe_ns) probe(rail);
  }
}

std::int64_t WirePort::due_ns(bool probing) const {
  const std::int64_t now = uses_.clock.now();
  const bool waiting = probing || !channel_.retained().empty();
  const auto& rails = channel_.rails().all();
  std::int64_t due = WireRail::kNever;
  for (const auto& rail : rails) {
    if (rail->state == RailState::kSuspect || waiting)
      due = std::min(due, now + uses_.links.watch().probe_pause_ns());
    const bool several = rails.size() > 1 && rail->last.in_flight;
    if (several || rail->was_busy) due = std::min(due, now + kWatchRailsNs);
    due = std::min(due, rail->wire->due_ns());
  }
  return due;
}

bool WirePort::ready_to_sleep() {
  bool ready = true;
  for (auto& rail : channel_.rails().all()) {
    uses_.links.watch().watch_room(link_, rail->index, *rail->wire);
    ready = ready && !rail->wire->failure() && !rail->wire->ending();
  }
  return ready;
}

void WirePort::suspect(LinkRail& rail, const std::string& why) {
  rail.state = RailState::kSuspect;
  rail.suspected_ns = rail.next_probe_ns = uses_.clock.now();
  ++channel_.counters().rails_suspected;
  channel_.await_acknowledgement(rail);
  channel_.place_frames();
  uses_.links.events().announce(link_, rail.index, "suspect", rail.name + " " + why);
}

void WirePort::restore(LinkRail& rail) {
  rail.state = RailState::kUp;
  RailSet::begin_slowly(rail);
  ++channel_.counters().rails_restored;
  channel_.place_frames();
  uses_.links.events().announce(link_, rail.index, "up", rail.name + " answers again");
}

void WirePort::probe(LinkRail& rail) {
  const std::int64_t now = uses_.clock.now();
  wire::Header header = blank_header(wire::FrameKind::kProbe);
  header.chunk = static_cast<std::uint16_t>(rail.index);
  header.offset = static_cast<std::uint64_t>(now);
  rail.probe_sent_ns = now;
  rail.next_probe_ns = now + uses_.links.watch().probe_pause_ns();
  channel_.send_unnumbered(rail, header);
}

void WirePort::on_probe(const wire::Header& header) {
  const std::int64_t now = uses_.clock.exact();
  LinkRail* rail = this->rail(header.chunk);
  if (rail == nullptr) return;
  if ((header.flags & wire::kFlagAnswer) == 0) {
    wire::Header answer = header;
    answer.flags = wire::kFlagAnswer;
    answer.total = answer.tag = static_cast<std::uint64_t>(now);
    return channel_.send_unnumbered(*rail, answer);
  }
  if (rail->probe_sent_ns == 0 || static_cast<std::int64_t>(header.offset) != rail->probe_sent_ns)
    return;  // the probe was sent by an earlier rail with this index
  rail->probe_sent_ns = 0;
  rail->probes.push_back(Probe{static_cast<std::int64_t>(header.offset),
                               static_cast<std::int64_t>(header.total),
                               static_cast<std::int64_t>(header.tag), now});
  if (rail->probes.size() > LinkRail::kProbes) rail->probes.pop_front();
  ++rail->probe_count;
  if (rail->state == RailState::kSuspect) restore(*rail);
}

// --- ends

void WirePort::cut(const std::string& reason) {
  for (auto& rail : channel_.rails().all()) rail->wire->give_up(reason);
  uses_.links.mark_dirty(link_);
}

void WirePort::end_without_memory() noexcept { channel_.condemn(Link::kNoMemory); }

void WirePort::close() {
  RailSet& rails = channel_.rails();
  while (!rails.empty()) {
    const std::unique_ptr<LinkRail> rail = rails.take(rails.all().size() - 1);
    let_go(*rail);
    note_end(status_of(*rail));
  }
}

// Let nothing refer any more to a rail that is in the set no more. Takes no memory, and comes
// before all that does.
void WirePort::let_go(LinkRail& rail) {
  channel_.abandon(rail);
  uses_.links.watch().remove(*rail.wire);
  rail.wire->abandon(uses_.sink);
}

// Remove a rail that has failed, and send its frames over the others.
void WirePort::lose(std::size_t place) {
  const std::unique_ptr<LinkRail> dead = channel_.rails().take(place);
  let_go(*dead);
  // A peer that has closed its engine closes its rails too, which is no loss.
  if (!link_.said_bye) ++channel_.counters().rails_lost;
  link_.failure = dead->wire->failure();
  note_end(status_of(*dead));
  uses_.links.events().announce(link_, dead->index, link_.said_bye ? "closed" : "lost",
                                dead->name + ": " + link_.failure.message);
  channel_.place_frames();
}

bool WirePort::reap() {
  const auto& rails = channel_.rails().all();
  const bool no_rail = rails.empty();
  std::exception_ptr lacked;
  for (std::size_t i = 0; i < rails.size();) {
    if (!rails[i]->wire->failure()) {
      ++i;
      continue;
    }
    try {
      lose(i);
    } catch (const std::bad_alloc&) {  // the rail is lost all the same
      lacked = std::current_exception();
    }
  }
  const bool last = !no_rail && rails.empty();
  if (last) no_rail_since_ns_ = uses_.clock.now();
  const bool condemned = !channel_.condemned().empty();
  link_.down = rails.empty() && (condemned || (last && (!reconnect_ || link_.said_bye)));
  if (lacked) std::rethrow_exception(lacked);
  if (link_.down && condemned)
    link_.failure = Failure{Fault::kPeer, channel_.condemned(), -1, -1, -1, -1};
  return link_.down;
}

// --- reports

std::string WirePort::condition() const {
  const std::int64_t now = uses_.clock.now();
  if (channel_.rails().empty())
    return "no rail to it is left since " + seconds(now - no_rail_since_ns_) +
           ", the last one's end: " + link_.failure.message;
  if (link_.last_heard_ns == 0) return "nothing was ever heard from it: gone or cut off";
  const std::int64_t quiet = now - link_.last_heard_ns;
  if (quiet > kAliveNs)
    return "nothing was heard from it for " + seconds(quiet) + ": gone, stopped or cut off";
  return "its engine answers: late, not gone";
}

RailStatus WirePort::status_of(const LinkRail& rail) const {
  RailStatus status;
  status.link = link_.index();
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

std::vector<RailStatus> WirePort::rails() const {
  std::vector<RailStatus> all;
  for (const auto& rail : channel_.rails().all()) all.push_back(status_of(*rail));
  return all;
}

std::vector<RailStatus> WirePort::ended_rails() const {
  std::vector<RailStatus> all;
  for (const auto& [index, status] : ended_) all.push_back(status);
  return all;
}

void WirePort::note_end(RailStatus ended) {
  ended.state = "ended";
  ended.queued_bytes = ended.unconfirmed_bytes = 0;
  ended.probes.clear();
  const auto before = ended_.find(ended.rail);
  if (before != ended_.end()) {
    ended.counters += before->second.counters;
    ended.frames_resent += before->second.frames_resent;
    ended.confirmed_bytes += before->second.confirmed_bytes;
    ended.busy_ns += before->second.busy_ns;
    ended.probe_count += before->second.probe_count;
  }
  ended_[ended.rail] = std::move(ended);
}

void WirePort::count(Counts& counts) const {
  const Channel::Counters& counted = channel_.counters();
  counts["frames_resent"] += counted.frames_resent;
  counts["duplicates_dropped"] += counted.duplicates_dropped;
  counts["rails_lost"] += counted.rails_lost;
  counts["rails_suspected"] += counted.rails_suspected;
  counts["rails_restored"] += counted.rails_restored;
  counts["wire_payload_bytes"] += counted.payload_bytes;
  for (const auto& rail : channel_.rails().all())
    counts[std::string(name_of(rail->wire->kind())) + "_rails"] += 1;
}

void WirePort::inject(int rail, const std::optional<FaultState>& state) {
  for (auto& each : channel_.rails().all()) {
    if (rail < 0 || each->index == rail) each->wire->inject(state);
  }
}

void WirePort::leave_to_parent() {
  for (const auto& rail : channel_.rails().all()) rail->wire->leave_to_parent();
}

}  // namespace slackline
