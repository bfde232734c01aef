// Tests of the state of an aggregator. The links have no rail, and no engine makes progress.
#include "../src/engine/aggregation.h"

#include <memory>
#include <string>
#include <vector>

#include "../src/engine/headers.h"
#include "parts.h"
#include "ranks.h"

namespace slackline::test {
namespace {

constexpr std::size_t kArena = std::size_t{1} << 20;

// A group of three workers (ranks 0 to 2) and this rank, their aggregator.
class Workers {
 public:
  Workers() : parts_(kArena) {
    std::vector<Link*> all;
    for (int rank = 0; rank < 3; ++rank) all.push_back(&parts_.add("worker"));
    all.push_back(nullptr);
    group = std::make_shared<Group>(4, 3, std::move(all), false, true);
  }

  std::deque<Unexpected> frames_of(const std::vector<int>& ranks) const {
    std::deque<Unexpected> frames;
    for (const int rank : ranks)
      frames.push_back({group->links[static_cast<std::size_t>(rank)], wire::Header{}, {}});
    return frames;
  }
  // Return an operation of `segments` segments.
  std::shared_ptr<Request> request(std::size_t segments) const {
    auto made = std::make_shared<Request>();
    made->group = group;
    made->flows.resize(4);
    made->chunks.emplace_back().segments.resize(segments);
    return made;
  }

  std::shared_ptr<Group> group;

 private:
  Parts parts_;
};

wire::Header header_of(wire::Collective collective, wire::DType dtype, wire::ReduceOp op,
                       std::uint64_t total) {
  wire::Header header = blank_header(wire::FrameKind::kData);
  header.op =
      static_cast<std::uint8_t>(static_cast<unsigned>(collective) << 4 | static_cast<unsigned>(op));
  header.dtype = static_cast<std::uint8_t>(dtype);
  header.total = total;
  return header;
}
wire::Header sum_of(std::uint64_t total, wire::DType dtype = wire::DType::kFloat32) {
  return header_of(wire::Collective::kAllReduce, dtype, wire::ReduceOp::kSum, total);
}

Aggregation aggregation_from(std::uint32_t onset) { return {direct(4, 3), nullptr, onset}; }

TEST("an operation is begun by all once a frame of every worker is there") {
  const Workers workers;
  const auto begun = [&](const std::vector<int>& ranks) {
    return Aggregation::begun_by_all(*workers.group, workers.frames_of(ranks));
  };
  CHECK(!begun({}) && !begun({0, 1}) && !begun({0, 1, 1, 0}) && !begun({2, 2, 2}));
  CHECK(begun({2, 0, 1}) && begun({0, 0, 1, 2}));
  Workers others;
  std::deque<Unexpected> frames = workers.frames_of({0, 1});
  frames.push_back(others.frames_of({2}).front());  // from a link outside the group
  CHECK(!Aggregation::begun_by_all(*workers.group, frames));
}

TEST("an aggregator refuses what it cannot add or has no room for") {
  const auto refusal = [](const wire::Header& header) {
    return Aggregation::refusal(header, kArena);
  };
  CHECK_EQUAL(refusal(sum_of(0)), "");
  CHECK_EQUAL(refusal(sum_of(kArena / 2)), "");
  CHECK_EQUAL(
      refusal(sum_of(kArena / 2 + 4)),
      "the aggregator has no room for 512 KiB: it takes at most half of its arena of 1 MiB");
  CHECK_EQUAL(refusal(sum_of(10)),
              "an aggregator cannot reduce 10 bytes of dtype code 1 by reduction code 1");
  CHECK_EQUAL(refusal(sum_of(8, static_cast<wire::DType>(99))),
              "an aggregator cannot reduce 8 bytes of dtype code 99 by reduction code 1");
  CHECK_EQUAL(refusal(header_of(wire::Collective::kAllReduce, wire::DType::kFloat32,
                                wire::ReduceOp::kBxor, 8)),
              "an aggregator cannot reduce 8 bytes of dtype code 1 by reduction code 8");
  CHECK_EQUAL(refusal(header_of(wire::Collective::kBroadcast, wire::DType::kFloat32,
                                wire::ReduceOp::kSum, 8)),
              "an aggregator only performs all_reduce, not the collective with code 4");
}

TEST("an operation at an aggregator has the parameters of the worker's frame") {
  const Aggregation aggregation = aggregation_from(1);
  const Key key{77, 4, kRoleCollective};
  std::byte memory{};
  const Operation made = aggregation.operation(key, sum_of(12), &memory);
  CHECK(made.dtype == wire::DType::kFloat32 && made.op == wire::ReduceOp::kSum);
  CHECK(made.target == &memory && made.source == nullptr && made.key == &key);
  CHECK(made.count == 3 && made.total_bytes == 12 && made.program->rank == 3);
  const Operation refused = aggregation.refused(key, sum_of(10, static_cast<wire::DType>(99)));
  CHECK(refused.target == nullptr && refused.count == 0 && refused.key == &key);
  CHECK(refused.dtype == wire::DType::kUint8 && refused.total_bytes == 10);
}

TEST("operations without room wait in their order, each once") {
  Aggregation aggregation = aggregation_from(1);
  const Key first{1, 4, 0}, second{2, 4, 0};
  CHECK(!aggregation.any_waits() && !aggregation.take_waiting());
  for (const Key& key : {first, second, first}) aggregation.wait(key);
  CHECK(aggregation.any_waits());
  CHECK(aggregation.take_waiting() == first);
  aggregation.wait_again(first);
  CHECK(aggregation.take_waiting() == first);
  CHECK(aggregation.take_waiting() == second);
  CHECK(!aggregation.any_waits() && !aggregation.take_waiting());
}

TEST("addition starts when every worker has sent as many segments as the threshold") {
  const Workers workers;
  const Aggregation aggregation = aggregation_from(2);
  const auto request = workers.request(5);
  for (const int worker : {0, 0, 0, 1, 2, 1}) CHECK(!aggregation.count_arrival(*request, worker));
  CHECK(aggregation.count_arrival(*request, 2));
  // A short operation has fewer segments than the threshold.
  const auto brief = workers.request(1);
  CHECK(!aggregation.count_arrival(*brief, 1) && !aggregation.count_arrival(*brief, 2));
  CHECK(aggregation.count_arrival(*brief, 0));
}

TEST("results are reported when they are many or large") {
  Aggregation aggregation = aggregation_from(1);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::uint64_t> expected;
    for (std::uint64_t tag = 1; tag < Aggregation::kMostTags; ++tag) {
      CHECK(aggregation.note_result(tag, 4).empty());
      expected.push_back(tag);
    }
    expected.push_back(99);
    CHECK(aggregation.note_result(99, 4) == expected);
    CHECK(aggregation.note_result(5, Aggregation::kMostTagsBytes - 1).empty());
    CHECK((aggregation.note_result(6, 1) == std::vector<std::uint64_t>{5, 6}));
    CHECK(
        (aggregation.note_result(7, Aggregation::kMostTagsBytes) == std::vector<std::uint64_t>{7}));
  }
}

}  // namespace
}  // namespace slackline::test
