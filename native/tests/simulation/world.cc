#include "world.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "../ranks.h"

namespace slackline::simulation {
namespace {

constexpr std::uint32_t kEpoch = 7;  // of the first group
constexpr std::uint32_t kAggregatedEpoch = 100;
constexpr std::uint32_t kFallbackEpoch = 101;
constexpr std::int64_t kLongestNs = 1000 * kSecond;
constexpr std::int64_t kLeaveNs = 10 * kSecond;

}  // namespace

World::World(const Schedule& schedule)
    : schedule_(schedule),
      system_(schedule.seed ^ 0x4E4F495345ull, schedule.manners, schedule.line,
              schedule.processes()),
      ranks_(static_cast<std::size_t>(schedule.processes())),
      wiring_(schedule, system_, stations()),
      truths_(schedule.work.size()),
      begun_(schedule.faults.size()) {}

std::vector<Station*> World::stations() {
  std::vector<Station*> all;
  for (Rank& each : ranks_) all.push_back(&each);
  return all;
}

World::~World() {
  const bool ended = system_.end();
  for (int number = 0; number < schedule_.processes(); ++number) {
    Rank& each = rank(number);
    each.doings.clear();
    each.groups.clear();
    each.aggregated.reset();
    each.fallback.reset();
    if (each.engine == nullptr) continue;
    const As as(system_, number);
    // An engine whose process was killed in the middle of close() cannot be destroyed, nor one in
    // which a thread still is.
    if (!ended || (each.closing && !each.left))
      static_cast<void>(each.engine.release());
    else
      each.engine.reset();
  }
  for (Rank& each : ranks_) {
    for (const auto& [memory, bytes] : each.plain) delete[] memory;
  }
}

void World::broken(const std::string& law) const {
  std::ostringstream text;
  text << "after " << static_cast<double>(system_.now_ns() - began_ns_) / 1e6 << " ms: " << law;
  throw Broken(text.str());
}

void World::note(std::uint64_t value) {
  outcome_.trace = (outcome_.trace ^ value) * 0x100000001B3ull + (outcome_.trace >> 29);
}

void World::make_engines() {
  EngineOptions options;
  options.arena_bytes = schedule_.arena_bytes;
  options.wire_segment_bytes = schedule_.wire_segment_bytes;
  options.memory_segment_bytes = schedule_.memory_segment_bytes;
  options.eager_bytes = schedule_.eager_bytes;
  options.spin_microseconds = schedule_.spin_us;
  options.progress_thread = schedule_.progress_thread;
  for (int number = 0; number < schedule_.processes(); ++number) {
    const As as(system_, number);
    system_.process(number).clock_offset_ns = (number * 7 + 1) * kSecond;
    // No thread of the simulation is in a call of the aggregator's engine, nor in one of a rank
    // that waits for others: only their own threads can drive these engines.
    if (schedule_.aggregator) options.progress_thread = true;
    rank(number).engine = std::make_unique<Engine>(options);
    rank(number).links.assign(static_cast<std::size_t>(schedule_.processes()), -1);
    rank(number).groups.resize(schedule_.groups.size());
    rank(number).exited.resize(schedule_.groups.size());
  }
}

World::Buffer World::take(Rank& rank, std::size_t bytes, bool registered) {
  Buffer buffer;
  buffer.bytes = bytes;
  const std::size_t whole = bytes + 2 * kMargin;
  if (registered) buffer.base = rank.engine->allocate(whole);
  buffer.registered = buffer.base != nullptr;
  if (buffer.base == nullptr) {
    buffer.base = new std::byte[whole];
    rank.plain.emplace_back(buffer.base, whole);
  }
  std::memset(buffer.base, static_cast<int>(kMark), whole);
  return buffer;
}

Operation World::message_of(const Work& work, int number, Doing& doing) {
  const auto& members = schedule_.groups[work.group];
  const auto place = [&](int rank) {
    return static_cast<int>(std::ranges::find(members, rank) - members.begin());
  };
  Operation operation;
  operation.tag =
      work.verb == Verb::kAnySource ? 1000 + static_cast<std::int64_t>(doing.work) : work.tag;
  operation.dtype = wire::DType::kUint8;
  operation.count = operation.total_bytes = work.count;
  operation.receives = number == work.to;
  operation.any_source = operation.receives && work.verb == Verb::kAnySource;
  operation.peer = operation.any_source ? -1 : place(operation.receives ? work.from : work.to);
  Buffer& buffer = operation.receives ? doing.target : doing.source;
  buffer = take(rank(number), work.count, work.parts[static_cast<std::size_t>(number)].registered);
  if (operation.receives) {
    operation.target = buffer.data();
  } else {
    operation.source = buffer.data();
    const std::vector<std::byte>& bytes = truth_of(doing.work, 0).result;
    if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
  }
  return operation;
}

Operation World::operation_of(const Work& work, int number, Doing& doing) {
  const Group& group = group_for(work, number);
  const bool registered = work.parts[static_cast<std::size_t>(number)].registered;
  const std::size_t count = elements_of(work);
  const std::size_t bytes = count * item_bytes(work);
  Operation operation;
  operation.tag = work.tag == 0 ? -1 : work.tag;
  operation.op = work.verb == Verb::kBroadcast || work.verb == Verb::kAllGather
                     ? wire::ReduceOp::kNone
                 : work.averages() ? wire::ReduceOp::kAvg
                                   : wire::ReduceOp::kSum;
  operation.program = program_of(work, group.size(), group.rank);
  // Unequal shares need a plan in which each rank owns a part of the buffer.
  if (!work.weights.empty() && !work.in_tree() && operation.program->chunks() == group.size())
    operation.shares = doing.shares = std::make_shared<Shares>();
  // The result replaces the last of a rank's buffers, or is in a buffer of its own.
  const int members = group.size() - (work.verb == Verb::kAggregated ? 1 : 0);
  const std::size_t buffers = buffers_of(work, members, group.rank);
  doing.result_at = work.in_place ? (buffers - 1) * bytes : 0;
  doing.target = take(rank(number), doing.result_at + bytes, registered);
  std::byte* values = doing.target.data();
  if (!work.in_place) {
    doing.source = take(rank(number), buffers * bytes, registered);
    values = doing.source.data();
  }
  const Truth& truth = truth_of(doing.work, members);
  const auto& data = truth.data[static_cast<std::size_t>(group.rank)];
  if (!data.empty()) std::memcpy(values, data.data(), data.size());
  operation.dtype = dtype_of(work);
  operation.source = values;
  operation.target = doing.target.data() + doing.result_at;
  if (work.has_nodes()) {
    const test::Runs runs = runs_of(work, group.size());
    std::vector<std::byte*> nodes(runs.nodes.size(), nullptr);
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      if (runs.ranks[node] != group.rank) continue;
      nodes[node] = values;
      values += bytes;
    }
    operation.chunks = runs.chunks(nodes, operation.target, count, item_bytes(work));
    operation.source = operation.target = nullptr;
  }
  operation.count = count;
  operation.total_bytes = bytes;
  return operation;
}

