// Tests of the set of descriptors that an engine's sleeping thread waits for.
#include "../src/engine/event_loop.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "ranks.h"

namespace slackline::test {
namespace {

using Source = LoopEvent::Source;
using Events = std::vector<LoopEvent>;

constexpr std::int64_t kNoLimit = -1;
constexpr LoopEvent kRing{Source::kDoorbell, -1, -1, true, false};

// Two ends of a connection; `here` is watched.
struct Connection {
  Connection() {
    const auto [a, b] = socket_pair();
    here = a;
    there = b;
  }
  ~Connection() {
    ::close(here);
    if (there >= 0) ::close(there);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  void send() const { CHECK_EQUAL(::write(there, "x", 1), 1); }
  void end() { ::close(std::exchange(there, -1)); }

  int here, there;
};

// Return the events that are there already.
Events now(EventLoop& loop) {
  Events events{kRing};
  const bool any = loop.wait(events, 0);
  CHECK_EQUAL(any, !events.empty());
  return events;
}

TEST("a wait without an event ends when its time has passed") {
  EventLoop loop;
  Events events{kRing};
  for (const std::int64_t left : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2'000'000}}) {
    CHECK(!loop.wait(events, left));
    CHECK(events.empty());
  }
}

TEST("the doorbell ends waits until it is silenced") {
  EventLoop loop;
  for (int round = 0; round < 3; ++round) {
    CHECK(now(loop).empty());
    for (int i = 0; i <= round; ++i) loop.ring();
    Events events;
    CHECK(loop.wait(events, kNoLimit));
    CHECK(events == Events{kRing});
    CHECK(now(loop) == Events{kRing});
    loop.silence();
  }
  loop.silence();  // a doorbell that nothing has rung stays silent
  CHECK(now(loop).empty());
}

TEST("another thread ends a wait without limit by the doorbell") {
  EventLoop loop;
  Events events;
  std::thread other([&] { loop.ring(); });
  const bool woken = loop.wait(events, kNoLimit);
  other.join();
  CHECK(woken && events == Events{kRing});
}

TEST("a peer rings the doorbell through its descriptor") {
  EventLoop loop;
  const std::uint64_t one = 1;
  const int duplicate = ::dup(loop.doorbell_fd());
  CHECK_EQUAL(::write(duplicate, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  ::close(duplicate);
  CHECK(now(loop) == Events{kRing});
}

TEST("an event of a socket has the numbers of its link and rail") {
  for (const int link : {0, 7, 70'000}) {
    for (const int rail : {0, 3, 1023}) {
      EventLoop loop;
      const Connection connection;
      loop.watch_rail(connection.here, link, rail);
      CHECK(now(loop).empty());
      connection.send();
      CHECK((now(loop) == Events{{Source::kRail, link, rail, true, false}}));
      loop.unwatch(connection.here);
      CHECK(now(loop).empty());
    }
    EventLoop loop;
    const Connection connection;
    loop.watch_control(connection.here, link);
    connection.send();
    CHECK((now(loop) == Events{{Source::kControl, link, -1, true, false}}));
  }
}

TEST("room in a socket is an event only while it is wanted") {
  EventLoop loop;
  const Connection connection;
  loop.watch_rail(connection.here, 1, 0);
  loop.watch_room(connection.here, 1, 0, true);
  CHECK((now(loop) == Events{{Source::kRail, 1, 0, false, true}}));
  connection.send();
  CHECK((now(loop) == Events{{Source::kRail, 1, 0, true, true}}));
  loop.watch_room(connection.here, 1, 0, false);
  CHECK((now(loop) == Events{{Source::kRail, 1, 0, true, false}}));
}

TEST("the end of a connection is an event for readers and for writers") {
  EventLoop loop;
  Connection connection;
  loop.watch_rail(connection.here, 1, 0);
  connection.end();
  CHECK((now(loop) == Events{{Source::kRail, 1, 0, true, true}}));
}

TEST("a descriptor that is watched again has its new numbers") {
  EventLoop loop;
  const Connection connection;
  loop.watch_rail(connection.here, 1, 0);
  loop.watch_rail(connection.here, 2, 5);
  connection.send();
  CHECK((now(loop) == Events{{Source::kRail, 2, 5, true, false}}));
}

TEST("a wait reports every descriptor that has an event, at most 32 at a time") {
  EventLoop loop;
  std::vector<Connection> connections(40);
  for (int link = 0; link < 40; ++link) {
    const Connection& each = connections[static_cast<std::size_t>(link)];
    loop.watch_rail(each.here, link, 0);
    if (link < 5) each.send();
  }
  CHECK_EQUAL(now(loop).size(), 5u);
  for (const Connection& each : connections) each.send();
  CHECK_EQUAL(now(loop).size(), 32u);
}

}  // namespace
}  // namespace slackline::test
