// Tests of links that get their first rail when an operation needs it.
#include <optional>
#include <string>
#include <vector>

#include "../src/rail/stream.h"
#include "parts.h"
#include "ranks.h"

namespace slackline::test {
namespace {

// Engines with links to each other that have no rails at first; `join` connects a pair of engines.
class Loose {
 public:
  explicit Loose(int size, Kind kind)
      : kind_(kind),
        links_(static_cast<std::size_t>(size),
               std::vector<int>(static_cast<std::size_t>(size), -1)) {
    for (int rank = 0; rank < size; ++rank) {
      engines_.push_back(std::make_unique<Engine>(small_engine()));
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        link(rank, peer) = engine(rank).connections().add_link("rank " + std::to_string(peer),
                                                               false, 1, kind == Kind::kShared);
      }
      groups_.push_back(open(rank, 1));
    }
  }
  ~Loose() {
    groups_.clear();
    on_every_rank(size(), [&](int rank) { engines_[static_cast<std::size_t>(rank)].reset(); });
  }
  Loose(const Loose&) = delete;
  Loose& operator=(const Loose&) = delete;

  int size() const { return static_cast<int>(engines_.size()); }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  Group& group(int rank) { return *groups_[static_cast<std::size_t>(rank)]; }
  int& link(int from, int to) {
    return links_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }
  std::shared_ptr<Group> open(int rank, std::uint32_t epoch) {
    return engine(rank).open_group(epoch, rank, links_[static_cast<std::size_t>(rank)], true);
  }
  std::shared_ptr<Request> post(int rank, const Operation& operation) {
    return engine(rank).post(group(rank), operation, false);
  }

  void join(int low, int high) {
    if (kind_ == Kind::kStream) return join_by_wire(low, high);
    Engine& a = engine(low);
    Engine& b = engine(high);
    const auto [x, y] = socket_pair();
    const std::uint64_t into_a = a.connections().new_ring();
    const std::uint64_t into_b = b.connections().new_ring();
    a.connections().add_shm_rail(link(low, high), ::dup(b.arena().fd()), b.arena().capacity(),
                                 ::dup(b.connections().doorbell_fd()), x, into_a, into_b);
    b.connections().add_shm_rail(link(high, low), ::dup(a.arena().fd()), a.arena().capacity(),
                                 ::dup(a.connections().doorbell_fd()), y, into_b, into_a);
  }

  void join_by_wire(int low, int high) {
    const auto [x, y] = socket_pair();
    engine(low).connections().add_rail(link(low, high), 0, RailKind::kTcp, x, kJobCode);
    engine(high).connections().add_rail(link(high, low), 0, RailKind::kTcp, y, kJobCode);
  }

  // Return the link that the next event of this kind names; other events are dropped.
  int next(int rank, const std::string& what) {
    for (;;) {
      const std::optional<RailEvent> event = engine(rank).connections().next_event();
      if (event && event->what == what) return event->link;
    }
  }

 private:
  const Kind kind_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<std::vector<int>> links_;
};

bool says(const std::shared_ptr<Request>& request, const char* words) {
  return request->failure.message.find(words) != std::string::npos;
}

TEST("an operation waits for the first rail of its link, which it asks for") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{3'000'000}}) {
      Loose ranks(3, kind);
      const std::vector<char> sent(bytes, 'x');
      std::vector<char> received(bytes);
      const auto sending = ranks.post(0, send_to(1, sent.data(), bytes));
      CHECK(ranks.next(0, "wanted") == ranks.link(0, 1));
      const auto receiving = ranks.post(1, receive_from(0, received.data(), bytes));
      CHECK(ranks.next(1, "wanted") == ranks.link(1, 0));
      CHECK(!sending->finished() && !receiving->finished());
      ranks.join(0, 1);
      finish(ranks.engine(0), sending);
      finish(ranks.engine(1), receiving);
      CHECK(received == sent);
      CHECK(ranks.engine(0).connections().rails().size() == 1);
    }
  }
}

