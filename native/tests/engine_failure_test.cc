// Tests of failures, and of how every rank learns about them.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "frames.h"

namespace slackline::test {
namespace {

bool says(const std::shared_ptr<Request>& request, const char* words) {
  return request->failure.message.find(words) != std::string::npos;
}

TEST("an operation that a rank never posts times out and says whom it waited for") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(3, kind);
    on_every_rank(2, [&](int rank) {
      std::vector<float> values(1000);
      Operation operation = reduction(direct(3, rank), values.data(), values.data(), 1000);
      operation.timeout_ns = kSecond / 5;
      const auto request = ranks.engine(rank).post(ranks.group(rank), operation, rank == 0);
      CHECK(ranks.engine(rank).wait(*request, 10 * kSecond));
      CHECK(request->failure.fault == Fault::kTimeout);
      CHECK(says(request, " Timed out ") && says(request, "rank 2 (which has not posted it)"));
    });
    // The third rank posts late. A late rank learns of the failure, unless all its data has
    // arrived.
    std::vector<float> values(1000);
    const auto request = ranks.engine(2).post(
        ranks.group(2), reduction(direct(3, 2), values.data(), values.data(), 1000), true);
    CHECK(!request->failure || request->failure.fault == Fault::kTimeout);
  }
}

TEST("after a timeout the next operation of the group works, and late frames harm nothing") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind, 1, short_segments());
    constexpr std::size_t kCount = 300'000;
    {
      std::vector<float> lost(kCount);
      Operation operation = reduction(mesh(2, 0), lost.data(), lost.data(), kCount);
      operation.timeout_ns = kSecond / 10;
      const auto request = ranks.engine(0).post(ranks.group(0), operation, true);
      CHECK(request->failure.fault == Fault::kTimeout);
    }  // the memory of the operation is gone
    std::vector<float> late(kCount);
    const auto request = ranks.engine(1).post(
        ranks.group(1), reduction(mesh(2, 1), late.data(), late.data(), kCount), true);
    CHECK(request->failure.fault == Fault::kTimeout);
    on_every_rank(2, [&](int rank) {
      std::vector<float> values = contributions(rank, kCount);
      finish(ranks.engine(rank),
             ranks.engine(rank).post(ranks.group(rank),
                                     reduction(mesh(2, rank), values.data(), values.data(), kCount),
                                     true));
      check_sum(values.data(), kCount, 2);
    });
  }
}

TEST("a wait with a limit of its own leaves the operation alone") {
  Ranks ranks(2, Kind::kStream);
  std::vector<float> values = contributions(0, 100);
  const auto request = ranks.engine(0).post(
      ranks.group(0), reduction(direct(2, 0), values.data(), values.data(), 100), false);
  CHECK(!ranks.engine(0).wait(*request, kSecond / 100));
  CHECK(!request->finished());
  std::vector<float> others = contributions(1, 100);
  finish(ranks.engine(1),
         ranks.engine(1).post(ranks.group(1),
                              reduction(direct(2, 1), others.data(), others.data(), 100), true));
  finish(ranks.engine(0), request);
  check_sum(values.data(), 100, 2);
}

TEST("an aborted group fails on every rank, with the reason") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(3, kind);
    std::atomic<int> posted{0};
    on_every_rank(3, [&](int rank) {
      std::vector<float> values(500'000);
      if (rank == 2) {
        until([&] { return posted == 2; }, "the others");
        ranks.engine(2).abort_group(ranks.group(2), "enough of this");
        return;
      }
      const auto request = ranks.engine(rank).post(
          ranks.group(rank), reduction(mesh(3, rank), values.data(), values.data(), 500'000),
          false);
      ++posted;
      CHECK(ranks.engine(rank).wait(*request, 10 * kSecond));
      CHECK(request->failure.fault == Fault::kPeer);
      CHECK(says(request, "rank 2 aborted the group: enough of this"));
      CHECK(request->failure.departure == Departure::kAborted);
    });
  }
}

TEST("an aborted group is not taken for one that was closed, whatever the reason says") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(3, kind);
    std::atomic<bool> posted{false};
    on_every_rank(3, [&](int rank) {
      if (rank == 1) {
        until([&] { return posted.load(); }, "the operation of rank 0");
        ranks.engine(1).abort_group(ranks.group(1), "rank 2 closed the group: it ended");
      }
      if (rank != 0) return;
      // Rank 2 could still send the message, so the operation would go on if rank 1 had left in
      // good order.
      std::vector<std::byte> bytes(100);
      const auto request = ranks.engine(0).post(
          ranks.group(0), message(true, bytes.data(), bytes.size(), -1, 5), false);
      posted = true;
      CHECK(ranks.engine(0).wait(*request, 10 * kSecond));
      CHECK(request->finished());
      CHECK(request->failure.fault == Fault::kPeer);
      CHECK(says(request, "rank 1 aborted the group: rank 2 closed the group: it ended"));
    });
  }
}

