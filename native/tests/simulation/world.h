// Whole engines of several ranks in a simulated system: a schedule is played, and the laws are
// checked.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../src/engine/engine.h"
#include "../devices.h"
#include "calls.h"
#include "schedule.h"
#include "system.h"
#include "wiring.h"

namespace slackline::simulation {

// A law that a schedule has broken.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The events of one schedule, counted.
struct Outcome {
  std::uint64_t operations = 0;  // posted by all ranks
  std::uint64_t failed = 0;
  std::uint64_t switches = 0;  // between threads
  std::array<std::uint64_t, kTroubles> acted{};
  std::uint64_t trace = 0;  // a hash of all that the ranks saw, with the times
  std::int64_t simulated_ns = 0;
};

class World {
 public:
  explicit World(const Schedule& schedule);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Play the schedule. Throws Broken.
  Outcome play();

 private:
  // Memory of one operation at one rank, with a margin on both sides.
  struct Buffer {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    bool registered = false;
    std::byte* data() const { return base + kMargin; }
  };
  struct Doing {
    std::size_t work;
    std::shared_ptr<Request> request;
    Buffer source, target;
    std::size_t result_at = 0;  // in `target`, whose other bytes do not change
    std::shared_ptr<Shares> shares;
    bool poisoned = false;
  };
  struct Rank : Station {
    std::vector<std::shared_ptr<Group>> groups;   // null until the first work
    std::vector<bool> exited;                     // by group
    std::shared_ptr<Group> aggregated, fallback;  // with the aggregator, and without
    std::unique_ptr<test::NodeDevice> device;     // of the aggregator
    std::vector<std::unique_ptr<Doing>> doings;
    bool done = false;                                      // with all its work
    std::vector<std::pair<std::byte*, std::size_t>> plain;  // memory that is not the engine's
  };
  static constexpr std::size_t kMargin = 64;
  static constexpr std::byte kMark{0xA5};    // of margins
  static constexpr std::byte kPoison{0x5A};  // of memory whose operation has ended

  Rank& rank(int number) { return ranks_[static_cast<std::size_t>(number)]; }
  std::vector<Station*> stations();
  void make_engines();
  void make_aggregator();
  void aggregate();
  Group& group_for(const Work& work, int number);
  void act(int number);
  void wait_for_others();
  void leave(int number, Exit how);
  Buffer take(Rank& rank, std::size_t bytes, bool registered);
  Group& group_of(int number, std::size_t group);
  void check_end(int number, const Request& request);
  void exit(int number, std::size_t group, Exit exit);
  void wait_for_all(int number);
  void check_in_time(int number, std::int64_t until_ns);
  Operation operation_of(const Work& work, int number, Doing& doing);
  Operation message_of(const Work& work, int number, Doing& doing);
  void post(int number, std::size_t work);
  void share(int number, const Work& work, std::shared_ptr<Shares> shares);
  void settle(int number, Doing& doing);
  const Truth& truth_of(std::size_t index, int members);
  void check_result(int number, const Doing& doing);
  void check_margins(int number, const Doing& doing, bool poisoned);
  void poison(Doing& doing);
  void check_memory(int number);
  void check_prompt(int number);
  void check_probes(int number);
  void begin_faults(int number, int work);
  void break_law(int number, const std::string& law);
  void note(std::uint64_t value);
  [[noreturn]] void broken(const std::string& law) const;

  const Schedule& schedule_;
  System system_;
  std::vector<Rank> ranks_;
  Wiring wiring_;
  std::vector<std::optional<Truth>> truths_;  // by work, once it is posted
  std::vector<bool> begun_;                   // by fault
  Outcome outcome_;
  std::string law_;  // the first law that was broken within a thread
  std::int64_t began_ns_ = 0;
  int ranks_at_end_ = 0;  // with all their operations posted
  std::int64_t all_posted_ns_ = 0;
  std::int64_t shares_known_ns_ = 0;  // the last time at which a rank learns weights
};

}  // namespace slackline::simulation
