#include "schedule.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "circumstances.h"

namespace slackline::simulation {

const char* const kTroubleNames[kTroubles] = {"reset", "end",  "silence", "slow", "delay",
                                              "loss",  "mess", "stop",    "kill", "refuse"};

namespace {

const char* const kPlanNames[] = {"direct", "mesh", "ring", "reduce-broadcast", "tree"};

std::string time_text(std::int64_t ns) {
  std::ostringstream text;
  text.precision(4);
  const auto value = static_cast<double>(ns);
  if (ns >= kSecond)
    text << value / 1e9 << " s";
  else if (ns >= kMillisecond)
    text << value / 1e6 << " ms";
  else
    text << value / 1e3 << " us";
  return text.str();
}

// The character of a schedule's work, drawn once, so that each schedule has its own mixture.
struct Temper {
  bool harsh;      // ranks cancel operations, leave, and have short timeouts
  bool sleepy;     // ranks come late by up to a second
  bool long_ones;  // half of the operations are long
};

Part draw_part(Draw& draw, const Temper& temper) {
  Part part;
  if (draw.percent(40))
    part.pause_ns =
        draw.spread(kMicrosecond, (temper.sleepy || draw.percent(5) ? 1000 : 50) * kMillisecond);
  part.blocking = draw.percent(25);
  part.waits_for_all = draw.percent(30);
  part.registered = draw.percent(50);
  if (temper.harsh && draw.percent(12))
    part.cancel_ns = draw.spread(kMicrosecond, 10 * kMillisecond);
  if (temper.harsh && draw.percent(4)) part.exit = static_cast<Exit>(draw.between(1, 3));
  return part;
}

std::size_t draw_count(Draw& draw, bool long_ones) {
  if (draw.percent(5)) return 0;
  if (long_ones && draw.percent(50)) return static_cast<std::size_t>(draw.between(8'000, 200'000));
  return static_cast<std::size_t>(draw.spread(1, draw.percent(15) ? 200'000 : 8'000));
}

Verb draw_verb(Draw& draw) {
  const auto kind = draw.between(0, 99);
  return kind < 45   ? Verb::kAllReduce
         : kind < 52 ? Verb::kBroadcast
         : kind < 59 ? Verb::kAllGather
         : kind < 66 ? Verb::kReduceScatter
         : kind < 70 ? Verb::kBarrier
         : kind < 95 ? Verb::kMessage
                     : Verb::kAnySource;
}

// Let cancelled operations often be long, and be cancelled while their data are on their way.
void draw_cancelled(Draw& draw, const Schedule& schedule, Work& work) {
  if (std::ranges::none_of(work.parts, [](const Part& part) { return part.cancel_ns >= 0; }))
    return;
  if (draw.percent(60)) work.count = static_cast<std::size_t>(draw.between(8'000, 200'000));
  const auto sent = static_cast<std::int64_t>(static_cast<double>(work.count * sizeof(float)) /
                                              schedule.line.bytes_per_ns);
  for (Part& part : work.parts) {
    if (part.cancel_ns < 0) continue;
    part.blocking = false;
    if (draw.percent(60)) part.cancel_ns = draw.between(0, 2 * (schedule.line.delay_ns + sent));
  }
}

constexpr std::size_t kMostLeaves = 1'000'000;  // elements of all leaves of a tree

// Let the ranks of some operations own unequal shares, whose weights they may learn late.
void draw_shares(const Schedule& schedule, Work& work) {
  Draw draw(work.seed ^ 0x534841524553ull);
  if (work.verb != Verb::kAllReduce || !draw.percent(15)) return;
  for (std::size_t i = 0; i < schedule.groups[work.group].size(); ++i)
    work.weights.push_back(static_cast<std::uint32_t>(draw.percent(15) ? 0 : draw.spread(1, 1000)));
  work.weights[0] += 1;  // so that they have a sum
  for (Part& part : work.parts) {
    if (draw.percent(50)) part.shares_ns = draw.spread(kMicrosecond, 5 * kMillisecond);
  }
}

// Give each rank a subtree, and all the same but the last; a device adds in the order of a tree
// only for two.
void draw_aggregated_tree(Draw& draw, const Schedule& schedule, Work& work) {
  const auto each = std::int64_t{1} << draw.between(0, work.dtype == 1 ? 1 : 3);
  work.weights.assign(static_cast<std::size_t>(schedule.ranks), static_cast<std::uint32_t>(each));
  work.weights.back() = static_cast<std::uint32_t>(draw.between(1, each));
  if (schedule.device_sets >= 0 && schedule.ranks > 2) work.leave_tree();
}

// Let some operations add the leaves of a tree, of which ranks have a few each or one has many.
void draw_tree(const Schedule& schedule, Work& work) {
  Draw draw(work.seed ^ 0x54524545ull);
  const bool aggregated = work.verb == Verb::kAggregated;
  if ((!aggregated && work.verb != Verb::kAllReduce) || !work.weights.empty() ||
      !draw.percent(aggregated ? 40 : 25))
    return;
  work.plan = kTree;
  if (aggregated) return draw_aggregated_tree(draw, schedule, work);
  const std::size_t ranks = schedule.groups[work.group].size();
  // The sums of bfloat16 must be exact.
  for (std::size_t i = 0; i < ranks; ++i)
    work.weights.push_back(static_cast<std::uint32_t>(draw.between(1, work.dtype == 1 ? 2 : 5)));
  const bool many = work.dtype != 1 && draw.percent(25);
  if (many) {
    // A run from the second leaf of a tree to the last but one has the most nodes.
    work.weights.assign(ranks, 1);
    const auto others = static_cast<std::uint32_t>(ranks) - 1;
    work.weights[1] = (1u << draw.between(3, 7)) - others;
  }
  const std::size_t leaves = std::accumulate(work.weights.begin(), work.weights.end(), 0u);
  const std::size_t most = kMostLeaves / leaves;
  if (many && draw.percent(50)) work.count = most / static_cast<std::size_t>(draw.between(1, 4));
  work.count = std::min(work.count, most);
}

Work draw_work(Draw& draw, const Schedule& schedule, const Temper& temper) {
  Work work;
  work.verb = draw_verb(draw);
  if (schedule.aggregator && work.verb == Verb::kAllReduce && draw.percent(60))
    work.verb = Verb::kAggregated;
  const auto groups = static_cast<std::int64_t>(schedule.groups.size());
  work.group = static_cast<std::size_t>(draw.between(0, groups - 1));
  const auto& members = schedule.groups[work.group];
  const auto size = static_cast<std::int64_t>(members.size());
  work.plan = static_cast<int>(draw.between(0, 3));
  const auto from = draw.between(0, size - 1);
  const auto to = (from + draw.between(1, size - 1)) % size;
  work.from = members[static_cast<std::size_t>(from)];
  work.to = members[static_cast<std::size_t>(to)];
  work.tag = draw.percent(50) ? static_cast<int>(draw.between(0, 3)) : 0;
  work.priority = static_cast<int>(draw.between(0, 2));
  if (draw.percent(40)) work.dtype = static_cast<int>(draw.between(1, 2));
  // The device of the aggregator adds float32 and int32.
  if (work.verb == Verb::kAggregated && schedule.device_sets >= 0 && work.dtype == 1)
    work.dtype = 0;
  work.count = draw_count(draw, temper.long_ones);
  if (is_message(work.verb)) work.count *= static_cast<std::size_t>(draw.between(1, 8));
  work.in_place = draw.percent(50);
  work.seed = draw.bits();
  work.timeout_ns =
      temper.harsh && draw.percent(8) ? draw.spread(kMillisecond, 5 * kSecond) : Work::kPatient;
  for (int rank = 0; rank < schedule.ranks; ++rank) work.parts.push_back(draw_part(draw, temper));
  draw_cancelled(draw, schedule, work);
  draw_shares(schedule, work);
  draw_tree(schedule, work);
  return work;
}

bool acts_somewhere(const Schedule& schedule, Trouble trouble) {
  for (int a = 0; a < schedule.processes(); ++a) {
    for (int b = 0; b < schedule.processes(); ++b) {
      if (a != b && schedule.can_act(trouble, a, b)) return true;
    }
  }
  return false;
}

Fault draw_fault(Draw& draw, const Schedule& schedule, const std::vector<Trouble>& on) {
  Fault fault;
  fault.trouble = draw.one_of(on);
  // A second fault often meets the same link shortly afterwards.
  const bool again = !schedule.faults.empty() && draw.percent(40);
  const int processes = schedule.processes();
  do {
    fault.a = static_cast<int>(draw.between(0, processes - 1));
    fault.b = (fault.a + static_cast<int>(draw.between(1, processes - 1))) % processes;
  } while (!schedule.can_act(fault.trouble, fault.a, fault.b));
  draw_begin(draw, schedule, fault);
  if (again) {
    const Fault& before = schedule.faults.back();
    if (schedule.can_act(fault.trouble, before.a, before.b)) {
      fault.a = before.a;
      fault.b = before.b;
      fault.work = before.work;
      fault.at_ns = before.at_ns + (draw.percent(50) ? draw.spread(100, 20 * kMillisecond)
                                                     : draw.between(0, 400 * kMillisecond));
      if (draw.percent(50)) std::swap(fault.a, fault.b);
    }
  }
  fault.for_ns = draw.percent(20) ? draw.spread(kSecond, 6 * kSecond)
                                  : draw.spread(100 * kMicrosecond, kSecond);
  const int rails = schedule.rails[static_cast<std::size_t>(schedule.pair_of(fault.a, fault.b))];
  fault.rail = static_cast<int>(draw.between(0, std::max(rails - 1, 0)));
  // A rail may go for good where another one is left.
  const bool goes = fault.trouble == Trouble::kReset || fault.trouble == Trouble::kEnd;
  if (goes && fault.rail > 0 && draw.percent(30)) fault.for_ns = kForGood;
  if (fault.trouble == Trouble::kSlow) fault.factor = 1.0 / static_cast<double>(draw.spread(2, 50));
  if (fault.trouble == Trouble::kDelay) fault.factor = static_cast<double>(draw.spread(1, 60));
  if (fault.trouble == Trouble::kLoss) fault.factor = static_cast<double>(draw.spread(1, 50));
  if (fault.trouble == Trouble::kMess) fault.factor = static_cast<double>(draw.spread(1, 30));
  return fault;
}

// Half of the schedules have lines of 1 GB/s and 20 us; others are slower and longer.
void draw_line(Draw& draw, Schedule& s) {
  if (draw.percent(50)) return;
  s.line.bytes_per_ns = 1.0 / static_cast<double>(draw.spread(1, 100));
  s.line.delay_ns = draw.spread(2 * kMicrosecond, 5 * kMillisecond);
  s.line.room = static_cast<std::size_t>(draw.spread(64 << 10, 1 << 20));
}

void draw_links(Draw& draw, Draw& swarm, Schedule& s) {
  // Ranks of one host share memory: all of them, none, or as the hosts are drawn.
  const auto hosts = swarm.between(0, 3);
  const auto wires = swarm.between(0, 2);  // TCP, UDP, or as it comes
  std::vector<std::int64_t> host;
  for (int rank = 0; rank < s.processes(); ++rank)
    host.push_back(hosts == 0 ? 0 : hosts == 1 ? draw.between(0, 1) : rank);
  for (int a = 0; a < s.processes(); ++a) {
    for (int b = a + 1; b < s.processes(); ++b) {
      const bool shared = host[static_cast<std::size_t>(a)] == host[static_cast<std::size_t>(b)];
      s.rails.push_back(shared ? 0 : static_cast<int>(draw.between(1, 3)));
      s.datagrams.push_back(wires == 1 || (wires == 2 && draw.percent(50)) ? 1 : 0);
    }
  }
}

void draw_groups(Draw& draw, Schedule& s) {
  std::vector<int> all(static_cast<std::size_t>(s.ranks));
  std::iota(all.begin(), all.end(), 0);
  s.groups.push_back(all);
  const auto more = draw.percent(40) ? draw.between(1, 3) : 0;
  for (std::int64_t i = 0; i < more; ++i) {
    std::vector<int> members;
    for (const int rank : all) {
      if (draw.percent(60)) members.push_back(rank);
    }
    if (members.size() < 2) members = all;
    s.groups.push_back(std::move(members));
  }
}

}  // namespace

int Schedule::pair_of(int a, int b) const {
  const int low = std::min(a, b);
  const int high = std::max(a, b);
  return low * (2 * processes() - low - 1) / 2 + high - low - 1;
}

bool Schedule::can_act(Trouble trouble, int from, int to) const {
  if (trouble == Trouble::kStop || trouble == Trouble::kKill) return true;
  const auto pair = static_cast<std::size_t>(pair_of(from, to));
  const bool packets = trouble == Trouble::kLoss || trouble == Trouble::kMess;
  return rails[pair] > 0 && (!packets || datagrams[pair] != 0);
}

bool Schedule::takes_part(const Work& each, int rank) const {
  if (each.verb == Verb::kAggregated) return rank < ranks;
  return is_message(each.verb) ? rank == each.from || rank == each.to
                               : std::ranges::binary_search(groups[each.group], rank);
}

Schedule Schedule::draw(std::uint64_t seed) {
  Draw draw(seed);
  // A second stream of numbers decides which faults may happen, so that the first stays the same.
  Draw swarm(seed ^ 0x5741524Dull);
  Schedule s;
  s.seed = seed;
  s.ranks = draw.percent(60) ? 2 : static_cast<int>(draw.between(3, draw.percent(80) ? 4 : 6));
  const Circumstance circumstance = circumstance_of(seed);
  if (needs_three_ranks(circumstance)) s.ranks = std::max(s.ranks, 3);
  s.aggregator = swarm.percent(20) || circumstance == Circumstance::kLostAggregator;
  s.onset = static_cast<std::uint32_t>(draw.between(1, 8));
  Draw device(seed ^ 0x444556494345ull);
  if (s.aggregator && device.percent(40))
    s.device_sets = device.percent(50) ? 1 << 30 : static_cast<int>(device.spread(1, 1000)) - 1;
  draw_links(draw, swarm, s);
  draw_groups(draw, s);
  s.manners.short_reads = swarm.percent(50);
  s.manners.short_writes = swarm.percent(50);
  s.manners.refusals = swarm.percent(50) ? 5 : 0;
  s.manners.lazy = swarm.percent(50);
  s.manners.preempts = swarm.percent(40);
  draw_line(draw, s);
  s.progress_thread = draw.percent(50);
  s.spin_us = draw.percent(20) ? 20 : 0;
  s.rank_order = draw.percent(50);
  s.eager_bytes = static_cast<std::uint64_t>(draw.spread(64, 256 << 10));
  s.wire_segment_bytes = static_cast<std::size_t>(draw.spread(4 << 10, 128 << 10));
  s.memory_segment_bytes = static_cast<std::size_t>(draw.spread(1 << 10, 256 << 10));
  s.arena_bytes = std::size_t{16} << 20;
  if (draw.percent(20))
    s.first_sequence = ~std::uint32_t{0} - static_cast<std::uint32_t>(draw.between(0, 40));
  std::vector<Trouble> on;
  for (int kind = 0; kind < kTroubles; ++kind) {
    const bool rare = static_cast<Trouble>(kind) == Trouble::kKill;
    if (!swarm.percent(rare ? 15 : 40) || !acts_somewhere(s, static_cast<Trouble>(kind))) continue;
    on.push_back(static_cast<Trouble>(kind));
    s.troubles |= 1u << kind;
  }
  const Temper temper{swarm.percent(40), swarm.percent(15), swarm.percent(30)};
  const auto works = temper.long_ones ? draw.between(2, 12) : draw.between(3, 30);
  for (std::int64_t i = 0; i < works; ++i) s.work.push_back(draw_work(draw, s, temper));
  const auto faults = on.empty() ? 0 : draw.percent(15) ? 0 : draw.between(1, 8);
  for (std::int64_t i = 0; i < faults; ++i) s.faults.push_back(draw_fault(draw, s, on));
  const bool silences = s.troubles >> static_cast<int>(Trouble::kSilence) & 1;
  const bool resets = s.troubles >> static_cast<int>(Trouble::kReset) & 1;
  if (silences && resets && draw.percent(60)) draw_failover(draw, s);
  if (s.troubles != 0 && swarm.percent(6)) draw_last_resort(draw, s);
  bend(s, circumstance);
  for (const Fault& fault : s.faults) s.troubles |= 1u << static_cast<int>(fault.trouble);
  return s;
}

bool Schedule::benign() const {
  // The ranks go on without an aggregator that has ended.
  const bool kills = std::ranges::any_of(faults, [this](const Fault& fault) {
    return fault.trouble == Trouble::kKill && fault.a < ranks;
  });
  return !kills && calm();
}

bool Schedule::patient() const {
  const auto any = [&](const auto& is) { return std::ranges::any_of(work, is); };
  const auto any_part = [](const Work& each, const auto& is) {
    return std::ranges::any_of(each.parts, is);
  };
  // A receive from any source may have a sender as long as one rank is left, and the sender learns
  // nothing of a receive that is cancelled before it has a sender.
  const bool from_any = any([](const Work& each) { return each.verb == Verb::kAnySource; });
  return !from_any || !any([&](const Work& each) {
    return each.is_short() || any_part(each, [](const Part& part) {
             return part.cancel_ns >= 0 || part.exit != Exit::kStays;
           });
  });
}

bool Schedule::calm() const {
  return !std::ranges::any_of(work, [](const Work& each) {
    return each.is_short() || std::ranges::any_of(each.parts, [](const Part& part) {
             return part.cancel_ns >= 0 || part.exit != Exit::kStays;
           });
  });
}

namespace {

std::string words_of(const Work& each) {
  std::ostringstream text;
  constexpr const char* kNouns[] = {" floats", " bfloat16", " int32"};
  const std::string floats = " of " + std::to_string(each.count) + kNouns[each.dtype];
  switch (each.verb) {
    case Verb::kAllReduce:
      text << "all_reduce" << floats << " by " << kPlanNames[each.plan];
      break;
    case Verb::kBroadcast:
      text << "broadcast" << floats << (each.plan % 2 == 1 ? " by a chain" : "");
      break;
    case Verb::kAllGather:
      text << "all_gather" << floats;
      break;
    case Verb::kReduceScatter:
      text << "reduce_scatter" << floats;
      break;
    case Verb::kBarrier:
      text << "barrier";
      break;
    case Verb::kAggregated:
      text << "all_reduce" << floats << " by the aggregator"
           << (each.in_tree() ? " in a tree" : "");
      break;
    default:
      text << "message of " << each.count << " bytes " << each.from << " -> " << each.to
           << (each.verb == Verb::kAnySource ? " (from any)" : "");
  }
  if (each.tag != 0) text << ", tag " << each.tag;
  if (each.priority != 0) text << ", priority " << each.priority;
  if (each.group != 0) text << ", group " << each.group;
  if (each.in_place && !is_message(each.verb)) text << ", in place";
  if (!each.weights.empty()) text << (each.in_tree() ? ", leaves" : ", shares");
  for (const std::uint32_t weight : each.weights) text << ' ' << weight;
  if (each.is_short()) text << ", timeout " << time_text(each.timeout_ns);
  return text.str();
}

std::string words_of(const Part& part) {
  std::string text;
  if (part.pause_ns > 0) text += " pauses " + time_text(part.pause_ns) + ",";
  text += part.blocking ? " blocks" : " posts";
  if (part.registered) text += " registered";
  if (part.shares_ns >= 0) text += ", knows the shares after " + time_text(part.shares_ns);
  if (part.cancel_ns >= 0) text += ", cancels after " + time_text(part.cancel_ns);
  if (part.waits_for_all) text += ", waits";
  if (part.exit == Exit::kCloses) text += ", closes the group";
  if (part.exit == Exit::kAborts) text += ", aborts the group";
  if (part.exit == Exit::kEnds) text += ", ends its work after as long a pause";
  return text;
}

std::string words_of(const Fault& fault) {
  std::ostringstream text;
  const std::string where = "rail " + std::to_string(fault.rail) + " from " +
                            std::to_string(fault.a) + " to " + std::to_string(fault.b);
  const std::string lasting = " for " + time_text(fault.for_ns);
  text << time_text(fault.at_ns) << " after ";
  if (fault.work < 0)
    text << "the start: ";
  else
    text << "rank " << fault.a << " or " << fault.b << " posts work " << fault.work << ": ";
  switch (fault.trouble) {
    case Trouble::kReset:
      text << where << " is reset, and " << (fault.factor == 0 ? "refused" : "away") << lasting;
      break;
    case Trouble::kEnd:
      text << where << " is closed, and away" << lasting;
      break;
    case Trouble::kSilence:
      text << where << " is silent" << lasting;
      break;
    case Trouble::kSlow:
      text << where << " has " << fault.factor << " of its rate" << lasting;
      break;
    case Trouble::kDelay:
      text << where << " is " << fault.factor << " ms longer" << lasting;
      break;
    case Trouble::kLoss:
      text << where << " loses " << fault.factor << " %" << lasting;
      break;
    case Trouble::kMess:
      text << where << " doubles, damages and delays " << fault.factor << " %" << lasting;
      break;
    case Trouble::kStop:
      text << "rank " << fault.a << " stands still" << lasting;
      break;
    case Trouble::kRefuse:
      text << where << " is refused by the sender's system" << lasting;
      break;
    case Trouble::kKill:
      text << "rank " << fault.a << " is killed";
      break;
  }
  return text.str();
}

}  // namespace

std::string Schedule::story() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << ranks << " ranks, links";
  for (int a = 0; a < processes(); ++a) {
    for (int b = a + 1; b < processes(); ++b) {
      const auto pair = static_cast<std::size_t>(pair_of(a, b));
      text << ' ' << a << '-' << b;
      if (rails[pair] == 0)
        text << " shared";
      else
        text << (datagrams[pair] != 0 ? " UDP" : " TCP") << " x" << rails[pair];
    }
  }
  text << (progress_thread ? ", progress threads" : ", callers drive") << ", segments "
       << wire_segment_bytes << '/' << memory_segment_bytes << ", eager " << eager_bytes
       << (rank_order ? ", rank order" : "") << (manners.short_reads ? ", short reads" : "")
       << (manners.short_writes ? ", short writes" : "")
       << (manners.refusals > 0 ? ", " + std::to_string(manners.refusals) + " % refusals" : "")
       << (manners.lazy ? ", lazy threads" : "") << (manners.preempts ? ", preempted threads" : "");
  const Line usual;
  if (line.bytes_per_ns != usual.bytes_per_ns || line.delay_ns != usual.delay_ns)
    text << ", lines of " << line.bytes_per_ns * 1000 << " MB/s and " << time_text(line.delay_ns);
  if (line.room != usual.room) text << ", sockets of " << line.room << " bytes";
  if (first_sequence != 1) text << ", first number " << first_sequence;
  if (spin_us > 0) text << ", spins";
  if (aggregator) text << ", aggregator " << ranks << " from segment " << onset << " on";
  if (device_sets >= 0) text << " with a device for " << device_sets << " sets of frames";
  for (std::size_t group = 1; group < groups.size(); ++group) {
    text << ", group " << group << " of";
    for (const int rank : groups[group]) text << ' ' << rank;
  }
  text << '\n';
  for (std::size_t i = 0; i < work.size(); ++i) {
    text << "  work " << i << ": " << words_of(work[i]);
    for (int rank = 0; rank < ranks; ++rank) {
      if (takes_part(work[i], rank))
        text << "; " << rank << words_of(work[i].parts[static_cast<std::size_t>(rank)]);
    }
    text << '\n';
  }
  for (const Fault& fault : faults) text << "  " << words_of(fault) << '\n';
  return text.str();
}

}  // namespace slackline::simulation