TEST("who leaves a group because of a dead rank names that one to those who still wait") {
  for (const bool closes_engine : {false, true}) {
    Ranks ranks(3, Kind::kStream);
    std::vector<float> values(1000);
    const auto request = ranks.engine(0).post(
        ranks.group(0), reduction(mesh(3, 0), values.data(), values.data(), 1000), false);
    for (const Ranks::Wire& wire : ranks.wires) {
      if (wire.low == 1 && wire.high == 2) ::shutdown(wire.low_fd, SHUT_RDWR);
    }
    until([&] { return !ranks.engine(2).connections().link_alive(ranks.link(2, 1)); },
          "the loss of the link");
    if (closes_engine)
      ranks.engine(2).close(kSecond);
    else
      ranks.engine(2).close_group(ranks.group(2), kSecond);
    CHECK(ranks.engine(0).wait(*request, 10 * kSecond));
    CHECK(request->failure.fault == Fault::kPeer);
    CHECK_EQUAL(request->failure.peer, 1);
    CHECK(says(request, "the link to rank 1 (rank 1) closed unexpectedly"));
  }
}

TEST("a member that leaves a failed group is not taken for the cause, whatever has failed") {
  constexpr std::uint32_t kEpoch = 2;
  for (const Fault fault : {Fault::kInternal, Fault::kPeer}) {
    for (const bool posted_before : {false, true}) {
      for (const std::uint32_t leaves : {kEpoch, 0u}) {  // the group, or all groups
        Played p;
        const int other = p.engine.connections().add_link("the cause");
        const auto [ours, theirs] = socket_pair();
        p.engine.connections().add_rail(other, 0, RailKind::kTcp, ours, kJobCode);
        Hand cause(theirs);  // rank 2, whose own words are late
        const auto group = p.engine.open_group(kEpoch, 0, {-1, p.link, other}, false);
        std::vector<float> values(1000);
        const auto post = [&] {  // rank 0 sends to rank 1, and receives from rank 2
          return p.engine.post(*group, reduction(ring(3, 0), values.data(), values.data(), 1000),
                               false);
        };
        std::shared_ptr<Request> request;
        if (posted_before) request = post();
        wire::Header abort = header_of(wire::FrameKind::kAbort);
        abort.epoch = kEpoch;
        abort.source = 1;
        abort.tag = ~std::uint64_t{0};
        abort.offset = static_cast<std::uint64_t>(fault);
        abort.total = 2 + 1;  // the number of the rank at fault, plus one
        const std::string words = "rank 2 has failed";
        const auto* text = reinterpret_cast<const std::byte*>(words.data());
        p.hand().write(numbered(abort, 1, Bytes(text, text + words.size())));
        wire::Header bye = header_of(wire::FrameKind::kBye);
        bye.epoch = leaves;
        bye.source = 1;
        p.hand().write(numbered(bye, 2));
        CHECK(acknowledges(p.hand(), 3));
        if (!posted_before) request = post();
        CHECK(p.engine.wait(*request, 10 * kSecond));
        CHECK(request->failure.fault == fault);
        CHECK(says(request, words.c_str()));
        CHECK_EQUAL(request->failure.peer, 2);
      }
    }
  }
}

TEST("closing a group finishes what can be finished and fails what cannot") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind);
    on_every_rank(2, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      std::vector<float> values = contributions(rank, 400'000);
      const auto request =
          engine.post(ranks.group(rank),
                      reduction(mesh(2, rank), values.data(), values.data(), 400'000), false);
      std::vector<float> alone(1000);
      std::shared_ptr<Request> lost;
      if (rank == 0)
        lost = engine.post(ranks.group(0),
                           reduction(direct(2, 0), alone.data(), alone.data(), 1000, 9), false);
      engine.close_group(ranks.group(rank), kSecond);
      finish(engine, request);
      check_sum(values.data(), values.size(), 2);
      if (lost) {
        CHECK(lost->finished());
        CHECK(lost->failure.fault == Fault::kClosed || lost->failure.fault == Fault::kPeer);
      }
      bool refused = false;
      try {
        engine.post(ranks.group(rank), reduction(direct(2, rank), alone.data(), alone.data(), 1000),
                    false);
      } catch (const std::runtime_error&) {
        refused = true;
      }
      CHECK(refused);
    });
    ranks.open();  // a new epoch on the same links
    on_every_rank(2, [&](int rank) {
      std::vector<float> values = contributions(rank, 5000);
      finish(ranks.engine(rank),
             ranks.engine(rank).post(ranks.group(rank),
                                     reduction(mesh(2, rank), values.data(), values.data(), 5000),
                                     true));
      check_sum(values.data(), 5000, 2);
    });
  }
}

