// Tests of the descriptions of operations that have not ended or that have failed.
#include <string>
#include <vector>

#include "frames.h"

namespace slackline::test {
namespace {

std::vector<int> silent(const OpenOperation& operation) {
  std::vector<int> ranks;
  for (const MissingPart& part : operation.missing) {
    if (part.state == PartState::kSilent) ranks.push_back(part.rank);
  }
  return ranks;
}

TEST("a pending operation names the ranks that have not posted it") {
  Ranks ranks(3, Kind::kStream);
  std::vector<float> a(1000, 1.0f), b(1000, 2.0f);
  const auto posted = ranks.engine(0).post(
      ranks.group(0), reduction(direct(3, 0), a.data(), a.data(), 1000), false);
  std::vector<OpenOperation> open = ranks.engine(0).pending();
  CHECK(open.size() == 1);
  CHECK(open[0].record.bytes == 4000 && open[0].record.sequence == 0 && open[0].record.tag == -1);
  CHECK(open[0].record.posted_ns == posted->posted_ns);
  CHECK(open[0].waits_for == "rank 1 (which has not posted it), rank 2 (which has not posted it)");
  CHECK(!open[0].failure && !open[0].refused);
  CHECK((silent(open[0]) == std::vector<int>{1, 2}));
  const auto other = ranks.engine(1).post(ranks.group(1),
                                          reduction(direct(3, 1), b.data(), b.data(), 1000), false);
  until([&] { return ranks.engine(0).pending().at(0).missing.size() == 1; }, "the data of rank 1");
  CHECK((silent(ranks.engine(0).pending().at(0)) == std::vector<int>{2}));
  std::vector<float> c(1000, 3.0f);
  const auto last = ranks.engine(2).post(ranks.group(2),
                                         reduction(direct(3, 2), c.data(), c.data(), 1000), false);
  finish(ranks.engine(0), posted);
  finish(ranks.engine(1), other);
  finish(ranks.engine(2), last);
  CHECK(ranks.engine(0).pending().empty());
  CHECK(ranks.engine(0).failures().operations.empty());
}

TEST("a failed operation is described once, with the parts that were missing") {
  Ranks ranks(2, Kind::kStream);
  std::vector<float> a(10, 1.0f);
  Operation operation = reduction(direct(2, 0), a.data(), a.data(), 10, 5);
  operation.timeout_ns = 1'000'000;
  const auto late = ranks.engine(0).post(ranks.group(0), operation, false);
  CHECK(ranks.engine(0).wait(*late, -1));
  const FailureLog::Taken taken = ranks.engine(0).failures();
  CHECK(taken.operations.size() == 1 && taken.left_out == 0);
  const OpenOperation& failed = taken.operations[0];
  CHECK(failed.failure.fault == Fault::kTimeout && failed.failure.peer == 1);
  CHECK(failed.record.tag == 5 && failed.waits_for.empty() && !failed.refused);
  CHECK((silent(failed) == std::vector<int>{1}));
  CHECK(ranks.engine(0).failures().operations.empty());
}

TEST("an operation that another rank has given up is refused and blames no rank") {
  Ranks ranks(2, Kind::kStream);
  std::vector<float> a(10, 1.0f), b(10, 1.0f);
  Operation operation = reduction(direct(2, 0), a.data(), a.data(), 10);
  operation.timeout_ns = 1'000'000;
  const auto late = ranks.engine(0).post(ranks.group(0), operation, false);
  CHECK(ranks.engine(0).wait(*late, -1));
  // The second operation comes after the end of the first on rank 0, so its answer shows that rank
  // 1 has heard of that end.
  Bytes word(1);
  const auto out = ranks.engine(0).post(ranks.group(0), send_to(1, word.data(), 1), false);
  const auto in = ranks.engine(1).post(ranks.group(1), receive_from(0, word.data(), 1), false);
  finish(ranks.engine(1), in);
  finish(ranks.engine(0), out);
  const auto refused =
      ranks.engine(1).post(ranks.group(1), reduction(direct(2, 1), b.data(), b.data(), 10), false);
  CHECK(ranks.engine(1).wait(*refused, -1));
  const FailureLog::Taken taken = ranks.engine(1).failures();
  CHECK(taken.operations.size() == 1);
  CHECK(taken.operations[0].refused && taken.operations[0].missing.empty());
  CHECK(taken.operations[0].failure.fault == Fault::kTimeout);
}

TEST("a failure says how the peer left, in fields and not only in words") {
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    for (const Departure how : {Departure::kClosed, Departure::kAborted}) {
      Ranks ranks(3, kind);
      std::vector<float> a(10, 1.0f);
      const auto lost = ranks.engine(0).post(ranks.group(0),
                                             reduction(mesh(3, 0), a.data(), a.data(), 10), false);
      if (how == Departure::kAborted)
        ranks.engine(1).abort_group(ranks.group(1), "rank 2 closed the group");
      else
        ranks.engine(1).close_group(ranks.group(1), kSecond);
      CHECK(ranks.engine(0).wait(*lost, 10 * kSecond));
      const FailureLog::Taken taken = ranks.engine(0).failures();
      CHECK_EQUAL(taken.operations.size(), std::size_t{1});
      const auto& failure = taken.operations[0].failure;
      CHECK(failure.fault == Fault::kPeer && failure.departure == how);
      CHECK_EQUAL(failure.peer, 1);
    }
  }
}

TEST("a peer that was cut off has not said how it left") {
  Ranks ranks(2, Kind::kStream);
  std::vector<float> a(10, 1.0f);
  const auto lost =
      ranks.engine(0).post(ranks.group(0), reduction(direct(2, 0), a.data(), a.data(), 10), false);
  for (const Ranks::Wire& wire : ranks.wires) ::shutdown(wire.low_fd, SHUT_RDWR);
  CHECK(ranks.engine(0).wait(*lost, 10 * kSecond));
  CHECK(lost->failure.fault == Fault::kPeer && lost->failure.departure == Departure::kNone);
}

TEST("many failures are counted, and their descriptions are limited") {
  Ranks ranks(2, Kind::kStream);
  Bytes word(1);
  std::vector<std::shared_ptr<Request>> posted;
  for (int tag = 0; tag < 20; ++tag) {
    Operation operation = receive_from(1, word.data(), 1, tag);
    operation.timeout_ns = 1'000'000;
    posted.push_back(ranks.engine(0).post(ranks.group(0), operation, false));
  }
  for (const auto& each : posted) CHECK(ranks.engine(0).wait(*each, -1));
  const FailureLog::Taken taken = ranks.engine(0).failures();
  CHECK(taken.operations.size() == FailureLog::kMost && taken.left_out == 20 - FailureLog::kMost);
}

TEST("an operation's usual duration is the mean of those of its kind and size") {
  Durations durations;
  CHECK(durations.mean_ns(wire::Collective::kAllReduce, 1000) == 0);
  durations.add(wire::Collective::kAllReduce, 1000, 30);
  durations.add(wire::Collective::kAllReduce, 600, 50);
  durations.add(wire::Collective::kAllReduce, 2000, 1000);
  durations.add(wire::Collective::kBarrier, 0, 7);
  CHECK(durations.mean_ns(wire::Collective::kAllReduce, 512) == 40);
  CHECK(durations.mean_ns(wire::Collective::kAllReduce, 1024) == 1000);
  CHECK(durations.mean_ns(wire::Collective::kBarrier, 0) == 7);
  CHECK(durations.mean_ns(wire::Collective::kAllReduce, ~std::uint64_t{0}) == 0);
}

}  // namespace
}  // namespace slackline::test