void World::poison(Doing& doing) {
  for (const Buffer* buffer : {&doing.source, &doing.target}) {
    if (buffer->base != nullptr)
      std::memset(buffer->base, static_cast<int>(kPoison), buffer->bytes + 2 * kMargin);
  }
  doing.poisoned = true;
}

// Return the data of an operation and its result. They are computed once for all ranks.
const Truth& World::truth_of(std::size_t index, int members) {
  std::optional<Truth>& truth = truths_[index];
  if (!truth) truth.emplace(schedule_.work[index], members);
  return *truth;
}

// Look at an operation that has ended.
void World::settle(int number, Doing& doing) {
  if (doing.poisoned) return;
  const Request& request = *doing.request;
  note(static_cast<std::uint64_t>(system_.now_ns()) * 31 + doing.work);
  const Work& work = schedule_.work[doing.work];
  if (request.failure) {
    ++outcome_.failed;
    if (request.failure.message.empty()) broken("a failure has no message");
    if (schedule_.benign())
      broken("work " + std::to_string(doing.work) + " failed at rank " + std::to_string(number) +
             " though nothing asked for it: " + request.failure.message);
    if (request.failure.fault == slackline::Fault::kTimeout) check_end(number, request);
    if (schedule_.patient() && !work.is_short() &&
        request.failure.fault == slackline::Fault::kTimeout)
      broken("work " + std::to_string(doing.work) + " waited at rank " + std::to_string(number) +
             " for its timeout, though another has ended it: " + request.failure.message);
  } else {
    check_result(number, doing);
  }
  check_margins(number, doing, false);
  // Registered memory of an operation that has failed is given back at once: peers still know its
  // address, and may read it until they learn of the failure (docs/assumptions.md).
  for (Buffer* buffer : {&doing.source, &doing.target}) {
    if (!request.failure || !buffer->registered || buffer->base == nullptr) continue;
    if (!rank(number).engine->arena().free(std::exchange(buffer->base, nullptr)))
      broken("memory cannot be given back");
  }
  poison(doing);
}