TEST("closing an engine ends the waits of its own threads and its peers' operations") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(3, kind);
    std::atomic<int> posted{0};
    on_every_rank(5, [&](int worker) {
      if (worker == 4) {
        until([&] { return posted == 4; }, "all posts");
        ranks.engine(2).close(kSecond);
        return;
      }
      // Ranks 0 and 1 and two threads of rank 2 post operations, all of which fail.
      const int rank = std::min(worker, 2);
      std::vector<float> values(1000);
      const auto request = ranks.engine(rank).post(
          ranks.group(rank),
          reduction(direct(3, rank), values.data(), values.data(), 1000, 1 + worker), false);
      ++posted;
      CHECK(ranks.engine(rank).wait(*request, 20 * kSecond));
      CHECK(request->failure.fault == (rank == 2 ? Fault::kClosed : Fault::kPeer));
    });
    CHECK(ranks.engine(2).next_completion() == nullptr);
  }
}

TEST("a rank may leave when its part is done, while others still work") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(4, kind);
    on_every_rank(4, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      std::vector<std::vector<float>> buffers;
      std::vector<std::shared_ptr<Request>> requests;
      for (int tag = 0; tag < 50; ++tag) {
        buffers.push_back(contributions(rank, 64));
        requests.push_back(engine.post(ranks.group(rank),
                                       reduction(reduce_broadcast(4, rank), buffers.back().data(),
                                                 buffers.back().data(), 64, tag),
                                       false));
      }
      for (const auto& request : requests) finish(engine, request);
      engine.close_group(ranks.group(rank), kSecond);
      for (const auto& buffer : buffers) check_sum(buffer.data(), 64, 4);
    });
  }
}

TEST("a rail that dies in the middle is replaced by the other: every bit arrives once") {
  constexpr std::size_t kCount = 1'000'000;
  for (const Plan& plan : plans()) {
    Ranks ranks(3, [](int, int) { return Kind::kStream; }, 2, short_segments());
    std::atomic<int> started{0};
    on_every_rank(4, [&](int worker) {
      if (worker == 3) {
        until([&] { return started == 3; }, "the posts");
        ranks.cut(0, 1, 0);
        ranks.cut(1, 2, 1);
        return;
      }
      for (int round = 0; round < 3; ++round) {
        std::vector<float> values = contributions(worker, kCount);
        const auto request = ranks.engine(worker).post(
            ranks.group(worker),
            reduction(plan.make(3, worker), values.data(), values.data(), kCount), false);
        if (round == 1) ++started;
        finish(ranks.engine(worker), request);
        check_sum(values.data(), kCount, 3);
      }
    });
    until([&] { return ranks.counter("rails_lost") == 4; }, "the loss of two rails at both ends");
  }
}

TEST("the loss of the last rail is a typed failure on both ends") {
  Ranks ranks(2, Kind::kStream);
  std::atomic<int> posted{0};
  on_every_rank(3, [&](int worker) {
    if (worker == 2) {
      until([&] { return posted == 2; }, "the posts");
      ranks.cut(0, 1, 0);
      return;
    }
    std::vector<float> values(3'000'000);
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; i < 3; ++i)
      requests.push_back(
          ranks.engine(worker).post(ranks.group(worker),
                                    reduction(mesh(2, worker), values.data() + i * 1'000'000,
                                              values.data() + i * 1'000'000, 1'000'000),
                                    false));
    // Post one more operation that the peer never posts, so it cannot succeed.
    std::vector<float> alone(100);
    const auto lost = ranks.engine(worker).post(
        ranks.group(worker),
        reduction(direct(2, worker), alone.data(), alone.data(), 100, 1 + worker), false);
    ++posted;
    for (const auto& request : requests) CHECK(ranks.engine(worker).wait(*request, 20 * kSecond));
    CHECK(ranks.engine(worker).wait(*lost, 20 * kSecond));
    const Fault fault = lost->failure.fault;
    CHECK(fault == Fault::kPeer || fault == Fault::kFrame);
    CHECK(says(lost, " closed "));
    CHECK(!ranks.engine(worker).connections().link_alive(ranks.link(worker, 1 - worker)));
  });
}

TEST("an engine that vanishes from shared memory is noticed at its control socket") {
  Ranks ranks(2, Kind::kShared);
  std::vector<float> values(1000);
  const auto request = ranks.engine(0).post(
      ranks.group(0), reduction(direct(2, 0), values.data(), values.data(), 1000), false);
  ranks.groups[1].reset();
  ranks.engines[1] = std::make_unique<Engine>(small_engine());
  CHECK(ranks.engine(0).wait(*request, 20 * kSecond));
  CHECK(request->failure.fault == Fault::kPeer);
}

