// A small world for the model checker: two engines, one link between them with two rails in memory,
// and some operations. Every step of the world is an event that the model checker chooses.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "memory_rail.h"

namespace slackline::model {

enum class Work { kMessage, kMessages, kSegments, kSums, kShares };

// The scenario that is explored, and the number of faults in it.
struct Setting {
  const char* name;
  Work work;
  RailKind kind;       // datagrams on one rail may overtake each other
  int failures = 1;    // limit of rail failures
  int suspicions = 1;  // limit of rails that appear silent
  // Whether each end may change, once, the rail that it prefers.
  bool preferences = false;
  // Whether the operations are posted before the link has any rail.
  bool late = false;
};

enum class What : std::uint8_t {
  kDeliver,
  kBegin,
  kFail,
  kNotice,
  kSuspect,
  kDial,
  kAnswer,
  kSettle,
  kPrefer
};

// An event. `end` is the engine at which the event happens: the engine that receives, the engine
// whose rail fails or appears silent, or the engine that learns the shares of an operation.
struct Event {
  What what;
  std::uint8_t end;
  std::uint8_t rail;
  std::uint8_t frame = 0;
  std::string text() const;
};

class World {
 public:
  static constexpr int kRails = 2;

  explicit World(const Setting& setting);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Return the events that may happen next.
  std::vector<Event> events();
  // Perform an event and everything that immediately follows from it. Throws when a guarantee is
  // broken.
  void happen(const Event& event);
  // Return the whole state of the world as bytes.
  std::string state();
  // Return whether every operation is finished and no frame is in flight.
  bool quiet();
  // Return whether an event belongs to the normal course of the world and is not a fault.
  static bool normal(const Event& event) {
    return event.what != What::kFail && event.what != What::kSuspect && event.what != What::kPrefer;
  }

 private:
  struct Memory {
    std::vector<std::byte> bytes;
    const std::vector<std::byte>* wanted = nullptr;  // data that the receiver must find
    std::shared_ptr<Request> request;
    bool seen_finished = false;
  };
  struct End {
    std::unique_ptr<Engine> engine;
    std::shared_ptr<Group> group;
    Link* link = nullptr;
    std::shared_ptr<Request> idle;
    std::vector<std::unique_ptr<Memory>> sends, receives;
    bool prefers_second = false;
    // The shares of an operation and the program that runs with them; null without such work.
    std::shared_ptr<Shares> shares;
    std::shared_ptr<const Program> divided;
  };
  struct Dialled {  // a new connection of a rail that the other end has not accepted yet
    std::shared_ptr<Pipe> out, in;
  };

  LinkRail* known_rail(int end, int index) const;
  MemoryRail* rail(int end, int index);
  void add_rail(int end, int index, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in);
  void go_on();
  void check();
  void post_work();
  void post(int end, bool receives, std::size_t bytes, int tag, unsigned seed);
  void post_sum(int end, int first);
  void post_divided(int end);

  const Setting setting_;
  std::array<End, 2> ends_;
  std::array<std::unique_ptr<Dialled>, kRails> dialled_;
  int failures_ = 0;
  int suspicions_ = 0;
  int changes_of_mind_ = 0;
};

}  // namespace slackline::model
