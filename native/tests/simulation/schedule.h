// A schedule of a simulation: what the ranks do, and what goes wrong meanwhile. It is data, drawn
// from one seed; any part of it can be left out, so that a schedule that fails can be made shorter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "system.h"

namespace slackline::simulation {

enum class Verb : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kMessage,
  kAnySource,
  kAggregated,  // an all_reduce through the aggregator
};
// The value of Work::plan for a sum in a tree, after those of test::plans().
constexpr int kTree = 4;
constexpr bool is_message(Verb verb) { return verb == Verb::kMessage || verb == Verb::kAnySource; }

// The choices of a rank after an operation: it stays in the group, closes it, aborts it, or ends
// its work and closes all groups without a wait for what is open.
enum class Exit : std::uint8_t { kStays, kCloses, kAborts, kEnds };

// The part of one rank in an operation of the schedule: how it posts the operation, and what next.
struct Part {
  std::int64_t pause_ns = 0;    // before the call
  bool blocking = false;        // the call returns when the operation has ended
  bool waits_for_all = false;   // after the call, for all operations so far
  bool registered = false;      // the memory is the engine's
  std::int64_t shares_ns = -1;  // the weights are known this long after the call; -1: before it
  std::int64_t cancel_ns = -1;  // cancel the operation after this time; -1: never
  Exit exit = Exit::kStays;
};

// An operation of the schedule: an all_reduce of a group, a message between two ranks, and so on.
struct Work {
  Verb verb = Verb::kAllReduce;
  std::size_t group = 0;  // an index of Schedule::groups
  int plan = 0;  // kAllReduce: an index of test::plans(), or kTree; kAggregated: perhaps kTree
  int from = 0;  // of a message: the ranks; of a broadcast: the root
  int to = 0;
  int tag = 0;
  int dtype = 0;  // of a collective: float32, bfloat16 or int32
  int priority = 0;
  std::size_t count = 0;  // of floats, or of bytes for a message
  bool in_place = false;
  std::uint64_t seed = 0;  // of the data
  // The shares of an all_reduce, empty if they are equal; or the number of each rank's leaves in a
  // tree, empty if each rank has one.
  std::vector<std::uint32_t> weights;
  std::int64_t timeout_ns = 0;
  std::vector<Part> parts;  // by rank

  static constexpr std::int64_t kPatient = 60'000'000'000;
  // Return whether the sum is that of a tree. A rank may then have several nodes of the tree, but
  // only one if the aggregator adds.
  bool in_tree() const {
    return plan == kTree && (verb == Verb::kAllReduce || verb == Verb::kAggregated);
  }
  bool has_nodes() const { return in_tree() && verb == Verb::kAllReduce; }
  void leave_tree() {
    if (!in_tree()) return;
    plan = 0;
    weights.clear();
  }
  bool averages() const { return in_tree() && dtype == 0 && (seed & 1) != 0; }
  // Return whether the operation may end by its timeout though nothing else goes wrong.
  bool is_short() const { return timeout_ns < kPatient; }
};

enum class Trouble : std::uint8_t {
  kReset,    // a connection is reset, and cannot be made again for a while
  kEnd,      // a connection is closed in order by something between the hosts
  kSilence,  // nothing arrives in a direction for a while
  kSlow,     // a direction has a lower rate
  kDelay,    // a direction has a longer delay
  kLoss,     // packets of a direction are lost
  kMess,     // packets of a direction are doubled, damaged and overtake each other
  kStop,     // a process stands still
  kKill,     // a process ends
  kRefuse,   // the system refuses to send in a direction, as it does without a route
};
constexpr int kTroubles = 10;
extern const char* const kTroubleNames[kTroubles];

struct Fault {
  Trouble trouble = Trouble::kReset;
  int work = -1;  // the fault begins after `a` or `b` posts this operation; -1: after the start
  std::int64_t at_ns = 0;
  std::int64_t for_ns = 0;
  int a = 0, b = 0;  // ranks: of a connection, or `a` alone
  int rail = 0;
  // kSlow: of the rate; kDelay: milliseconds; kLoss and kMess: percent; kReset: 0 if something
  // between the hosts refuses new connections from then on.
  double factor = 1;
};

struct Schedule {
  std::uint64_t seed = 0;
  int ranks = 2;
  // With `aggregator`, a further process adds the tensors of all ranks. It begins to add when
  // `onset` segments of each rank have arrived.
  bool aggregator = false;
  std::uint32_t onset = 1;
  int device_sets = -1;    // a device adds as many sets of frames for it, then fails; -1: no device
  std::vector<int> rails;  // by pair (see pair_of): 0 for shared memory
  std::vector<int> datagrams;            // by pair: 1 over UDP
  std::vector<std::vector<int>> groups;  // the ranks of each, in increasing order
  Manners manners;
  Line line;
  bool progress_thread = true;
  int spin_us = 0;
  bool rank_order = false;
  std::uint64_t eager_bytes = 0;
  std::size_t wire_segment_bytes = 0, memory_segment_bytes = 0;
  std::size_t arena_bytes = 0;
  std::uint32_t first_sequence = 1;
  std::uint32_t troubles = 0;  // a bit for each kind that is switched on
  std::vector<Work> work;
  std::vector<Fault> faults;

  static Schedule draw(std::uint64_t seed);
  int processes() const { return ranks + (aggregator ? 1 : 0); }
  int pair_of(int a, int b) const;
  bool takes_part(const Work& each, int rank) const;
  // Return whether a kind of fault can act on the direction from one process to another.
  bool can_act(Trouble trouble, int from, int to) const;
  // Return whether every operation must succeed in spite of the faults.
  bool benign() const;
  // Return whether an operation ends by its timeout only if this is a short one: a rank that
  // cancels an operation, closes a group or leaves tells the others.
  bool patient() const;
  // Return whether no rank ends an operation: none is cancelled, has a short timeout, or is of a
  // group that is closed early. The end of a process may still end operations.
  bool calm() const;
  // Return the schedule as sentences.
  std::string story() const;
};

}  // namespace slackline::simulation
