// Tests of links that have ended: an engine removes them once no group has them.
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ranks.h"

namespace slackline::test {
namespace {

constexpr std::size_t kCount = 1000;

// Have the engine of a rank end, and wait until all others see that.
void end(Ranks& ranks, int rank) {
  ranks.groups[static_cast<std::size_t>(rank)].reset();
  ranks.engines[static_cast<std::size_t>(rank)].reset();
  for (int other = 0; other < ranks.size(); ++other) {
    if (other == rank || ranks.engines[static_cast<std::size_t>(other)] == nullptr) continue;
    ranks.cut(std::min(rank, other), std::max(rank, other), 0);
    until(
        [&] {
          return std::ranges::any_of(
              ranks.engine(other).connections().rails(), [&](const RailStatus& rail) {
                return rail.link == ranks.link(other, rank) && rail.state == "ended";
              });
        },
        "the end of a link");
  }
}

// Return the numbers of the links that have or had a rail.
std::vector<int> links_of(Engine& engine) {
  std::vector<int> numbers;
  for (const RailStatus& rail : engine.connections().rails()) numbers.push_back(rail.link);
  return numbers;
}

void reduce(Ranks& ranks, const std::vector<int>& members, const std::vector<Group*>& groups) {
  const int size = static_cast<int>(members.size());
  on_every_rank(size, [&](int place) {
    std::vector<float> values = contributions(place, kCount);
    Engine& engine = ranks.engine(members[static_cast<std::size_t>(place)]);
    finish(engine,
           engine.post(*groups[static_cast<std::size_t>(place)],
                       reduction(mesh(size, place), values.data(), values.data(), kCount), true));
    check_sum(values.data(), kCount, size);
  });
}

TEST("the link to a peer that has ended is removed when the next group opens; counts stay") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(3, kind);
    reduce(ranks, {0, 1, 2}, {&ranks.group(0), &ranks.group(1), &ranks.group(2)});
    end(ranks, 2);
    // The open group still has the link.
    const auto wider = ranks.engine(0).open_group(9, 0, {-1, ranks.link(0, 1)}, false);
    CHECK_EQUAL(links_of(ranks.engine(0)).size(), 2u);

    std::vector<std::shared_ptr<Group>> smaller;
    std::array<std::uint64_t, 2> sent{};
    const std::string counter = kind == Kind::kShared ? "shm_frames_sent" : "tcp_frames_sent";
    for (const int rank : {0, 1}) {
      Engine& engine = ranks.engine(rank);
      engine.close_group(ranks.group(rank), 0);
      sent[static_cast<std::size_t>(rank)] = engine.counters()[counter];
    }
    // A closed group is kept for frames that may still come.
    until([&] { return !ranks.engine(0).uses_epoch(1) && !ranks.engine(1).uses_epoch(1); },
          "the end of the closed group");
    for (const int rank : {0, 1}) {
      std::vector<int> links{ranks.link(rank, 0), ranks.link(rank, 1)};
      smaller.push_back(ranks.engine(rank).open_group(10, rank, links, false));
      CHECK((links_of(ranks.engine(rank)) == std::vector<int>{ranks.link(rank, 1 - rank)}));
      CHECK(ranks.engine(rank).counters()[counter] >= sent[static_cast<std::size_t>(rank)]);
    }
    reduce(ranks, {0, 1}, {smaller[0].get(), smaller[1].get()});
  }
}

TEST("a group that opens with a link that has been removed finds the member lost") {
  Ranks ranks(2, Kind::kStream);
  end(ranks, 1);
  Engine& engine = ranks.engine(0);
  const int gone = ranks.link(0, 1);
  engine.close_group(ranks.group(0), 0);
  until([&] { return !engine.uses_epoch(1); }, "the end of the closed group");
  const auto alone = engine.open_group(8, 0, {-1}, false);
  CHECK(links_of(engine).empty());

  // Calls that were on their way do nothing.
  engine.connections().drop_rail(gone, 0, "late");
  engine.connections().unreachable(gone, "late");
  engine.connections().hindered(gone, "late");
  engine.connections().use_wires(gone);
  engine.connections().set_fault(gone, -1, std::nullopt);
  const auto [here, there] = socket_pair();
  engine.connections().add_rail(gone, 0, RailKind::kTcp, here, kJobCode);
  std::byte none{};
  CHECK_EQUAL(::read(there, &none, 1), 0);  // the engine has closed the socket
  ::close(there);
  CHECK(!engine.connections().link_alive(gone));

  const auto group = engine.open_group(9, 0, {-1, gone}, false);
  std::vector<float> values(kCount);
  const auto request =
      engine.post(*group, reduction(direct(2, 0), values.data(), values.data(), kCount), true);
  CHECK(request->failure.fault == Fault::kPeer);
  CHECK(request->failure.message.find("ended before the group opened") != std::string::npos);

  bool thrown = false;
  try {
    engine.open_group(11, 0, {-1, gone + 1}, false);
  } catch (const std::out_of_range&) {
    thrown = true;
  }
  CHECK(thrown);
}

TEST("a link that no group has and that was never connected is removed once it is forgotten") {
  Engine engine(small_engine());
  const int in_group = engine.connections().add_link("a"),
            in_none = engine.connections().add_link("b");
  const auto group = engine.open_group(1, 0, {-1, in_group}, false);
  for (const int link : {in_group, in_none}) engine.connections().forget_link(link);
  CHECK(engine.connections().link_alive(in_group));
  CHECK(!engine.connections().link_alive(in_none));
  const auto next = engine.open_group(2, 0, {-1}, false);
  engine.connections().forget_link(in_none);  // does nothing
  CHECK(engine.connections().link_alive(in_group));
}

TEST("frames for a group that is not open yet keep their link, and are used") {
  Ranks ranks(3, Kind::kStream);
  // Rank 2 sends to a group that rank 0 opens later, and ends.
  const auto early = ranks.engine(2).open_group(7, 1, {ranks.link(2, 0), -1}, false);
  std::vector<float> values = contributions(1, kCount);
  finish(ranks.engine(2), ranks.engine(2).post(*early, send_to(0, values.data(), 4000), true));
  end(ranks, 2);
  ranks.engine(0).close_group(ranks.group(0), 0);
  const auto other = ranks.engine(0).open_group(8, 0, {-1, ranks.link(0, 1)}, false);
  const auto late = ranks.engine(0).open_group(7, 0, {-1, ranks.link(0, 2)}, false);
  std::vector<float> got(kCount);
  finish(ranks.engine(0), ranks.engine(0).post(*late, receive_from(1, got.data(), 4000), true));
  CHECK(got == values);
}

}  // namespace
}  // namespace slackline::test
