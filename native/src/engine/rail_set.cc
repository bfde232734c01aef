#include "rail_set.h"

#include <algorithm>
#include <utility>

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
constexpr std::int64_t kMeasureNs = 5 * kMs;
constexpr double kNewShare = 0.3;  // weight of a new measurement in the mean
// The window of a restored rail: the number of bytes that may be in flight. The window doubles
// whenever the peer has confirmed a whole window of bytes.
constexpr std::uint64_t kFirstSlowStartWindow = 128u << 10;
constexpr std::uint64_t kLastSlowStartWindow = 1u << 20;

std::int64_t silence_limit(const LinkRail& rail) {
  const std::int64_t least = rail.wire->kind() == RailKind::kUdp   ? kSilentDatagramsNs
                             : rail.last.unconfirmed >= kBulkBytes ? kSilentBulkNs
                                                                   : kSilentNs;
  return std::max(least, kSilentRoundTrips * rail.last.round_trip_ns);
}

// Return whether a rail may take more frames. A rail that has come back has a small window until
// it has proved itself.
bool within_window(const LinkRail& rail, std::int64_t now_ns) {
  if (rail.slow_start_window == LinkRail::kUnlimited) return true;
  return rail.wire->confirmation(now_ns).unconfirmed < rail.slow_start_window;
}

}  // namespace

LinkRail* RailSet::find(int index) const {
  for (const auto& rail : rails_) {
    if (rail->index == index) return rail.get();
  }
  return nullptr;
}

LinkRail& RailSet::add(int index, std::string name, std::unique_ptr<WireRail> wire) {
  rails_.push_back(std::make_unique<LinkRail>(index, std::move(name), std::move(wire)));
  if (rails_.size() > 1) {
    for (auto& each : rails_) each->wire->keep_back();
  }
  return *rails_.back();
}

std::unique_ptr<LinkRail> RailSet::take(std::size_t place) {
  std::unique_ptr<LinkRail> taken = std::move(rails_[place]);
  rails_.erase(rails_.begin() + static_cast<std::ptrdiff_t>(place));
  return taken;
}

void RailSet::begin_slowly(LinkRail& rail) {
  rail.slow_start_window = kFirstSlowStartWindow;
  rail.proved_bytes = 0;
}

bool RailSet::silent(const LinkRail& rail, std::int64_t now_ns) {
  return rail.last.in_flight && now_ns - rail.last.quiet_since_ns > silence_limit(rail);
}

// Return the mean rate of the measured rails, or 1 byte per nanosecond when none has been measured.
double RailSet::typical_rate() const {
  double sum = 0;
  int measured = 0;
  for (const auto& rail : rails_) {
    if (!rail->measured) continue;
    sum += rail->rate;
    ++measured;
  }
  return measured == 0 ? 1.0 : sum / measured;
}

LinkRail* RailSet::pick(std::int64_t now_ns, bool crowded) {
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
    if (crowded || up == 1 || within_window(rail, now_ns)) best = &rail;
  }
  if (best != nullptr) best->picked = ++picks_;
  return best;
}

LinkRail* RailSet::any(std::int64_t now_ns) {
  if (LinkRail* rail = pick(now_ns)) return rail;
  LinkRail* any = nullptr;
  for (auto& rail : rails_) {
    if (rail->wire->failure()) continue;
    if (any == nullptr || (any->state == RailState::kSuspect && rail->state == RailState::kUp))
      any = rail.get();
  }
  return any;
}

void RailSet::measure(LinkRail& rail, std::int64_t now_ns, bool carries, std::int64_t heard_ns) {
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
  const bool busy = rail.last.unconfirmed > 0 && carries;
  // A rail that is idle now was busy until the peer's acknowledgement came, not until this look. If
  // the peer has said nothing yet, its system has confirmed the bytes a moment ago.
  const bool said = heard_ns > rail.checked_ns;
  if (rail.was_busy)
    rail.busy_ns += busy || !said ? elapsed : std::min(heard_ns - rail.checked_ns, elapsed);
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

bool RailSet::another_is_well(const LinkRail& rail, std::int64_t now_ns) const {
  return std::ranges::any_of(rails_, [&](const auto& other) {
    return other.get() != &rail && other->up() &&
           !(other->last.in_flight &&
             now_ns - other->last.quiet_since_ns > silence_limit(*other) / 2);
  });
}

}  // namespace slackline