Group& World::group_of(int number, std::size_t index) {
  std::shared_ptr<Group>& group = rank(number).groups[index];
  if (group != nullptr) return *group;
  std::vector<int> links;
  int place = 0;
  for (const int member : schedule_.groups[index]) {
    if (member == number) place = static_cast<int>(links.size());
    links.push_back(rank(number).links[static_cast<std::size_t>(member)]);
  }
  group = rank(number).engine->open_group(kEpoch + static_cast<std::uint32_t>(index), place, links,
                                          schedule_.rank_order);
  return *group;
}

// Open the groups of the ranks with the aggregator, and those that take over without it.
void World::make_aggregator() {
  const int node = schedule_.ranks;
  for (int number = 0; number <= node; ++number) {
    const As as(system_, number);
    Rank& here = rank(number);
    std::vector<int> links = here.links;
    here.aggregated = here.engine->open_group(kAggregatedEpoch, number, links, true);
    if (number == node) {
      const auto program = test::star(node, node);
      if (schedule_.device_sets >= 0) {
        here.device = std::make_unique<test::NodeDevice>(*here.engine, here.aggregated,
                                                         schedule_.device_sets);
        program->offloads = true;
      }
      const Tree pairwise = test::even_tree(node);
      const auto tree = test::star(node, node, &pairwise);
      tree->offloads = program->offloads;
      here.engine->roles().serve(*here.aggregated, program, schedule_.onset, tree);
      continue;
    }
    links.pop_back();
    here.fallback = here.engine->open_group(kFallbackEpoch, number, links, true);
    here.engine->roles().fall_back(*here.aggregated, here.fallback, test::mesh(node, number));
  }
}

// The life of the aggregator: it works until the last rank has left.
void World::aggregate() {
  const auto all_left = [this] {
    for (int number = 0; number < schedule_.ranks; ++number) {
      if (system_.process(number).alive && !rank(number).left) return kNever;
    }
    return system_.now_ns();
  };
  system_.wait(all_left, kNever);
  Rank& here = rank(schedule_.ranks);
  here.engine->close_group(*here.aggregated, kLeaveNs);
  here.closing = true;
  here.engine->close(kLeaveNs);
  here.left = true;
}

Group& World::group_for(const Work& work, int number) {
  return work.verb == Verb::kAggregated ? *rank(number).aggregated : group_of(number, work.group);
}

// Let the faults begin that await an operation, or with -1 those that await the start.
void World::begin_faults(int number, int work) {
  for (std::size_t i = 0; i < schedule_.faults.size(); ++i) {
    const Fault& fault = schedule_.faults[i];
    if (fault.work != work || (work >= 0 && fault.a != number && fault.b != number)) continue;
    if (begun_[i]) continue;
    begun_[i] = true;
    system_.at(system_.now_ns() + fault.at_ns, [this, &fault] { wiring_.begin(fault); });
  }
}

