// The links between the engines of a simulation: their rails, which are made again when they are
// lost, and the faults that happen to them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../src/engine/engine.h"
#include "schedule.h"
#include "system.h"

namespace slackline::simulation {

// A process with its engine.
struct Station {
  std::unique_ptr<Engine> engine;
  std::vector<int> links;                        // by the number of the peer's process
  std::vector<std::weak_ptr<PeerArena>> mapped;  // arenas of peers
  bool leaving = false;                          // its groups
  bool closing = false, left = false;
};

class Wiring {
 public:
  Wiring(const Schedule& schedule, System& system, std::vector<Station*> stations)
      : schedule_(schedule), system_(system), stations_(std::move(stations)) {}

  // Connect all engines as the schedule has it.
  void connect();
  // Read the events of a process's rails, as the library above the engine does, until its engine is
  // closed. Called in a thread of the process.
  void listen(int number);
  // Let a fault begin. It ends by itself.
  void begin(const Fault& fault);
  // Return how often each kind of fault has met something to act on.
  const std::array<std::uint64_t, kTroubles>& acted() const { return acted_; }
  // Return the law that a rail has broken, or an empty string.
  const std::string& broken_law() const { return law_; }

 private:
  struct Line {  // one rail of a pair
    int low, high, rail;
    bool datagrams;
    std::shared_ptr<Connection> connection;
    std::int64_t away_until_ns = 0;
    bool dialling = false;
    bool refused = false;  // no connection is made again, though both processes live
  };

  Station& station(int number) { return *stations_[static_cast<std::size_t>(number)]; }
  void share(int low, int high);
  void make(Line& line, bool first);
  void add_rail(int at, const Line& line, int fd, bool in_thread);
  void dial(Line& line);
  void begin_on(Line& line, const Fault& fault);
  void kill(int number);
  bool leaves(int number, int link);

  const Schedule& schedule_;
  System& system_;
  const std::vector<Station*> stations_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::array<std::uint64_t, kTroubles> acted_{};
  std::string law_;
};

}  // namespace slackline::simulation