TEST("a wire that replaces planned shared memory carries what was posted before and after") {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{3'000'000}}) {
    Loose ranks(2, Kind::kShared);
    const std::vector<char> sent(bytes, 'x');
    std::vector<char> early(bytes), late(bytes);
    const auto sending = ranks.post(0, send_to(1, sent.data(), bytes));
    const auto receiving = ranks.post(1, receive_from(0, early.data(), bytes));
    ranks.engine(0).connections().use_wires(ranks.link(0, 1));
    const auto again = ranks.post(0, send_to(1, sent.data(), bytes));
    const auto later = ranks.post(1, receive_from(0, late.data(), bytes));
    ranks.engine(1).connections().use_wires(ranks.link(1, 0));
    ranks.join_by_wire(0, 1);
    for (const auto& request : {sending, again}) finish(ranks.engine(0), request);
    for (const auto& request : {receiving, later}) finish(ranks.engine(1), request);
    CHECK(early == sent && late == sent);
    CHECK(ranks.group(0).all_shared && ranks.group(1).all_shared);
    CHECK(ranks.engine(0).connections().rails().front().kind == "tcp");
  }
}

TEST("several operations ask for a link once, and keep their order when it is there") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Loose ranks(2, kind);
    std::vector<int> sent(50), received(50);
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; i < 50; ++i) {
      sent[static_cast<std::size_t>(i)] = i;
      requests.push_back(
          ranks.post(1, send_to(0, &sent[static_cast<std::size_t>(i)], sizeof(int))));
    }
    CHECK(ranks.next(1, "wanted") == ranks.link(1, 0));
    ranks.join(0, 1);
    // The rail is announced next: nothing has asked for the link again.
    const std::optional<RailEvent> event =
        kind == Kind::kStream ? ranks.engine(1).connections().next_event() : std::nullopt;
    CHECK(kind == Kind::kShared || (event && event->what == "up"));
    for (int i = 0; i < 50; ++i)
      finish(ranks.engine(0),
             ranks.post(0, receive_from(1, &received[static_cast<std::size_t>(i)], sizeof(int))));
    for (const auto& request : requests) finish(ranks.engine(1), request);
    CHECK(received == sent);
  }
}

TEST("an operation whose link is not made ends at its deadline with the reason") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Loose ranks(2, kind);
    ranks.engine(0).connections().hindered(ranks.link(0, 1), "tcp any>10.0.0.2: no route to host");
    int value = 0;
    Operation operation = receive_from(1, &value, sizeof value);
    operation.timeout_ns = kSecond / 10;
    const auto request = ranks.post(0, operation);
    CHECK(ranks.engine(0).wait(*request, 10 * kSecond));
    CHECK(request->failure.fault == Fault::kLink);
    CHECK(says(request, "of rank 1: no connection to it has been made"));
    CHECK(says(request, "(tcp any>10.0.0.2: no route to host)"));
  }
}

TEST("a link that is made late tells that the peer has closed the group") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Loose ranks(2, kind);
    ranks.engine(0).close_group(ranks.group(0), 0);
    int value = 0;
    const auto request = ranks.post(1, receive_from(0, &value, sizeof value));
    CHECK(!request->finished());
    ranks.join(0, 1);
    CHECK(ranks.engine(1).wait(*request, 10 * kSecond));
    CHECK(request->failure.fault == Fault::kPeer && says(request, "rank 0 closed the group"));
  }
}

TEST("a link that is made late tells the failure of a group that was aborted") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    for (const bool closes : {false, true}) {
      Loose ranks(3, kind);
      ranks.join(0, 2);
      ranks.engine(0).abort_group(ranks.group(0), "its input has ended");
      if (closes) ranks.engine(0).close_group(ranks.group(0), 0);
      int value = 0;
      const auto request = ranks.post(1, receive_from(0, &value, sizeof value));
      CHECK(!request->finished());
      ranks.join(0, 1);
      CHECK(ranks.engine(1).wait(*request, 10 * kSecond));
      CHECK(request->failure.fault == Fault::kPeer && request->failure.peer == 0);
      CHECK(says(request, "rank 0 aborted the group: its input has ended"));
    }
  }
}

