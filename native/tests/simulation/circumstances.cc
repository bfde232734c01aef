#include "circumstances.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace slackline::simulation {

void draw_begin(Draw& draw, const Schedule& schedule, Fault& fault) {
  if (draw.percent(35)) {
    fault.at_ns = draw.spread(kMicrosecond, 60 * kMillisecond);
    return;
  }
  std::vector<int> posted;
  for (std::size_t i = 0; i < schedule.work.size(); ++i) {
    if (schedule.takes_part(schedule.work[i], fault.a) ||
        schedule.takes_part(schedule.work[i], fault.b))
      posted.push_back(static_cast<int>(i));
  }
  if (!posted.empty()) fault.work = draw.one_of(posted);
  fault.at_ns = draw.spread(100, 20 * kMillisecond);
}

void draw_failover(Draw& draw, Schedule& s) {
  Fault silent;
  silent.trouble = Trouble::kSilence;
  silent.a = static_cast<int>(draw.between(0, s.processes() - 1));
  silent.b = (silent.a + static_cast<int>(draw.between(1, s.processes() - 1))) % s.processes();
  const int rails = s.rails[static_cast<std::size_t>(s.pair_of(silent.a, silent.b))];
  if (rails < 2) return;
  draw_begin(draw, s, silent);
  silent.for_ns = draw.between(50 * kMillisecond, 1200 * kMillisecond);
  if (draw.percent(40)) silent.rail = static_cast<int>(draw.between(1, rails - 1));
  s.faults.push_back(silent);
  for (int rail = 0; rail < rails; ++rail) {
    if (rail == silent.rail) continue;
    Fault lost = silent;
    lost.trouble = draw.percent(50) ? Trouble::kReset : Trouble::kEnd;
    lost.rail = rail;
    lost.at_ns += draw.percent(50) ? draw.between(0, silent.for_ns)
                                   : draw.spread(kMicrosecond, 50 * kMillisecond);
    lost.for_ns = rail > 0 && draw.percent(60) ? kForGood : draw.spread(kMillisecond, 2 * kSecond);
    s.faults.push_back(lost);
  }
}

void draw_last_resort(Draw& draw, Schedule& s) {
  std::vector<std::pair<int, int>> links;
  for (int a = 0; a < s.ranks; ++a) {
    for (int b = 0; b < s.ranks; ++b) {
      const auto pair = static_cast<std::size_t>(s.pair_of(a, b));
      if (a != b && s.rails[pair] > 1 && s.datagrams[pair] == 0) links.emplace_back(a, b);
    }
  }
  if (links.empty()) return;
  Fault silent;
  silent.trouble = Trouble::kSilence;
  std::tie(silent.a, silent.b) = draw.one_of(links);
  std::vector<std::size_t> works;
  for (std::size_t i = 0; i < s.work.size(); ++i) {
    if (s.takes_part(s.work[i], silent.a) && s.takes_part(s.work[i], silent.b)) works.push_back(i);
  }
  if (works.size() < 2) return;
  const auto met = static_cast<std::size_t>(draw.between(1, std::ssize(works) - 1));
  silent.work = static_cast<int>(works[met - 1]);
  silent.at_ns = draw.spread(100, 100 * kMicrosecond);
  silent.for_ns = draw.between(400 * kMillisecond, 1200 * kMillisecond);
  s.faults.push_back(silent);
  for (const int rank : {silent.a, silent.b})
    s.work[works[met]].parts[static_cast<std::size_t>(rank)].pause_ns =
        draw.between(silent.for_ns / 2, silent.for_ns);
  const int rails = s.rails[static_cast<std::size_t>(s.pair_of(silent.a, silent.b))];
  for (int rail = 1; rail < rails; ++rail) {
    Fault lost = silent;
    lost.trouble = draw.percent(50) ? Trouble::kReset : Trouble::kEnd;
    lost.work = static_cast<int>(works[met]);
    lost.at_ns = draw.spread(100, kMillisecond);
    lost.rail = rail;
    lost.for_ns = draw.percent(75) ? kForGood : draw.spread(kMillisecond, 2 * kSecond);
    s.faults.push_back(lost);
  }
}

