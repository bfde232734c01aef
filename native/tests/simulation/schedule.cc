#include "schedule.h"

#include <algorithm>
#include <sstream>

namespace slackline::simulation {
namespace {

constexpr std::int64_t kPatient = 60 * kSecond;

const char* const kPlanNames[] = {"direct", "mesh", "ring", "reduce-broadcast"};

std::string time_text(std::int64_t ns) {
  std::ostringstream text;
  text.precision(4);
  if (ns >= kSecond)
    text << static_cast<double>(ns) / 1e9 << " s";
  else if (ns >= kMillisecond)
    text << static_cast<double>(ns) / 1e6 << " ms";
  else
    text << static_cast<double>(ns) / 1e3 << " us";
  return text.str();
}

Part draw_part(Draw& draw) {
  Part part;
  if (draw.percent(40)) part.pause_ns = draw.spread(kMicrosecond, 50 * kMillisecond);
  part.blocking = draw.percent(25);
  part.waits_for_all = draw.percent(30);
  part.registered = draw.percent(50);
  return part;
}

std::size_t draw_count(Draw& draw) {
  if (draw.percent(5)) return 0;
  return static_cast<std::size_t>(draw.spread(1, draw.percent(15) ? 200'000 : 8'000));
}

Work draw_work(Draw& draw, const Schedule& schedule) {
  Work work;
  const auto kind = draw.between(0, 99);
  work.verb = kind < 60   ? Verb::kAllReduce
              : kind < 90 ? Verb::kMessage
              : kind < 95 ? Verb::kAnySource
                          : Verb::kBarrier;
  work.plan = static_cast<int>(draw.between(0, 3));
  work.from = static_cast<int>(draw.between(0, schedule.ranks - 1));
  work.to = (work.from + static_cast<int>(draw.between(1, schedule.ranks - 1))) % schedule.ranks;
  work.tag = draw.percent(50) ? static_cast<int>(draw.between(0, 3)) : 0;
  work.priority = static_cast<int>(draw.between(0, 2));
  work.count = draw_count(draw);
  work.in_place = draw.percent(50);
  work.seed = draw.bits();
  work.timeout_ns = kPatient;
  for (int rank = 0; rank < schedule.ranks; ++rank) work.parts.push_back(draw_part(draw));
  return work;
}

Fault draw_fault(Draw& draw, const Schedule& schedule, const std::vector<Trouble>& on) {
  Fault fault;
  fault.trouble = draw.one_of(on);
  fault.at_ns = draw.spread(kMicrosecond, 200 * kMillisecond);
  fault.for_ns = draw.percent(20) ? draw.spread(kSecond, 6 * kSecond)
                                  : draw.spread(100 * kMicrosecond, kSecond);
  fault.a = static_cast<int>(draw.between(0, schedule.ranks - 1));
  fault.b = (fault.a + static_cast<int>(draw.between(1, schedule.ranks - 1))) % schedule.ranks;
  fault.rail = static_cast<int>(draw.between(0, 2));
  if (fault.trouble == Trouble::kSlow) fault.factor = 1.0 / static_cast<double>(draw.spread(2, 50));
  if (fault.trouble == Trouble::kDelay) fault.factor = static_cast<double>(draw.spread(1, 60));
  return fault;
}

}  // namespace

int Schedule::pair_of(int a, int b) const {
  const int low = std::min(a, b);
  const int high = std::max(a, b);
  return low * (2 * ranks - low - 1) / 2 + high - low - 1;
}

Schedule Schedule::draw(std::uint64_t seed) {
  Draw draw(seed);
  // What is switched on is drawn from numbers of its own.
  Draw swarm(seed ^ 0x5741524Dull);
  Schedule s;
  s.seed = seed;
  s.ranks = draw.percent(60) ? 2 : static_cast<int>(draw.between(3, draw.percent(80) ? 4 : 6));
  // Ranks of one host share memory: all of them, none, or as the hosts are drawn.
  const auto hosts = swarm.between(0, 2);
  std::vector<std::int64_t> host;
  for (int rank = 0; rank < s.ranks; ++rank)
    host.push_back(hosts == 0 ? 0 : hosts == 1 ? rank : draw.between(0, 1));
  for (int a = 0; a < s.ranks; ++a) {
    for (int b = a + 1; b < s.ranks; ++b) {
      const bool shared = host[static_cast<std::size_t>(a)] == host[static_cast<std::size_t>(b)];
      s.rails.push_back(shared ? 0 : static_cast<int>(draw.between(1, 3)));
    }
  }
  s.manners.short_reads = swarm.percent(50);
  s.manners.short_writes = swarm.percent(50);
  s.manners.refusals = swarm.percent(50);
  s.manners.lazy = swarm.percent(50);
  s.progress_thread = draw.percent(50);
  s.spin_us = draw.percent(20) ? 20 : 0;
  s.rank_order = draw.percent(50);
  s.eager_bytes = static_cast<std::uint64_t>(draw.spread(64, 256 << 10));
  s.wire_segment_bytes = static_cast<std::size_t>(draw.spread(4 << 10, 128 << 10));
  s.memory_segment_bytes = static_cast<std::size_t>(draw.spread(16 << 10, 256 << 10));
  s.arena_bytes = std::size_t{16} << 20;
  if (draw.percent(20))
    s.first_sequence = ~std::uint32_t{0} - static_cast<std::uint32_t>(draw.between(0, 40));
  std::vector<Trouble> on;
  for (int kind = 0; kind < kTroubles; ++kind) {
    const bool rare = static_cast<Trouble>(kind) == Trouble::kKill;
    if (!swarm.percent(rare ? 15 : 50)) continue;
    on.push_back(static_cast<Trouble>(kind));
    s.troubles |= 1u << kind;
  }
  const auto works = draw.between(3, 30);
  for (std::int64_t i = 0; i < works; ++i) s.work.push_back(draw_work(draw, s));
  const auto faults = on.empty() ? 0 : draw.between(0, 6);
  for (std::int64_t i = 0; i < faults; ++i) s.faults.push_back(draw_fault(draw, s, on));
  return s;
}

bool Schedule::benign() const {
  const bool kills = std::ranges::any_of(
      faults, [](const Fault& fault) { return fault.trouble == Trouble::kKill; });
  const bool cancels = std::ranges::any_of(work, [](const Work& each) {
    return each.timeout_ns < kPatient ||
           std::ranges::any_of(each.parts, [](const Part& part) { return part.cancel_ns >= 0; });
  });
  return !kills && !cancels;
}

std::string Schedule::story() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << ranks << " ranks, links";
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      const int count = rails[static_cast<std::size_t>(pair_of(a, b))];
      text << ' ' << a << '-' << b << (count == 0 ? " shared" : " x" + std::to_string(count));
    }
  }
  text << (progress_thread ? ", progress threads" : ", callers drive") << ", segments "
       << wire_segment_bytes << '/' << memory_segment_bytes << ", eager " << eager_bytes
       << (rank_order ? ", rank order" : "") << (manners.short_reads ? ", short reads" : "")
       << (manners.short_writes ? ", short writes" : "") << (manners.refusals ? ", refusals" : "")
       << (manners.lazy ? ", lazy threads" : "");
  if (first_sequence != 1) text << ", first number " << first_sequence;
  if (spin_us > 0) text << ", spins";
  text << '\n';
  for (std::size_t i = 0; i < work.size(); ++i) {
    const Work& each = work[i];
    text << "  work " << i << ": ";
    if (each.verb == Verb::kAllReduce)
      text << "all_reduce of " << each.count << " floats by " << kPlanNames[each.plan];
    else if (each.verb == Verb::kBarrier)
      text << "barrier";
    else
      text << "message of " << each.count << " bytes " << each.from << " -> " << each.to
           << (each.verb == Verb::kAnySource ? " (from any)" : "") << " tag " << each.tag;
    if (each.in_place) text << ", in place";
    for (int rank = 0; rank < ranks; ++rank) {
      const Part& part = each.parts[static_cast<std::size_t>(rank)];
      if (each.verb != Verb::kAllReduce && each.verb != Verb::kBarrier && rank != each.from &&
          rank != each.to)
        continue;
      text << "; " << rank << ':';
      if (part.pause_ns > 0) text << " pauses " << time_text(part.pause_ns);
      text << (part.blocking ? " blocks" : " posts") << (part.registered ? " registered" : "")
           << (part.waits_for_all ? ", waits" : "");
      if (part.cancel_ns >= 0) text << ", cancels after " << time_text(part.cancel_ns);
    }
    text << '\n';
  }
  for (const Fault& fault : faults) {
    text << "  after " << time_text(fault.at_ns) << ": ";
    const std::string where = "rail " + std::to_string(fault.rail) + " of " +
                              std::to_string(fault.a) + "-" + std::to_string(fault.b);
    switch (fault.trouble) {
      case Trouble::kReset:
        text << where << " is reset, and away for " << time_text(fault.for_ns);
        break;
      case Trouble::kEnd:
        text << where << " is closed, and away for " << time_text(fault.for_ns);
        break;
      case Trouble::kSilence:
        text << where << " is silent for " << time_text(fault.for_ns);
        break;
      case Trouble::kSlow:
        text << where << " has " << fault.factor << " of its rate for " << time_text(fault.for_ns);
        break;
      case Trouble::kDelay:
        text << where << " is " << fault.factor << " ms longer for " << time_text(fault.for_ns);
        break;
      case Trouble::kStop:
        text << "rank " << fault.a << " stands still for " << time_text(fault.for_ns);
        break;
      case Trouble::kKill:
        text << "rank " << fault.a << " is killed";
        break;
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace slackline::simulation