TEST("an arena without room fails the operation, tells the peer, and the engine goes on") {
  for (const bool half : {false, true}) {
    // An arena of 2 MiB holds the rings and little else, so there is no room for staging slots or
    // partial sums.
    EngineOptions options;
    options.arena_bytes = 2u << 20;
    options.memory_segment_bytes = options.wire_segment_bytes = 1u << 20;
    Ranks ranks(2, Kind::kShared, 1, options, true);
    on_every_rank(2, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      std::vector<float> values(1'000'000);
      Operation operation =
          reduction(ring(2, rank), values.data(), values.data(), values.size(), 1);
      if (half) {
        operation.dtype = wire::DType::kBfloat16;
        operation.total_bytes /= 2;
      }
      const auto request = engine.post(ranks.group(rank), operation, rank == 0);
      CHECK(engine.wait(*request, 20 * kSecond));
      CHECK(request->failure.fault == Fault::kUsage);
      CHECK(says(request, "the arena has no room"));
      std::vector<float> few = contributions(rank, 500);
      finish(engine, engine.post(ranks.group(rank),
                                 reduction(ring(2, rank), few.data(), few.data(), 500, 2), true));
      check_sum(few.data(), 500, 2);
    });
  }
}

TEST("memory of partial sums is free again after a failure, once no peer can still read it") {
  for (const Kind kind : {Kind::kStream, Kind::kDatagram, Kind::kShared}) {
    Ranks ranks(2, kind, 1, small_engine(), true);
    Engine& engine = ranks.engine(0);
    std::vector<float> values(100'000);
    for (int turn = 0; turn < 3; ++turn) {
      Operation operation = reduction(ring(2, 0), values.data(), values.data(), values.size());
      operation.dtype = wire::DType::kBfloat16;
      operation.total_bytes /= 2;
      operation.timeout_ns = kSecond / 20;
      const std::size_t before = engine.arena().used();
      const auto request = engine.post(ranks.group(0), operation, false);
      CHECK(engine.arena().used() >= before + values.size() / 2 * sizeof(float));
      CHECK(engine.wait(*request, 10 * kSecond));
      CHECK(request->failure.fault == Fault::kTimeout);
      if (turn == 0) continue;
      until(
          [&] {
            engine.withheld();
            return engine.arena().used() <= before;
          },
          "the memory of the failed operation");
    }
  }
}

TEST("failed operations leave no growing tables behind") {
  Ranks ranks(2, Kind::kStream);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> values(10);
    Operation operation = reduction(direct(2, 0), values.data(), values.data(), 10, i);
    operation.timeout_ns = 1;
    const auto request = ranks.engine(0).post(ranks.group(0), operation, false);
    CHECK(ranks.engine(0).wait(*request, 10 * kSecond));
    CHECK(request->failure.fault == Fault::kTimeout);
  }
  on_every_rank(2, [&](int rank) {
    std::vector<float> values = contributions(rank, 10);
    finish(
        ranks.engine(rank),
        ranks.engine(rank).post(
            ranks.group(rank), reduction(direct(2, rank), values.data(), values.data(), 10), true));
    check_sum(values.data(), 10, 2);
  });
}

TEST("frame numbers go past the largest one in the middle of an operation") {
  Ranks ranks(2, [](int, int) { return Kind::kStream; }, 2, short_segments(), false, ~0u - 10);
  on_every_rank(2, [&](int rank) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values = contributions(rank, 700'000);
      finish(ranks.engine(rank),
             ranks.engine(rank).post(
                 ranks.group(rank),
                 reduction(mesh(2, rank), values.data(), values.data(), values.size()), true));
      check_sum(values.data(), values.size(), 2);
      if (rank == 0 && round == 0) ranks.cut(0, 1, 0);
    }
  });
}

TEST("deadlines near the end of time do not overflow") {
  Ranks ranks(2, Kind::kStream);
  on_every_rank(2, [&](int rank) {
    std::vector<float> values = contributions(rank, 10);
    Operation operation = reduction(direct(2, rank), values.data(), values.data(), 10);
    operation.timeout_ns = std::numeric_limits<std::int64_t>::max();
    const auto request = ranks.engine(rank).post(ranks.group(rank), operation, false);
    CHECK(ranks.engine(rank).wait(*request, std::numeric_limits<std::int64_t>::max()));
    check_sum(values.data(), 10, 2);
  });
}

}  // namespace
}  // namespace slackline::test
