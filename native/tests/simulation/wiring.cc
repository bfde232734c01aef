#include "wiring.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace slackline::simulation {
namespace {

constexpr std::uint32_t kJob = 0x5EED;
constexpr std::int64_t kRedialNs = 20 * kMillisecond;
constexpr std::int64_t kCallNs = 8 * kSecond;

}  // namespace

void Wiring::connect() {
  for (int low = 0; low < schedule_.processes(); ++low) {
    for (int high = low + 1; high < schedule_.processes(); ++high) {
      const auto pair = static_cast<std::size_t>(schedule_.pair_of(low, high));
      const int rails = schedule_.rails[pair];
      for (const auto& [own, peer] : {std::pair{low, high}, std::pair{high, low}}) {
        const As as(system_, own);
        station(own).links[static_cast<std::size_t>(peer)] =
            station(own).engine->connections().add_link("rank " + std::to_string(peer), rails > 0,
                                                        schedule_.first_sequence, rails == 0);
      }
      if (rails == 0) share(low, high);
      for (int rail = 0; rail < rails; ++rail) {
        lines_.push_back(std::make_unique<Line>(
            Line{low, high, rail, schedule_.datagrams[pair] != 0, nullptr, 0, false}));
        make(*lines_.back(), true);
      }
    }
  }
}

void Wiring::share(int low, int high) {
  std::array<std::uint64_t, 2> rings{};
  for (const int i : {0, 1}) {
    const As as(system_, i == 0 ? low : high);
    rings[static_cast<std::size_t>(i)] =
        station(i == 0 ? low : high).engine->connections().new_ring();
  }
  const auto [x, y] = system_.connect(low, high);
  for (const int i : {0, 1}) {
    const int own = i == 0 ? low : high;
    const int peer = i == 0 ? high : low;
    Engine& theirs = *station(peer).engine;
    const As as(system_, own);
    auto arena = std::make_shared<PeerArena>(theirs.arena().fd(), theirs.arena().capacity());
    station(own).mapped.push_back(arena);
    station(own).engine->connections().add_shm_rail(
        station(own).links[static_cast<std::size_t>(peer)], arena,
        system_.duplicate(theirs.connections().doorbell_fd(), own), i == 0 ? x : y,
        rings[static_cast<std::size_t>(i)], rings[static_cast<std::size_t>(1 - i)]);
  }
}

void Wiring::add_rail(int at, const Line& line, int fd, bool in_thread) {
  const auto add = [this, at, &line, fd] {
    const int peer = at == line.low ? line.high : line.low;
    this->station(at).engine->connections().add_rail(
        this->station(at).links[static_cast<std::size_t>(peer)], line.rail,
        line.datagrams ? RailKind::kUdp : RailKind::kTcp, fd, kJob, true);
  };
  if (in_thread) return system_.start(at, add, true);
  const As as(system_, at);
  add();
}

void Wiring::make(Line& line, bool first) {
  const auto [x, y] = system_.connect(line.low, line.high, line.datagrams);
  line.connection = system_.file(x)->connection;
  add_rail(line.low, line, x, !first);
  add_rail(line.high, line, y, !first);
}

// Make a connection again, as the lower rank does when it has lost one.
void Wiring::dial(Line& line) {
  if (line.dialling) return;
  line.dialling = true;
  system_.at(system_.now_ns() + kRedialNs + system_.noise().between(0, kRedialNs), [this, &line] {
    line.dialling = false;
    const bool dead = line.refused || !system_.process(line.high).alive || station(line.high).left;
    if (!system_.process(line.low).alive || station(line.low).left) return;
    if (dead) {
      const int link = station(line.low).links[static_cast<std::size_t>(line.high)];
      return system_.start(
          line.low,
          [this, &line, link] {
            station(line.low).engine->connections().unreachable(link, "connection refused");
          },
          true);
    }
    if (line.away_until_ns > system_.now_ns()) return dial(line);
    make(line, false);
  });
}

// Return whether the peer of a link has begun to leave its groups.
bool Wiring::leaves(int number, int link) {
  const std::vector<int>& links = station(number).links;
  return station(static_cast<int>(std::ranges::find(links, link) - links.begin())).leaving;
}

// Read the events of a rank's rails, as the library above the engine does.
void Wiring::listen(int number) {
  while (const auto event = station(number).engine->connections().next_event()) {
    // Only datagrams are damaged here, and those are dropped.
    if (event->reason.find("corrupted") != std::string::npos && law_.empty())
      law_ = "a rail of rank " + std::to_string(number) + " ended: " + event->reason;
    if (event->what == "left" && law_.empty() && !leaves(number, event->link))
      law_ = "the aggregator told of the end of a worker that had not left: " + event->reason;
    if (event->what != "lost" || event->rail < 0) continue;
    for (const auto& line : lines_) {
      const int peer = line->low == number ? line->high : line->low;
      const bool mine = (line->low == number || line->high == number) &&
                        station(number).links[static_cast<std::size_t>(peer)] == event->link &&
                        line->rail == event->rail;
      if (!mine) continue;
      if (line->low == number)
        dial(*line);
      else if (line->refused || !system_.process(line->low).alive)
        station(number).engine->connections().unreachable(event->link, "connection refused");
    }
  }
}