// Tell an engine the weights of an operation's shares.
void World::share(int number, const Work& work, std::shared_ptr<Shares> shares) {
  Group& group = group_of(number, work.group);
  constexpr auto kNumbers = static_cast<std::uint64_t>(Shares::kMostNumber);
  rank(number).engine->set_shares(group, *shares, work.weights,
                                  1 + static_cast<int>(work.seed % kNumbers),
                                  program_of(work, group.size(), group.rank));
}

void World::post(int number, std::size_t index) {
  Rank& here = rank(number);
  begin_faults(number, static_cast<int>(index));
  const Work& work = schedule_.work[index];
  const Part& part = work.parts[static_cast<std::size_t>(number)];
  Group& group = group_for(work, number);
  auto doing = std::make_unique<Doing>();
  doing->work = index;
  Operation operation =
      is_message(work.verb) ? message_of(work, number, *doing) : operation_of(work, number, *doing);
  operation.priority = work.priority;
  operation.timeout_ns = work.timeout_ns;
  ++outcome_.operations;
  if (doing->shares != nullptr && part.shares_ns < 0) {
    share(number, work, doing->shares);
  } else if (doing->shares != nullptr) {
    shares_known_ns_ = std::max(shares_known_ns_, system_.now_ns() + part.shares_ns);
    system_.at(system_.now_ns() + part.shares_ns, [this, number, &work, shares = doing->shares] {
      if (!system_.process(number).alive || rank(number).left) return;
      system_.start(number, [this, number, &work, shares] { share(number, work, shares); }, true);
    });
  }
  doing->request = here.engine->post(group, operation, part.blocking);
  Doing& kept = *here.doings.emplace_back(std::move(doing));
  if (part.blocking && !kept.request->finished()) broken("a call returned before the end");
  if (part.blocking)
    check_in_time(number, kept.request->deadline_ns - system_.process(number).clock_offset_ns);
  if (part.cancel_ns >= 0) {
    system_.sleep(part.cancel_ns);
    here.engine->cancel(*kept.request,
                        slackline::Failure{slackline::Fault::kUsage, "cancelled", number});
  }
  if (part.waits_for_all) wait_for_all(number);
  for (const auto& each : here.doings) {
    if (each->request->finished())
      settle(number, *each);
    else if (schedule_.progress_thread)
      check_in_time(number, each->request->deadline_ns - system_.process(number).clock_offset_ns);
  }
}

void World::wait_for_all(int number) {
  for (const auto& each : rank(number).doings) {
    const std::int64_t deadline =
        each->request->deadline_ns - system_.process(number).clock_offset_ns;
    const std::int64_t until = std::max(system_.now_ns(), deadline);
    rank(number).engine->wait(*each->request, -1);
    if (!each->request->finished()) broken("a wait returned before the end");
    check_in_time(number, until);
    settle(number, *each);
  }
}

void World::exit(int number, std::size_t index, Exit exit) {
  Rank& here = rank(number);
  if (exit == Exit::kAborts) here.engine->abort_group(*here.groups[index], "the schedule says so");
  here.engine->close_group(*here.groups[index], exit == Exit::kEnds ? 0 : kLeaveNs);
  here.exited[index] = true;
  for (const auto& doing : here.doings) {
    const Work& work = schedule_.work[doing->work];
    if (work.group != index || work.verb == Verb::kAggregated) continue;
    if (!doing->request->finished()) broken("an operation is open after its group");
    settle(number, *doing);
  }
}

// Close all groups of a rank, with Exit::kEnds at once, and its engine.
void World::leave(int number, Exit how) {
  Rank& here = rank(number);
  here.leaving = true;
  check_probes(number);
  const std::int64_t patience = how == Exit::kEnds ? 0 : kLeaveNs;
  for (std::size_t index = 0; index < here.groups.size(); ++index) {
    if (here.groups[index] != nullptr && !here.exited[index]) exit(number, index, how);
  }
  for (const auto& group : {here.aggregated, here.fallback}) {
    if (group != nullptr) here.engine->close_group(*group, patience);
  }
  for (const auto& doing : here.doings) settle(number, *doing);
  check_memory(number);
  here.done = here.closing = true;
  // In shared memory nothing is lost that an engine leaves behind.
  const bool shared = std::ranges::all_of(schedule_.rails, [](int rails) { return rails == 0; });
  here.engine->close(shared ? patience : kLeaveNs);
  here.left = true;
}