namespace {

// Return a message that is so long that it asks for a grant first.
Work draw_long_message(Draw& draw, const Schedule& s, int from, int to) {
  Work work;
  work.verb = draw.percent(50) ? Verb::kMessage : Verb::kAnySource;
  work.from = from;
  work.to = to;
  work.tag = static_cast<int>(draw.between(0, 3));
  work.priority = static_cast<int>(draw.between(0, 2));
  work.count =
      static_cast<std::size_t>(s.eager_bytes) + static_cast<std::size_t>(draw.spread(1, 20'000));
  work.seed = draw.bits();
  work.timeout_ns = Work::kPatient;
  work.parts.resize(static_cast<std::size_t>(s.ranks));
  for (Part& part : work.parts) {
    if (draw.percent(40)) part.pause_ns = draw.spread(kMicrosecond, kMillisecond);
    part.registered = draw.percent(50);
  }
  return work;
}

std::pair<int, int> two_ranks(Draw& draw, const Schedule& s) {
  const auto a = draw.between(0, s.ranks - 1);
  const auto b = (a + draw.between(1, s.ranks - 1)) % s.ranks;
  return {static_cast<int>(a), static_cast<int>(b)};
}

// Return an operation of all ranks, and let it be the first after which a circumstance comes about.
std::size_t meeting_point(Draw& draw, Schedule& s, std::size_t behind) {
  while (s.work.size() < behind + 1) s.work.push_back(draw.one_of(s.work));
  const auto last = std::ssize(s.work) - 1 - static_cast<std::ptrdiff_t>(behind);
  const auto place = static_cast<std::size_t>(draw.between(0, last));
  Work& work = s.work[place];
  work.group = 0;
  if (is_message(work.verb)) work.verb = Verb::kBarrier;
  if (work.verb == Verb::kAggregated) work.verb = Verb::kAllReduce;
  if (!work.weights.empty()) work.weights.resize(static_cast<std::size_t>(s.ranks), 1);
  return place;
}

Fault death_of(const Schedule& s, int rank, std::size_t work) {
  Fault death;
  death.trouble = Trouble::kKill;
  death.a = rank;
  death.b = (rank + 1) % s.processes();
  death.work = static_cast<int>(work);
  return death;
}

void draw_deaths(Draw& draw, Schedule& s) {
  const auto behind = static_cast<std::size_t>(draw.between(1, 3));
  const std::size_t place = meeting_point(draw, s, behind);
  const auto [first, second] = two_ranks(draw, s);
  Fault death = death_of(s, first, place);
  death.b = second;  // so that it begins with the call of either
  death.at_ns = draw.spread(100, kMillisecond);
  s.faults.push_back(death);
  if (draw.percent(50)) {
    death.a = second;
    death.b = first;
    death.at_ns += draw.between(0, 3 * s.line.delay_ns + 100 * kMicrosecond);
    s.faults.push_back(death);
  }
  for (std::size_t i = 1; i <= behind; ++i) {
    auto [from, to] = two_ranks(draw, s);
    // Most messages are between ranks that live on.
    while (from == first || to == first) std::tie(from, to) = two_ranks(draw, s);
    s.work[place + i] = draw_long_message(draw, s, from, to);
  }
}

void draw_untold_cancellation(Draw& draw, Schedule& s) {
  const std::size_t place = meeting_point(draw, s, 1);
  const auto [first, other] = two_ranks(draw, s);
  Part& part = s.work[place].parts[static_cast<std::size_t>(first)];
  part.blocking = part.waits_for_all = false;
  part.cancel_ns = draw.spread(kMicrosecond, kMillisecond);
  Fault death = death_of(s, first, place);
  death.b = first == 0 ? s.processes() - 1 : 0;
  if (draw.percent(50)) death.b = other;
  death.at_ns = part.cancel_ns + draw.spread(100, 50 * kMicrosecond);
  s.faults.push_back(death);
}

// Let no rank end an operation, so that every one must succeed if no worker dies, and let most of
// those that the aggregator adds be open at once.
void calm(Draw& draw, Schedule& s) {
  for (Work& work : s.work) {
    work.timeout_ns = Work::kPatient;
    for (Part& part : work.parts) {
      part.cancel_ns = -1;
      part.exit = Exit::kStays;
      if (work.verb == Verb::kAggregated && draw.percent(80))
        part.blocking = part.waits_for_all = false;
    }
  }
}

// Let one worker lose its link to the aggregator, which the others still reach.
void draw_lonely_worker(Draw& draw, Schedule& s, std::size_t met) {
  Fault cut;
  cut.trouble = Trouble::kReset;
  cut.work = static_cast<int>(met);
  cut.a = s.ranks;
  cut.b = static_cast<int>(draw.between(0, s.ranks - 1));
  cut.at_ns = draw.spread(kMicrosecond, 2 * kMillisecond);
  cut.factor = draw.percent(70) ? 0 : 1;
  cut.for_ns = cut.factor == 0 ? kForGood : draw.between(4 * kSecond, 8 * kSecond);
  if (!s.can_act(cut.trouble, cut.a, cut.b)) return;
  if (draw.percent(50)) std::swap(cut.a, cut.b);
  const auto pair = static_cast<std::size_t>(s.pair_of(cut.a, cut.b));
  s.rails[pair] = 1;
  s.datagrams[pair] = 0;
  s.faults.push_back(cut);
}

void draw_lost_aggregator(Draw& draw, Schedule& s) {
  std::vector<std::size_t> added;
  for (std::size_t i = 0; i < s.work.size(); ++i) {
    if (s.work[i].verb == Verb::kAggregated) added.push_back(i);
  }
  if (added.empty()) return;
  const std::size_t met = draw.one_of(added);
  const std::int64_t about = draw.spread(10 * kMicrosecond, 2 * kMillisecond);
  const auto near = [&] { return draw.between(0, 2 * about); };
  const bool cancels = draw.percent(60);
  if (!cancels) {
    calm(draw, s);
    if (draw.percent(70)) return draw_lonely_worker(draw, s, met);
  }
  const auto canceller = static_cast<int>(draw.between(0, s.ranks - 1));
  for (int rank = 0; rank < s.ranks; ++rank) {
    Part& part = s.work[met].parts[static_cast<std::size_t>(rank)];
    part.blocking = part.waits_for_all = false;
    if (cancels) part.cancel_ns = rank == canceller || draw.percent(20) ? near() : -1;
  }
  if (draw.percent(30)) {
    s.device_sets = static_cast<int>(draw.between(0, 3));
    for (Work& work : s.work) {
      if (work.verb == Verb::kAggregated && work.dtype == 1) work.dtype = 0;
      if (work.verb == Verb::kAggregated && s.ranks > 2) work.leave_tree();
    }
    return;
  }
  const auto since = draw.percent(50) ? static_cast<std::int64_t>(met) : 0;
  const auto work = draw.between(since, static_cast<std::int64_t>(met));
  Fault lost = death_of(s, s.ranks, static_cast<std::size_t>(work));
  lost.b = static_cast<int>(draw.between(0, s.ranks - 1));
  lost.at_ns = near();
  if (draw.percent(60)) {
    lost.trouble = draw.percent(50) ? Trouble::kRefuse : Trouble::kReset;
    if (!s.can_act(lost.trouble, lost.a, lost.b)) return;
    lost.for_ns = draw.between(kSecond, 6 * kSecond);
    if (draw.percent(50)) std::swap(lost.a, lost.b);
  }
  s.faults.push_back(lost);
}

void draw_departures(Draw& draw, Schedule& s) {
  std::vector<int> all = s.groups.front();
  while (s.groups.size() < 3) s.groups.push_back(all);
  const auto late = static_cast<std::size_t>(draw.between(0, s.ranks - 1));
  for (Work& work : s.work) {
    if (draw.percent(70)) work.group = static_cast<std::size_t>(draw.between(0, 2));
    if (draw.percent(30)) work.parts[late].pause_ns = draw.spread(kMicrosecond, kMillisecond);
    if (is_message(work.verb)) {
      const auto& members = s.groups[work.group];
      if (!std::ranges::binary_search(members, work.from) ||
          !std::ranges::binary_search(members, work.to))
        work.group = 0;
    } else if (work.verb == Verb::kBroadcast) {
      work.from = s.groups[work.group].front();
    }
    if (!work.weights.empty() && work.verb != Verb::kAggregated)
      work.weights.resize(s.groups[work.group].size(), 1);
  }
  for (auto leaves = draw.between(2, 4); leaves > 0; --leaves) {
    Work& work = draw.one_of(s.work);
    auto rank = static_cast<std::size_t>(draw.between(0, s.ranks - 1));
    if (rank == late) rank = (rank + 1) % static_cast<std::size_t>(s.ranks);
    work.parts[rank].exit = draw.percent(50) ? Exit::kAborts : Exit::kEnds;
  }
}

void draw_overtaken_questions(Draw& draw, Schedule& s) {
  const auto [from, to] = two_ranks(draw, s);
  const int rails = s.rails[static_cast<std::size_t>(s.pair_of(from, to))];
  if (rails < 2) return;
  for (auto more = draw.between(1, 4); more > 0; --more) {
    s.work.push_back(draw_long_message(draw, s, from, to));
    if (draw.percent(30)) continue;
    Fault held;
    constexpr std::array kHolds{Trouble::kRefuse, Trouble::kSilence, Trouble::kDelay};
    held.trouble = draw.one_of(kHolds);
    held.factor = static_cast<double>(draw.spread(1, 60));  // of a delay
    held.work = static_cast<int>(s.work.size()) - 1;
    held.a = from;
    held.b = to;
    held.rail = static_cast<int>(draw.between(0, rails - 1));
    held.at_ns = draw.spread(100, 100 * kMicrosecond);
    held.for_ns = draw.spread(kMillisecond, 100 * kMillisecond);
    s.faults.push_back(held);
  }
}

// Most of these operations are so short that no other packet is on the way.
void draw_refusals(Draw& draw, Schedule& s) {
  s.manners.refusals = static_cast<int>(draw.spread(2, 64));
  for (int& datagrams : s.datagrams) datagrams = draw.percent(80) ? 1 : 0;
  s.faults.clear();
  for (Work& work : s.work) {
    if (draw.percent(80)) work.count %= 500;
  }
}

}  // namespace

Circumstance circumstance_of(std::uint64_t seed) {
  Draw draw(seed ^ 0x434952434Dull);
  if (!draw.percent(30)) return Circumstance::kNone;
  return static_cast<Circumstance>(draw.between(1, kCircumstances - 1));
}

bool needs_three_ranks(Circumstance circumstance) {
  return circumstance == Circumstance::kDeaths ||
         circumstance == Circumstance::kUntoldCancellation ||
         circumstance == Circumstance::kDepartures;
}

void bend(Schedule& s, Circumstance circumstance) {
  Draw draw(s.seed ^ 0x42454E44ull);
  switch (circumstance) {
    case Circumstance::kNone:
      return;
    case Circumstance::kDeaths:
      return draw_deaths(draw, s);
    case Circumstance::kUntoldCancellation:
      return draw_untold_cancellation(draw, s);
    case Circumstance::kLostAggregator:
      return draw_lost_aggregator(draw, s);
    case Circumstance::kDepartures:
      return draw_departures(draw, s);
    case Circumstance::kOvertakenQuestion:
      return draw_overtaken_questions(draw, s);
    case Circumstance::kRefusals:
      return draw_refusals(draw, s);
  }
}

}  // namespace slackline::simulation
