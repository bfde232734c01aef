// Tests of the table of an engine's links, in an engine that makes no progress.
#include "../src/engine/links.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../src/engine/headers.h"
#include "../src/rail/stream.h"
#include "parts.h"
#include "ranks.h"

namespace slackline::test {
namespace {

// A table with its own event loop. `far` ends of the rails are closed with the object.
class Table {
 public:
  Table() = default;
  ~Table() {
    links.clear();
    for (const int fd : fars) ::close(fd);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  Link& add() { return parts.add("peer", {.reconnect = true}); }
  WireRail& connect(Link& link, int rail = 0, bool far = false) {
    const auto [here, there] = socket_pair();
    fars.push_back(there);
    auto wire = std::make_unique<StreamRail>(here, kJobCode, true, far);
    WireRail& made = *wire;
    links.watch().add(link, rail, made);
    link.add_rail(rail, "tcp", std::move(wire));
    return made;
  }
  std::string event() {
    const bool ended = true;
    std::unique_lock lock(mutex);
    const auto next = links.events().next(lock, ended);
    return next ? std::to_string(next->link) + " " + std::to_string(next->rail) + " " + next->what
                : "none";
  }
  std::size_t readable() {
    std::vector<LoopEvent> events;
    loop.wait(events, 0);
    return events.size();
  }

  Parts parts;
  EventLoop& loop = parts.machine.sleep().loop();
  Links& links = parts.machine.links();
  std::mutex mutex;
  std::vector<int> fars;
};

TEST("links have the numbers 0, 1, 2 and no rail at first") {
  Table table;
  for (int number = 0; number < 3; ++number) {
    const Link& link = table.add();
    CHECK_EQUAL(link.index(), number);
    CHECK(table.links.find(number) == &link && !link.made());
  }
  CHECK(table.links.made().empty() && table.links.rails().empty());
  for (const int number : {-1, 3}) {
    bool thrown = false;
    try {
      table.links.find(number);
    } catch (const std::out_of_range&) {
      thrown = true;
    }
    CHECK(thrown);
  }
  table.links.clear();
  for (int number = 0; number < 3; ++number) CHECK(table.links.find(number) == nullptr);
}

TEST("links that have ended and that nothing uses are removed, and their counts stay") {
  Table table;
  Link& lives = table.add();
  Link& used = table.add();
  Link& ended = table.add();
  for (Link* link : {&lives, &used, &ended}) {
    table.connect(*link);
    link->control(blank_header(wire::FrameKind::kBye));
  }
  table.links.send();
  Port::Counts before;
  table.links.count(before);
  CHECK(used.give_up("gone") && ended.give_up("gone"));
  table.links.mark_dirty(ended);

  table.links.remove_ended([&](Link& link) { return &link == &used; });

  CHECK((table.links.made() == std::vector<Link*>{&lives, &used}));
  CHECK(table.links.find(2) == nullptr && table.links.find(1) == &used);
  for (const Link* link : table.links.take_dirty()) CHECK(link == &lives || link == &used);
  CHECK_EQUAL(table.links.rails().size(), 2u);
  Port::Counts after;
  table.links.count(after);
  for (const char* name : {"tcp_frames_sent", "tcp_bytes_sent", "tcp_system_calls"})
    CHECK_EQUAL(after[name], before[name]);
  CHECK_EQUAL(after["tcp_frames_sent"], 3u);
  CHECK_EQUAL(table.add().index(), 3);
}

TEST("a link that has been removed is renewed as one that has ended") {
  Table table;
  Link& link = table.add();
  CHECK(&table.links.find_or_renew(0, table.parts.machine.link_uses()) == &link);
  link.forget("nobody needs it");
  CHECK(link.down);
  table.links.remove_ended([](const Link&) { return false; });
  const Link& renewed = table.links.find_or_renew(0, table.parts.machine.link_uses());
  CHECK(renewed.down && renewed.failure && table.links.find(0) == &renewed);
  CHECK_EQUAL(renewed.index(), 0);
}

TEST("a link that has had a rail is not forgotten") {
  Table table;
  Link& link = table.add();
  table.connect(link);
  link.forget("nobody needs it");
  CHECK(!link.down);
}

TEST("a link is served from its first rail on, in the order of the first rails") {
  Table table;
  Link& first = table.add();
  Link& second = table.add();
  table.connect(second);
  table.connect(first);
  table.connect(second, 1);
  CHECK((table.links.made() == std::vector<Link*>{&second, &first}));
  CHECK(table.links.take_dirty() == table.links.made());
  CHECK_EQUAL(table.links.rails().size(), 3u);
  Port::Counts counters;
  table.links.count(counters);
  CHECK_EQUAL(counters["tcp_rails"], 3u);
  CHECK_EQUAL(counters["rails_lost"], 0u);
}

TEST("the marks of links with something to send are taken once") {
  Table table;
  Link& first = table.add();
  Link& second = table.add();
  CHECK(!table.links.any_dirty() && table.links.take_dirty().empty());
  table.links.mark_dirty(second);
  table.links.mark_dirty(first);
  table.links.mark_dirty(second);
  CHECK(table.links.any_dirty());
  CHECK((table.links.take_dirty() == std::vector<Link*>{&second, &first}));
  CHECK(!table.links.any_dirty());
}

TEST("a link with a frame to send is not idle; a link that is down is") {
  Table table;
  Link& link = table.add();
  CHECK(table.links.idle());
  table.connect(link);
  CHECK(table.links.idle());
  link.control(blank_header(wire::FrameKind::kBye));
  CHECK(!table.links.idle());
  CHECK(link.give_up("gone"));
  CHECK(table.links.idle());
  CHECK_EQUAL(table.links.rails().size(), 1u);
  CHECK_EQUAL(table.links.rails()[0].state, "ended");
}

TEST("the socket of a rail is watched until the rail ends") {
  Table table;
  Link& link = table.add();
  table.connect(link);
  CHECK_EQUAL(table.readable(), 0u);
  CHECK_EQUAL(::write(table.fars[0], "x", 1), 1);
  CHECK_EQUAL(table.readable(), 1u);
  wires_of(link)->rail(0)->wire->give_up("enough");
  CHECK(!link.reap());  // the link waits for a new rail
  CHECK_EQUAL(table.readable(), 0u);
}

TEST("room is watched in full sockets only") {
  Table table;
  Link& link = table.add();
  WireRail& wire = table.connect(link);
  wire::Header header = blank_header(wire::FrameKind::kData);
  const std::vector<std::byte> payload(1u << 20);
  header.length = static_cast<std::uint32_t>(payload.size());
  for (std::uint32_t sequence = 1; !wire.blocked(); ++sequence) {
    header.sequence = sequence;
    wire.enqueue(header, payload.data(), header.length);
    wire.flush(0);
  }
  CHECK(!wire.armed_for_write);
  table.links.watch().watch_room(link, 0, wire);
  CHECK(wire.armed_for_write);
  CHECK_EQUAL(table.readable(), 0u);
  std::vector<char> taken(1u << 20);
  while (::recv(table.fars[0], taken.data(), taken.size(), MSG_DONTWAIT) > 0) {
  }
  std::vector<LoopEvent> events;
  CHECK(table.loop.wait(events, -1));
  CHECK((events == std::vector<LoopEvent>{{LoopEvent::Source::kRail, 0, 0, false, true}}));
  wire.writable();
  table.links.watch().watch_room(link, 0, wire);
  CHECK(!wire.armed_for_write);
  CHECK_EQUAL(table.readable(), 0u);
}

TEST("the event loop is asked from three rails on, and probes are rarer from nine rails on") {
  Table table;
  Link& link = table.add();
  const auto pause_ms = [&] { return table.links.watch().probe_pause_ns() / 1'000'000; };
  for (int rail = 0; rail < 100; ++rail) {
    CHECK_EQUAL(table.links.watch().many_rails(), rail > 2);
    CHECK(!table.links.watch().far());
    if (rail <= 8) CHECK_EQUAL(pause_ms(), 50);
    if (rail == 16) CHECK_EQUAL(pause_ms(), 100);
    if (rail >= 80) CHECK_EQUAL(pause_ms(), 500);
    table.connect(link, rail);
  }
  table.connect(link, 100, true);
  CHECK(table.links.watch().far());
  wires_of(link)->rail(100)->wire->give_up("enough");
  link.reap();
  CHECK(!table.links.watch().far());
}

TEST("events are read in their order, by a thread that waits for them") {
  Table table;
  Link& first = table.add();
  Link& second = table.add();
  CHECK_EQUAL(table.event(), "none");
  second.want();
  second.want();
  table.connect(first, 4);
  CHECK_EQUAL(table.event(), "1 -1 wanted");
  CHECK_EQUAL(table.event(), "0 4 up");
  CHECK_EQUAL(table.event(), "none");

  bool ended = false;
  std::vector<std::string> seen;
  std::thread reader([&] {
    std::unique_lock lock(table.mutex);
    while (const auto next = table.links.events().next(lock, ended)) seen.push_back(next->reason);
  });
  {
    const std::lock_guard lock(table.mutex);
    table.links.events().announce(first, -1, "left", "a reason");
  }
  {
    const std::lock_guard lock(table.mutex);
    table.links.events().announce(first, -1, "left", "another");
    ended = true;
    table.links.events().wake_readers();
  }
  reader.join();
  CHECK((seen == std::vector<std::string>{"a reason", "another"}));
}

TEST("a timer is due only while something is expected") {
  Table table;
  Link& link = table.add();
  const std::int64_t now = table.parts.machine.clock().next();
  CHECK_EQUAL(table.links.due_ns(), WireRail::kNever);
  table.connect(link);
  CHECK_EQUAL(table.links.due_ns(), WireRail::kNever);
  Operations& operations = table.parts.machine.tables().operations;
  const auto group = std::make_shared<Group>(1, 0, std::vector<Link*>{nullptr}, false, true);
  const auto request = std::make_shared<Request>();
  request->group = group;
  operations.start(request);
  CHECK_EQUAL(table.links.due_ns(), now + table.links.watch().probe_pause_ns());
  link.give_up("gone");
  CHECK_EQUAL(table.links.due_ns(), WireRail::kNever);
  operations.end(*request);
}

}  // namespace
}  // namespace slackline::test
