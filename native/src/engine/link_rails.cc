// The rails of a link (its paths to the peer): the choice of a rail for each frame, the handling of
// silent and lost rails, and the end of the link.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "executor.h"
#include "headers.h"
#include "link.h"
#include "links.h"
#include "slackline/crc32c.h"

namespace slackline {
namespace {

constexpr std::int64_t kMs = 1'000'000;
// Time without any confirmation after which a rail with bulk data in flight counts as silent. The
// time is at least kSilentRoundTrips round trips. With less data in flight the limit is longer,
// because the peer's TCP may delay its acknowledgement. Datagrams have their own limit, because the
// peer's engine confirms them only when it is scheduled.
constexpr std::int64_t kSilentBulkNs = 50 * kMs;
constexpr std::int64_t kSilentNs = 250 * kMs;
constexpr std::int64_t kSilentDatagramsNs = 100 * kMs;
constexpr std::int64_t kSilentRoundTrips = 4;
constexpr std::uint64_t kBulkBytes = 64u << 10;
// Time after which a silent rail is closed. TCP retries a silent path at ever longer intervals, so
// a new connection notices a restored path sooner.
constexpr std::int64_t kLostNs = 1000 * kMs;
constexpr std::int64_t kLostRoundTrips = 20;
constexpr std::int64_t kWatchNs = 10 * kMs;
constexpr std::int64_t kMeasureNs = 5 * kMs;
constexpr double kNewShare = 0.3;  // weight of a new measurement in the mean
// The window of a restored rail: the number of bytes that may be in flight. The window doubles
// whenever the peer has confirmed a whole window of bytes.
constexpr std::uint64_t kFirstSlowStartWindow = 128u << 10;
constexpr std::uint64_t kLastSlowStartWindow = 1u << 20;
constexpr std::int64_t kAliveNs = 1000 * kMs;

std::int64_t silence_limit(const LinkRail& rail) {
  const std::int64_t least = rail.wire->kind() == RailKind::kUdp   ? kSilentDatagramsNs
                             : rail.last.unconfirmed >= kBulkBytes ? kSilentBulkNs
                                                                   : kSilentNs;
  return std::max(least, kSilentRoundTrips * rail.last.round_trip_ns);
}

bool silent(const LinkRail& rail, std::int64_t now_ns) {
  return rail.last.in_flight && now_ns - rail.last.quiet_since_ns > silence_limit(rail);
}

std::string seconds(std::int64_t ns) {
  const std::int64_t tenths = (ns + 50 * kMs) / (100 * kMs);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

LinkRail* Link::rail(int index) {
  for (auto& rail : rails_) {
    if (rail->index == index) return rail.get();
  }
  return nullptr;
}

void Link::add_rail(int index, std::string name, std::unique_ptr<WireRail> wire) {
  LinkRail* old = rail(index);
  rails_.push_back(std::make_unique<LinkRail>(index, std::move(name), std::move(wire)));
  LinkRail& rail = *rails_.back();
  if (rails_.size() > 1) {
    for (auto& each : rails_) each->wire->keep_back();
  }
  if (old != nullptr) {
    old->wire->give_up("replaced by a new one");
    reap();
  }
  if (counters.rails_lost > 0) {
    rail.slow_start_window = kFirstSlowStartWindow;
    ++counters.rails_restored;
  }
  if (condemned()) rail.wire->give_up(condemned_);
  if (counters.rails_lost > 0 || counters.rails_suspected > 0 || said_bye) place_frames();
  uses_.links.announce(*this, rail.index, "up", rail.name);
  note_made();
}

// Return whether a rail may take more frames. A rail that has come back has a small window until
// it has proved itself.
bool Link::within_slow_start(LinkRail& rail) {
  if (rail.slow_start_window == LinkRail::kUnlimited) return true;
  return rail.wire->confirmation(uses_.clock.now()).unconfirmed < rail.slow_start_window;
}

// Return the mean rate of the measured rails, or 1 byte per nanosecond when none has been measured.
double Link::typical_rate() const {
  double sum = 0;
  int measured = 0;
  for (const auto& rail : rails_) {
    if (!rail->measured) continue;
    sum += rail->rate;
    ++measured;
  }
  return measured == 0 ? 1.0 : sum / measured;
}

// Return the rail whose queue will be sent first. Rails with empty queues take turns.
LinkRail* Link::pick_rail(bool crowded) {
  LinkRail* best = nullptr;
  const double typical = typical_rate();
  const auto up =
      std::ranges::count_if(rails_, [](const auto& rail) { return rail->state == RailState::kUp; });
  for (auto& entry : rails_) {
    LinkRail& rail = *entry;
    if (!rail.up()) continue;
    if (!crowded && !rail.wire->room()) continue;
    if (best != nullptr) {
      const double mine = rail.backlog_ns(typical);
      const double its = best->backlog_ns(typical);
      if (mine > its || (mine == its && rail.picked > best->picked)) continue;
    }
    if (crowded || up == 1 || within_slow_start(rail)) best = &rail;
  }
  if (best != nullptr) best->picked = ++picks_;
  return best;
}

// Return a rail for a control frame. Control frames are few and short, so they may exceed a rail's
// queue limit.
LinkRail* Link::any_rail() {
  if (LinkRail* rail = pick_rail()) return rail;
  LinkRail* any = nullptr;
  for (auto& rail : rails_) {
    if (rail->wire->failure()) continue;
    if (any == nullptr || (any->state == RailState::kSuspect && rail->state == RailState::kUp))
      any = rail.get();
  }
  return any;
}

// Send a frame again over another rail. Borrowed memory may have been overwritten by a result of
// the same operation. Such a result can only exist if the peer has received the frame, so then only
// the frame's number needs to be acknowledged.
void Link::resend(Retained& frame, LinkRail& rail) {
  frame.rail = &rail;
  ++counters.frames_resent;
  ++rail.frames_resent;
  frame.header.job = rail.wire->job();
  frame.header.acknowledge = expected_;
  // Copy the payload now, because a result that is in flight could still overwrite it while the
  // frame waits in the rail's queue.
  if (frame.request != nullptr && frame.owned == nullptr) {
    frame.owned = uses_.memory.buffers().take(frame.length);
    std::memcpy(frame.owned, frame.payload, frame.length);
    frame.payload = frame.owned;
  }
  const bool intact = frame.length == 0 || frame.header.payload_checksum == 0 ||
                      crc32c(0, frame.payload, frame.length) == frame.header.payload_checksum;
  wire::Header header = frame.header;
  if (!intact) {
    header = blank_header(wire::FrameKind::kAck);
    header.job = rail.wire->job();
    header.sequence = frame.header.sequence;
    header.acknowledge = expected_;
  } else if (rail.wire->checksums() && header.payload_checksum == 0 && frame.length > 0) {
    header.payload_checksum = crc32c(0, frame.payload, frame.length);
  }
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
  rail.wire->enqueue(header, intact ? frame.payload : nullptr, intact ? frame.length : 0);
}

// Resend, over the rails that are up, each undelivered frame whose rail is gone or suspect. While
// no rail is up, such frames stay where they are or, if their rail is gone, without a rail. Every
// event after which a rail is up and such a frame may exist must therefore call this function: the
// loss, the suspicion, the addition and the return of a rail.
void Link::place_frames() {
  acknowledge_now_ = true;  // acknowledgements may have been lost with a rail
  uses_.links.mark_dirty(*this);
  for (Retained& r : retained_) {
    if (r.rail != nullptr && r.rail->up()) continue;
    const bool gone = r.rail == nullptr || r.rail->wire->failure();
    if (LinkRail* other = pick_rail(true)) {
      if (!gone) r.rail->wire->release(r.header.sequence);
      resend(r, *other);
    } else if (gone) {
      r.rail = nullptr;
    }
  }
}

void Link::suspect(LinkRail& rail, std::int64_t now_ns, const std::string& why) {
  rail.state = RailState::kSuspect;
  rail.suspected_ns = now_ns;
  rail.next_probe_ns = now_ns;
  ++counters.rails_suspected;
  await_acknowledgement(rail);
  place_frames();
  uses_.links.announce(*this, rail.index, "suspect", rail.name + " " + why);
}

void Link::restore(LinkRail& rail) {
  rail.state = RailState::kUp;
  rail.slow_start_window = kFirstSlowStartWindow;
  rail.proved_bytes = 0;
  ++counters.rails_restored;
  place_frames();
  uses_.links.announce(*this, rail.index, "up", rail.name + " answers again");
}

bool Link::carries(const LinkRail& rail) const {
  return std::ranges::any_of(retained_, [&](const Retained& r) { return r.rail == &rail; });
}

void Link::measure(LinkRail& rail, std::int64_t now_ns) {
  const RailCounters& sent = rail.wire->counters();
  const std::uint64_t given = sent.bytes_sent + rail.wire->queued_bytes();
  const std::uint64_t confirmed = given - std::min<std::uint64_t>(given, rail.last.unconfirmed);
  const std::uint64_t fresh = confirmed - std::min(confirmed, rail.confirmed_bytes);
  rail.confirmed_bytes = std::max(confirmed, rail.confirmed_bytes);
  if (rail.slow_start_window != LinkRail::kUnlimited &&
      (rail.proved_bytes += fresh) >= rail.slow_start_window) {
    rail.proved_bytes = 0;
    rail.slow_start_window *= 2;
    if (rail.slow_start_window > kLastSlowStartWindow)
      rail.slow_start_window = LinkRail::kUnlimited;
  }
  const std::int64_t elapsed = now_ns - rail.checked_ns;
  const bool busy = rail.last.unconfirmed > 0 && carries(rail);
  // A rail that is idle now was busy until the peer's acknowledgement came, not until this look.
  if (rail.was_busy)
    rail.busy_ns +=
        busy ? elapsed : std::clamp<std::int64_t>(last_heard_ns - rail.checked_ns, 0, elapsed);
  const bool full = rail.wire->queued_bytes() > 0;
  rail.span_ns = rail.was_full && full ? rail.span_ns + elapsed : 0;
  rail.span_bytes = rail.was_full && full ? rail.span_bytes + fresh : 0;
  if (rail.span_ns >= kMeasureNs && rail.state == RailState::kUp) {
    const double rate =
        std::max(1.0, static_cast<double>(rail.span_bytes)) / static_cast<double>(rail.span_ns);
    rail.rate = rail.measured ? (1 - kNewShare) * rail.rate + kNewShare * rate : rate;
    rail.measured = true;
    rail.span_ns = 0;
    rail.span_bytes = 0;
  }
  rail.checked_ns = now_ns;
  rail.was_busy = busy;
  rail.was_full = full;
}

bool Link::another_is_well(const LinkRail& rail, std::int64_t now_ns) const {
  return std::ranges::any_of(rails_, [&](const auto& other) {
    return other.get() != &rail && other->up() &&
           !(other->last.in_flight &&
             now_ns - other->last.quiet_since_ns > silence_limit(*other) / 2);
  });
}

void Link::watch(std::int64_t now_ns, bool probing) {
  if (down || shm_ != nullptr) return;
  for (auto& entry : rails_) {
    LinkRail& rail = *entry;
    rail.last = rail.wire->confirmation(now_ns);
    measure(rail, now_ns);
  }
  for (auto& entry : rails_) {
    LinkRail& rail = *entry;
    const bool quiet = silent(rail, now_ns);
    const std::int64_t lost = std::max(kLostNs, kLostRoundTrips * rail.last.round_trip_ns);
    if (quiet && reconnect_ && rail.wire->kind() == RailKind::kTcp &&
        now_ns - rail.last.quiet_since_ns > lost) {
      rail.wire->give_up("silent for " + seconds(now_ns - rail.last.quiet_since_ns));
      continue;
    }
    if (quiet && rail.state == RailState::kUp && another_is_well(rail, now_ns))
      suspect(rail, now_ns, "silent for " + seconds(now_ns - rail.last.quiet_since_ns));
    // Unacknowledged frames also justify a probe: the reply to the probe acknowledges the frames,
    // and then no more monitoring is needed.
    const bool wanted = probing || !retained_.empty() || rail.state == RailState::kSuspect;
    if (wanted && rail.probe_sent_ns == 0 && now_ns >= rail.next_probe_ns) probe(rail, now_ns);
  }
}

std::int64_t Link::watch_due_ns(std::int64_t now_ns, bool probing) const {
  const bool waiting = probing || !retained_.empty();
  std::int64_t due = WireRail::kNever;
  for (const auto& rail : rails_) {
    if (rail->state == RailState::kSuspect || waiting)
      due = std::min(due, now_ns + uses_.links.probe_pause_ns());
    const bool several = rails_.size() > 1 && rail->last.in_flight;
    if (several || rail->was_busy) due = std::min(due, now_ns + kWatchNs);
  }
  return due;
}

void Link::send_unnumbered(LinkRail& rail, wire::Header header) {
  header.job = rail.wire->job();
  header.acknowledge = expected_;
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
  rail.wire->enqueue(header, nullptr, 0);
  limit_answers(rail);
  uses_.links.mark_dirty(*this);
}

void Link::probe(LinkRail& rail, std::int64_t now_ns) {
  wire::Header header = blank_header(wire::FrameKind::kProbe);
  header.chunk = static_cast<std::uint16_t>(rail.index);
  header.offset = static_cast<std::uint64_t>(now_ns);
  rail.probe_sent_ns = now_ns;
  rail.next_probe_ns = now_ns + uses_.links.probe_pause_ns();
  send_unnumbered(rail, header);
}

void Link::on_probe(const wire::Header& header) {
  const std::int64_t now = uses_.clock.now();
  LinkRail* rail = this->rail(header.chunk);
  if (rail == nullptr) return;
  if ((header.flags & wire::kFlagAnswer) == 0) {
    wire::Header answer = header;
    answer.flags = wire::kFlagAnswer;
    answer.total = answer.tag = static_cast<std::uint64_t>(now);
    send_unnumbered(*rail, answer);
    return;
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

void Link::cut(const std::string& reason) {
  for (auto& rail : rails_) rail->wire->give_up(reason);
  uses_.links.mark_dirty(*this);
}

void Link::end_without_memory() noexcept {
  condemned_ = kNoMemory;
  for (auto& rail : rails_) rail->wire->give_up(kNoMemory);
  if (shm_ != nullptr) shm_->give_up(kNoMemory);
  uses_.links.mark_dirty(*this);
}

bool Link::give_up(const std::string& reason) {
  if (down) return false;
  failure = Failure{Fault::kPeer, reason, -1, -1, -1, -1};
  down = true;
  while (!rails_.empty()) {
    const std::unique_ptr<LinkRail> rail = std::move(rails_.back());
    rails_.pop_back();
    for (Retained& r : retained_) {
      if (r.rail == rail.get()) r.rail = nullptr;
    }
    await_acknowledgement(*rail);
    uses_.links.rail_removed(*rail->wire);
    rail->wire->abandon(uses_.sink);
    note_end(status_of(*rail));
  }
  uses_.links.announce(*this, -1, "down", reason);
  return true;
}

// Remove a rail that has failed, and send its frames over the others.
void Link::lose_rail(std::size_t place) {
  const std::unique_ptr<LinkRail> dead = std::move(rails_[place]);
  // First of all nothing refers to the rail any more: the rest may meet a lack of memory.
  rails_.erase(rails_.begin() + static_cast<std::ptrdiff_t>(place));
  for (Retained& r : retained_) {
    if (r.rail == dead.get()) r.rail = nullptr;
  }
  await_acknowledgement(*dead);
  uses_.links.rail_removed(*dead->wire);
  dead->wire->abandon(uses_.sink);
  // A peer that has closed its engine closes its rails too, which is no loss.
  if (!said_bye) ++counters.rails_lost;
  failure = dead->wire->failure();
  note_end(status_of(*dead));
  uses_.links.announce(*this, dead->index, said_bye ? "closed" : "lost",
                       dead->name + ": " + failure.message);
  place_frames();
}

bool Link::reap() {
  if (down) return false;
  if (shm_) {
    if (!shm_->failure() && (!shm_->peer_gone() || shm_->pending())) return false;
    down = true;
    if (shm_->failure()) failure = shm_->failure();
    if (!failure) failure = Failure{Fault::kPeer, "its process has ended", -1, -1, -1, -1};
    uses_.links.announce(*this, -1, "down", failure.message);
    return true;
  }
  const bool no_rail = rails_.empty();
  std::exception_ptr lacked;
  for (std::size_t i = 0; i < rails_.size();) {
    if (!rails_[i]->wire->failure()) {
      ++i;
      continue;
    }
    try {
      lose_rail(i);
    } catch (const std::bad_alloc&) {  // the rail is lost all the same
      lacked = std::current_exception();
    }
  }
  const bool last = !no_rail && rails_.empty();
  if (last) no_rail_since_ns_ = uses_.clock.now();
  down = last && (!reconnect_ || said_bye || condemned());
  if (lacked) std::rethrow_exception(lacked);
  if (!down) return false;
  if (condemned()) failure = Failure{Fault::kPeer, condemned_, -1, -1, -1, -1};
  uses_.links.announce(*this, -1, "down", failure.message);
  return true;
}

std::string Link::condition(std::int64_t now_ns) const {
  if (!made_ && !down)
    return "no connection to it has been made" + (obstacle_.empty() ? "" : " (" + obstacle_ + ")");
  if (shared_) return down ? "its process has ended" : "its process lives";
  if (rails_.empty())
    return "no rail to it is left since " + seconds(now_ns - no_rail_since_ns_) +
           ", the last one's end: " + failure.message;
  const std::int64_t quiet = now_ns - last_heard_ns;
  if (last_heard_ns == 0 || quiet > kAliveNs)
    return last_heard_ns == 0
               ? "nothing was ever heard from it: gone or cut off"
               : "nothing was heard from it for " + seconds(quiet) + ": gone, stopped or cut off";
  return "its engine answers: late, not gone";
}

}  // namespace slackline