void Wiring::begin(const Fault& fault) {
  const std::int64_t now = system_.now_ns();
  auto& acted = acted_[static_cast<std::size_t>(fault.trouble)];
  if (fault.trouble == Trouble::kStop || fault.trouble == Trouble::kKill) {
    if (!system_.process(fault.a).alive || station(fault.a).left) return;
    ++acted;
    if (fault.trouble == Trouble::kStop)
      system_.stop(fault.a, now + fault.for_ns);
    else
      kill(fault.a);
    return;
  }
  for (const auto& line : lines_) {
    if (line->low == std::min(fault.a, fault.b) && line->high == std::max(fault.a, fault.b) &&
        line->rail == fault.rail)
      begin_on(*line, fault);
  }
}

void Wiring::begin_on(Line& line, const Fault& fault) {
  const std::int64_t now = system_.now_ns();
  const std::int64_t until = now + fault.for_ns;
  Connection& connection = *line.connection;
  const std::size_t to = fault.a < fault.b ? 1 : 0;
  Direction& direction = connection.to[to];
  Weather& weather = connection.weather[to];
  const auto percent = static_cast<int>(fault.factor);
  const auto end = [this, until, kept = line.connection](auto undo) {
    system_.at(until, [kept, undo] { undo(); });
  };
  if (!schedule_.can_act(fault.trouble, fault.a, fault.b)) return;  // TCP repairs lost packets
  ++acted_[static_cast<std::size_t>(fault.trouble)];
  switch (fault.trouble) {
    case Trouble::kReset:
    case Trouble::kEnd:
      line.away_until_ns = until;
      line.refused = line.refused || fault.factor == 0;
      if (line.datagrams) {
        for (Direction& each : connection.to) each.stalled_until_ns = until;
      } else if (fault.trouble == Trouble::kReset) {
        connection.reset(now);
      } else {
        for (Direction& each : connection.to) each.end_ns = std::min(each.end_ns, now);
      }
      break;
    case Trouble::kSilence:
      if (line.datagrams)
        direction.stalled_until_ns = until;
      else
        direction.stall(until);
      break;
    case Trouble::kRefuse:
      connection.refuses[to] = true;
      end([&connection, to] { connection.refuses[to] = false; });
      break;
    case Trouble::kSlow:
      // Three such faults at once would leave some hundred bytes a second.
      if (direction.bytes_per_ns < 0.9 * schedule_.line.bytes_per_ns) break;
      direction.bytes_per_ns *= fault.factor;
      end([&direction, factor = fault.factor] { direction.bytes_per_ns /= factor; });
      break;
    case Trouble::kDelay: {
      const auto more = static_cast<std::int64_t>(fault.factor * 1e6);
      direction.delay_ns += more;
      end([&direction, more] { direction.delay_ns -= more; });
      break;
    }
    case Trouble::kLoss:
      weather.loss = percent;
      end([&weather] { weather.loss = 0; });
      break;
    case Trouble::kMess:
      weather.doubled = weather.damaged = percent;
      weather.jitter_ns = percent * 100 * kMicrosecond;
      end([&weather] { weather = {weather.loss, 0, 0, 0}; });
      break;
    default:
      break;
  }
}

void Wiring::kill(int number) {
  // A thread of a dead process goes on until it waits, and the objects write to shared memory when
  // they are destroyed. Private memory takes the place of the arenas, so that no peer sees this: a
  // copy in place of the process's own.
  const Arena& own = station(number).engine->arena();
  ::mmap(own.at(0), own.capacity(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
         own.fd(), 0);
  for (const auto& each : station(number).mapped) {
    if (const auto arena = each.lock())
      ::mmap(arena->at(0, 1), schedule_.arena_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  system_.kill(number);
  // A rank that has lost its rails before does not learn of the end by them, but by a call.
  system_.at(system_.now_ns() + kCallNs, [this, number] {
    for (int peer = 0; peer < schedule_.processes(); ++peer) {
      if (peer == number || !system_.process(peer).alive || station(peer).left) continue;
      const auto pair = static_cast<std::size_t>(schedule_.pair_of(peer, number));
      if (schedule_.rails[pair] == 0) continue;
      const int link = station(peer).links[static_cast<std::size_t>(number)];
      system_.start(
          peer,
          [this, peer, link] {
            station(peer).engine->connections().unreachable(link, "connection refused");
          },
          true);
    }
  });
}

}  // namespace slackline::simulation
