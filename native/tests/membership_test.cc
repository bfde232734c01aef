// Tests of the open groups of an engine, and of the notices of closed groups.
#include "../src/engine/membership.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ranks.h"

namespace slackline::test {
namespace {

// An engine with links to three peers, and groups of this rank (0) and some of the peers. The link
// to peer 3 never gets a rail; a test makes the other links.
class Groups {
 public:
  Groups() : engine_(one_thread(std::size_t{16} << 20)) {
    std::vector<int> numbers{-1};
    for (int peer = 1; peer < 4; ++peer)
      numbers.push_back(engine_.connections().add_link("rank " + std::to_string(peer)));
    all_ = engine_.open_group(1, 0, numbers, true);
    for (int peer = 1; peer < 3; ++peer) {
      const auto [here, there] = socket_pair();
      peers_.push_back(there);
      engine_.connections().add_rail(numbers[static_cast<std::size_t>(peer)], 0, RailKind::kTcp,
                                     here, kJobCode);
    }
  }
  ~Groups() {
    for (const int fd : peers_) ::close(fd);
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  Link* link(int peer) const { return all_->links[static_cast<std::size_t>(peer)]; }
  std::shared_ptr<Group> with(std::uint32_t epoch, const std::vector<int>& peers) const {
    std::vector<Link*> links{nullptr};
    for (const int peer : peers) links.push_back(link(peer));
    return std::make_shared<Group>(epoch, 0, std::move(links), false, true);
  }

 private:
  Engine engine_;
  std::shared_ptr<Group> all_;
  std::vector<int> peers_;
};

TEST("an open group is found by its epoch and by the links of its members") {
  const Groups groups;
  Membership membership;
  const auto both = groups.with(5, {1, 2}), one = groups.with(6, {2});
  membership.open(both);
  membership.open(one);
  CHECK(membership.find(5) == both && membership.find(6) == one && membership.find(7) == nullptr);
  CHECK_EQUAL(membership.groups().size(), 2u);
  CHECK(membership.shared_with(*groups.link(1)) == std::vector{both});
  CHECK_EQUAL(membership.shared_with(*groups.link(2)).size(), 2u);
  CHECK(membership.shared_with(*groups.link(3)).empty());
  // Only a peer outside an open group intrudes on it.
  CHECK(membership.excludes(*groups.link(1), 6) && !membership.excludes(*groups.link(1), 5));
  CHECK(!membership.excludes(*groups.link(1), 7));
}

TEST("an epoch in use cannot be opened again") {
  const Groups groups;
  Membership membership;
  membership.open(groups.with(5, {1}));
  std::string why;
  try {
    membership.open(groups.with(5, {2}));
  } catch (const std::invalid_argument& error) {
    why = error.what();
  }
  CHECK_EQUAL(why, "epoch 5 is in use");
  CHECK(membership.find(5)->links[1] == groups.link(1));
}

TEST("a closed group leaves a notice only if a member was not connected") {
  const Groups groups;
  Membership membership;
  for (const auto& group : {groups.with(5, {1, 2}), groups.with(6, {1, 3})}) {
    membership.open(group);
    CHECK(!membership.was_closed(group->epoch));
    const GroupNotice notice = membership.close(*group);
    CHECK(notice.epoch == group->epoch && notice.rank == 0 && !notice.cause);
    CHECK(membership.was_closed(group->epoch) && membership.find(group->epoch) == nullptr);
  }
  CHECK_EQUAL(membership.departures().size(), 1u);
  CHECK_EQUAL(membership.departures()[0].epoch, 6u);
}

TEST("a closed group is remembered until no member can send its frames any more") {
  const Groups groups;
  Membership membership;
  const auto group = groups.with(5, {1, 2, 3});
  membership.open(group);
  membership.left(*groups.link(1), 5);  // before this rank closes the group
  membership.close(*group);
  CHECK(membership.uses(5));
  try {
    membership.open(groups.with(5, {1}));
    CHECK(false);
  } catch (const std::invalid_argument& error) {
    CHECK_EQUAL(std::string(error.what()), "epoch 5 is in use");
  }
  membership.left(*groups.link(2), 6);  // another group's
  membership.left(*groups.link(1), 5);
  CHECK(membership.uses(5));
  membership.left(*groups.link(2), 5);
  membership.lost(*groups.link(3));
  CHECK(!membership.uses(5) && !membership.was_closed(5));
  membership.open(groups.with(5, {1}));
  CHECK(membership.find(5) != nullptr && !membership.was_closed(5));
  // A peer whose engine ends leaves all groups.
  membership.close(*membership.find(5));
  CHECK_EQUAL(membership.closed(), 1u);
  membership.left(*groups.link(1), 0);
  CHECK_EQUAL(membership.closed(), 0u);
}

TEST("100,000 closed groups leave tables of the same size as 10,000") {
  const Groups groups;
  Membership membership;
  std::size_t closed = 0, departures = 0;
  for (std::uint32_t epoch = 1; epoch <= 100'000; ++epoch) {
    // Member 2 leaves first, member 1 later, and member 3 never connects to this rank.
    const auto group = groups.with(epoch, {1, 2, 3});
    membership.open(group);
    membership.left(*groups.link(2), epoch);
    membership.close(*group);
    membership.left(*groups.link(1), epoch);
    CHECK_EQUAL(membership.groups().size(), 0u);
    if (epoch == 10'000) closed = membership.closed(), departures = membership.departures().size();
  }
  CHECK_EQUAL(membership.closed(), closed);
  CHECK_EQUAL(membership.departures().size(), departures);
  CHECK_EQUAL(departures, Membership::kMostDepartures);
  CHECK_EQUAL(membership.departures().front().epoch, 100'000 - departures + 1);
}

TEST("the notice of a failed group has the failure that other ranks must know") {
  const Groups groups;
  const slackline::Failure lost{Fault::kPeer, "rank 1 has died", 0, 1, -1, -1};
  const slackline::Failure aborted{Fault::kPeer, "rank 0 aborted the group", 0, 0, -1, -1};
  const slackline::Failure own{Fault::kClosed, "rank 0 aborted the group", 0, -1, -1, -1};
  const slackline::Failure none;
  const auto check = [&](const slackline::Failure& broken, const slackline::Failure& told,
                         const std::string& expected) {
    Membership membership;
    const auto group = groups.with(5, {3});
    group->broken = broken;
    group->told = told;
    membership.open(group);
    CHECK_EQUAL(membership.close(*group).cause.message, expected);
    CHECK_EQUAL(membership.departures().at(0).cause.message, expected);
  };
  check(lost, none, lost.message);
  check(own, aborted, aborted.message);
  check(own, none, "");
  check(none, none, "");
}

}  // namespace
}  // namespace slackline::test