TEST("groups that are closed leave no frame at a link that was never made") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Loose ranks(3, kind);
    ranks.join(0, 2);
    const Link& link = *ranks.group(0).links[1];
    for (std::uint32_t epoch = 2; epoch < 200; ++epoch) {
      const auto group = ranks.open(0, epoch);
      if (epoch % 2 == 0) ranks.engine(0).abort_group(*group, "its input has ended");
      ranks.engine(0).close_group(*group, 0);
      CHECK(link.waiting_frames().empty());
    }
    // The group of the peer that is still open, epoch 1, works over the link once it is made.
    const int sent = 7;
    int received = 0;
    const auto sending = ranks.post(0, send_to(1, &sent, sizeof sent));
    const auto receiving = ranks.post(1, receive_from(0, &received, sizeof received));
    ranks.join(0, 1);
    finish(ranks.engine(0), sending);
    finish(ranks.engine(1), receiving);
    CHECK_EQUAL(received, sent);
  }
}

TEST("an engine with links that were never made closes without waiting for them") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Loose ranks(3, kind);
    ranks.join(0, 1);
    const auto start = std::chrono::steady_clock::now();
    ranks.engine(0).close(60 * kSecond);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  }
}

TEST("ranks that have no link to a lost rank learn of the loss from the others") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Loose ranks(4, kind);
    for (int low = 0; low < 3; ++low) ranks.join(low, low + 1);
    std::vector<float> values(4);
    const auto request = ranks.post(3, reduction(ring(4, 3), values.data(), values.data(), 4));
    ranks.engine(1).connections().unreachable(ranks.link(1, 0), "its process has ended");
    CHECK(ranks.engine(3).wait(*request, 10 * kSecond));
    CHECK(request->failure.fault == Fault::kPeer && request->failure.peer == 0);
    CHECK(says(request, "the link to rank 0 (rank 0) closed unexpectedly: its process has ended"));
    // A rank itself asks for a link to the lost rank, since the process of that rank may live.
    CHECK(ranks.next(2, "wanted") == ranks.link(2, 0));
  }
}

TEST("an operation that fails at one rank fails at all, also at those that it has no link to") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Loose ranks(5, kind);
    for (int low = 0; low < 4; ++low) ranks.join(low, low + 1);
    ranks.join(0, 4);
    std::vector<std::vector<float>> values(5, std::vector<float>(5));
    std::vector<std::shared_ptr<Request>> requests;
    for (const int rank : {1, 2, 3, 0}) {  // rank 4 posts nothing
      float* own = values[static_cast<std::size_t>(rank)].data();
      Operation operation = reduction(ring(5, rank), own, own, 5);
      if (rank == 0) operation.timeout_ns = kSecond / 5;
      requests.push_back(ranks.post(rank, operation));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CHECK(ranks.engine(i < 3 ? static_cast<int>(i) + 1 : 0).wait(*requests[i], 10 * kSecond));
      CHECK(requests[i]->failure.fault == Fault::kTimeout);
    }
  }
}

TEST("an engine with many rails probes each of them less often") {
  for (const auto& [rails, pause_ms] : {std::pair{1, 50}, {8, 50}, {16, 100}, {200, 500}}) {
    Parts parts;
    std::vector<int> peers;
    for (int i = 0; i < rails; ++i) {
      const auto [x, y] = socket_pair();
      peers.push_back(y);
      auto wire = std::make_unique<StreamRail>(x, kJobCode, true);
      Link& link = parts.add("rank");
      parts.machine.links().watch().add(link, 0, *wire);
      link.add_rail(0, "tcp", std::move(wire));
    }
    const std::int64_t now = parts.machine.clock().next();
    for (Link* link : parts.machine.links().made()) {
      link->port().watch(true);
      CHECK(wires_of(*link)->rail(0)->next_probe_ns == now + pause_ms * (kSecond / 1000));
    }
    for (const int fd : peers) ::close(fd);
  }
}

}  // namespace
}  // namespace slackline::test
