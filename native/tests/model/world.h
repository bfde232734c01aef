// Two engines, one link between them with two rails in memory, some operations: a small world whose
// every step is an event that the model checker chooses.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "memory_rail.h"

namespace slackline::model {

enum class Work { kMessages, kSegments, kSums };

// What is explored.
struct Setting {
  const char* name;
  Work work;
  RailKind kind;             // datagrams may overtake each other on one rail
  int failures = 1;          // ends of rails that may fail, in all
  int suspicions = 1;        // rails that may seem silent, in all
  bool preferences = false;  // either end may change its mind about the better rail, once
};

enum class What : std::uint8_t {
  kDeliver,
  kBegin,
  kFail,
  kNotice,
  kSuspect,
  kDial,
  kAnswer,
  kPrefer
};

// `end` is where it happens: who receives, whose rail fails or seems silent.
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

  // What may happen next.
  std::vector<Event> events();
  // Lets it happen and everything that follows from it at once; throws when a promise is broken.
  void happen(const Event& event);
  // All that the future depends on.
  std::string state();
  // Every operation is done and nothing is under way.
  bool quiet();
  // Whether an event is part of the world's normal course, and not a fault.
  static bool normal(const Event& event) {
    return event.what != What::kFail && event.what != What::kSuspect && event.what != What::kPrefer;
  }

 private:
  struct Memory {
    std::vector<std::byte> bytes;
    const std::vector<std::byte>* wanted = nullptr;  // what a receiver must find
    std::shared_ptr<Job> job;
    bool seen_finished = false;
  };
  struct End {
    std::unique_ptr<Engine> engine;
    std::shared_ptr<Group> group;
    Link* link = nullptr;
    std::shared_ptr<Job> idle;
    std::vector<std::unique_ptr<Memory>> sends, receives;
    bool prefers_second = false;
  };
  struct Dialled {  // a new life of a rail, that the other end has not taken up yet
    std::shared_ptr<Pipe> out, in;
  };

  MemoryRail* rail(int end, int index);
  void add_rail(int end, int index, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in);
  void go_on();
  void check();
  void post_work();
  void post(int end, bool receives, std::size_t bytes, int tag, unsigned seed);
  void post_sum(int end, int first);

  const Setting setting_;
  std::array<End, 2> ends_;
  std::array<std::unique_ptr<Dialled>, kRails> dialled_;
  int failures_ = 0;
  int suspicions_ = 0;
  int changes_of_mind_ = 0;
};

}  // namespace slackline::model
