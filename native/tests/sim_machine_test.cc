// Tests of the simulator's machine: exact times of small plans, faults, and frames that outlive the
// event that ends their execution.
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../src/sim/machine.h"
#include "check.h"

namespace slackline::sim {
namespace {

constexpr std::uint64_t kRate = 8'000'000'000;  // a byte takes 1000 ps
constexpr Time kByte = 1000;
constexpr Time kLatency = 5000;  // picoseconds of a cable

// An owner of a machine that counts the delivered tokens, and stops the machine when all members
// have ended.
class Counting final : public Owner, public Faults {
 public:
  explicit Counting(std::uint32_t ends) : ends_(ends) {}
  Machine* machine = nullptr;
  std::vector<std::pair<std::int64_t, std::uint32_t>> delivered;
  std::uint64_t lost_of_first = 0;

  void deliver(std::int64_t token, std::uint32_t member) override {
    delivered.emplace_back(token, member);
  }
  void settle() override {
    if (delivered.size() == ends_) machine->stop();
  }
  PathState state(const Path&) override { return PathState{.plain = lost_of_first == 0}; }
  Lot draw(const Path&, std::uint64_t) override {
    return Lot{.lost = std::exchange(lost_of_first, 0)};
  }

 private:
  std::uint32_t ends_;
};

Fabric fabric(std::uint32_t hosts) {
  Fabric found;
  found.hosts.assign(hosts, Host{.rates_bps = {kRate}, .latency = kLatency});
  return found;
}

// Return an all_reduce of one chunk on two ranks: rank 0 sends to rank 1, which adds and sends
// back.
std::shared_ptr<const CompiledPlan> there_and_back(std::uint64_t elements) {
  PlanOptions options{.ranks = 2,
                      .cuts = {Cut{elements, 1, 0}},
                      .itemsize = 1,
                      .widest_itemsize = 1,
                      .onset = 1,
                      .priority = 0,
                      .reduces = true,
                      .rotation = std::nullopt};
  return std::make_shared<CompiledPlan>(
      std::move(options), std::vector<std::vector<Instruction>>{
                              {{StepKind::kSend, 1, 0, false}, {StepKind::kCopy, 1, 0, false}},
                              {{StepKind::kAdd, 0, 0, true}, {StepKind::kSend, 0, 0, false}}});
}

// Run the plan, and return the time at which rank 0 has the result.
Time run(Counting& owner, bool faulty) {
  Machine machine(fabric(2), {0, 1}, faulty ? &owner : nullptr, owner);
  owner.machine = &machine;
  const auto execution =
      machine.execute(there_and_back(100), ExecutionOptions{.members = {0, 1}, .token = 7});
  execution->begin(0);
  execution->begin(1);
  machine.run(kNever - 1);
  CHECK(execution->finished() && execution->over());
  CHECK(execution->messages() == 2);
  CHECK(execution->ended(1) == 200 * kByte + 2 * kLatency);
  return execution->ended(0);
}

TEST("a message there and back takes its bytes and its cables twice") {
  Counting owner(2);
  CHECK(run(owner, false) == 200 * kByte + 4 * kLatency);
  CHECK((owner.delivered == std::vector<std::pair<std::int64_t, std::uint32_t>>{{7, 1}, {7, 0}}));
}

TEST("a network whose faults do nothing has the times of one without faults") {
  Counting owner(2);
  CHECK(run(owner, true) == 200 * kByte + 4 * kLatency);
}

// Run the plan on ports that let `burst` bytes pass ahead of their rate; return the time at which
// each rank has ended.
std::pair<Time, Time> run_with_burst(std::uint64_t burst) {
  Counting owner(2);
  Fabric bursty = fabric(2);
  for (Host& host : bursty.hosts) host.burst_bytes = burst;
  Machine machine(bursty, {0, 1}, nullptr, owner);
  owner.machine = &machine;
  const auto execution =
      machine.execute(there_and_back(100), ExecutionOptions{.members = {0, 1}, .token = 7});
  execution->begin(0);
  execution->begin(1);
  machine.run(kNever - 1);
  return {execution->ended(0), execution->ended(1)};
}

TEST("a token bucket lets a burst pass at once, and again only when it has refilled") {
  // Rank 1 has rank 0's message when it has passed both ports, 70 bytes later than the burst, and
  // sends its sum from its own full bucket.
  CHECK(run_with_burst(30).first == 2 * (70 * kByte + 2 * kLatency));
  CHECK(run_with_burst(100).first == 4 * kLatency);
  CHECK(run_with_burst(1000).first == 4 * kLatency);
}

TEST("an execution is kept until its last frame is taken") {
  Counting owner(2);
  Machine machine(fabric(2), {0, 1}, nullptr, owner);
  owner.machine = &machine;
  std::weak_ptr<Execution> watched;
  {
    const auto execution =
        machine.execute(there_and_back(100), ExecutionOptions{.members = {0, 1}, .token = 1});
    watched = execution;
    execution->begin(0);
    execution->begin(1);
  }
  CHECK(!watched.expired());
  machine.run(kNever - 1);
  CHECK(owner.delivered.size() == 2);
  CHECK(watched.expired());
}

TEST("a plan that sends a chunk to a rank without instructions about it is refused") {
  PlanOptions options{.ranks = 2,
                      .cuts = {Cut{1, 1, 0}},
                      .itemsize = 1,
                      .widest_itemsize = 1,
                      .onset = 1,
                      .priority = 0,
                      .reduces = true,
                      .rotation = std::nullopt};
  std::string said;
  try {
    const std::vector<std::vector<Instruction>> programs{{{StepKind::kSend, 1, 0, false}}, {}};
    const CompiledPlan plan(std::move(options), programs);
  } catch (const std::invalid_argument& error) {
    said = error.what();
  }
  CHECK(said == "rank 0 sends chunk 0 to rank 1, which has no instruction about it");
}

TEST("times that are too long stop at the end of all time") {
  CHECK(transmission(1, 8) == 1'000'000'000'000);
  CHECK(transmission(3, 7) == 3'428'571'428'572);
  CHECK(transmission(std::uint64_t{1} << 40, 3) == kNever);
  CHECK(transmission(std::uint64_t{1} << 40, kRate) == (Time{1} << 40) * kByte);
  CHECK(after(kNever - 1, 5) == kNever);
}

TEST("a thread that becomes slow in the middle of a task ends it later") {
  Counting owner(1);
  Machine machine(fabric(1), {0}, nullptr, owner);
  owner.machine = &machine;
  machine.compute(0, 1000, 3);
  machine.condition(0, Slowness{5, 2}, false);
  machine.run(kNever - 1);
  CHECK(machine.clock().now() == 2500);
}

}  // namespace
}  // namespace slackline::sim