// Wait until every rank has done its work. A rank that has lost the aggregator may need the others.
void World::wait_for_others() {
  const auto all_done = [this] {
    for (int number = 0; number < schedule_.ranks; ++number) {
      if (system_.process(number).alive && !rank(number).done) return kNever;
    }
    return system_.now_ns();
  };
  system_.wait(all_done, kNever);
}

// A process that is killed while it is preempted sees nothing that counts.
void World::break_law(int number, const std::string& law) {
  if (law_.empty() && system_.process(number).alive) law_ = law;
}

// Do the work of one rank.
void World::act(int number) {
  Rank& here = rank(number);
  try {
    for (std::size_t index = 0; index < schedule_.work.size(); ++index) {
      const Work& work = schedule_.work[index];
      const bool aggregated = work.verb == Verb::kAggregated;
      if (!schedule_.takes_part(work, number) || (!aggregated && here.exited[work.group])) continue;
      const Part& part = work.parts[static_cast<std::size_t>(number)];
      if (part.pause_ns > 0) system_.sleep(part.pause_ns);
      post(number, index);
      if (part.exit == Exit::kEnds) {
        system_.sleep(part.pause_ns);  // in which a part of the operation is done
        return leave(number, part.exit);
      }
      if (part.exit != Exit::kStays && !aggregated) exit(number, work.group, part.exit);
    }
    if (++ranks_at_end_ == schedule_.ranks) all_posted_ns_ = system_.now_ns();
    wait_for_all(number);
    check_prompt(number);
    here.done = true;
    if (schedule_.aggregator) wait_for_others();
    leave(number, Exit::kCloses);
  } catch (const Broken& law) {
    break_law(number, law.what());
  } catch (const std::exception& error) {
    break_law(number, std::string("an exception: ") + error.what());
  }
}

Outcome World::play() {
  make_engines();
  wiring_.connect();
  began_ns_ = system_.now_ns();
  // Ranks open a group together, before the first of them can leave it. Where something else ends
  // operations too, each opens its groups when it needs them.
  for (std::size_t index = 0; index < schedule_.groups.size() && schedule_.calm(); ++index) {
    for (const int number : schedule_.groups[index]) {
      const As as(system_, number);
      group_of(number, index);
    }
  }
  if (schedule_.aggregator) make_aggregator();
  begin_faults(-1, -1);
  for (int number = 0; number < schedule_.ranks; ++number) {
    system_.start(number, [this, number] { act(number); });
    system_.start(number, [this, number] { wiring_.listen(number); }, true);
  }
  if (schedule_.aggregator) {
    system_.start(schedule_.ranks, [this] { aggregate(); });
    system_.start(schedule_.ranks, [this] { wiring_.listen(schedule_.ranks); }, true);
  }
  bool ended = system_.run(began_ns_ + kLongestNs, false);
  if (law_.empty() && ended) ended = system_.run(system_.now_ns() + kLongestNs, true);
  outcome_.switches = system_.switches();
  outcome_.simulated_ns = system_.now_ns() - began_ns_;
  note(static_cast<std::uint64_t>(system_.now_ns()));
  outcome_.acted = wiring_.acted();
  if (law_.empty()) law_ = wiring_.broken_law();
  if (!law_.empty()) throw Broken(law_);
  if (!ended) broken("nothing goes on; there wait " + system_.waiting());
  for (int number = 0; number < schedule_.ranks; ++number) {
    if (!system_.process(number).alive) continue;
    for (const auto& doing : rank(number).doings) check_margins(number, *doing, true);
  }
  return outcome_;
}

}  // namespace slackline::simulation
