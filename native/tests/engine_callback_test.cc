// Tests of collectives that are posted in callbacks: their identities match them, in any order.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::size_t kCount = 20'000;

std::int64_t in_callback_of(std::uint64_t number, std::uint64_t callback, std::uint64_t place) {
  return static_cast<std::int64_t>(std::uint64_t{kCallbackClass} << 56 | callback << 44 |
                                   place << 32 | number);
}

std::int64_t nested(std::uint64_t hash) {
  return static_cast<std::int64_t>(std::uint64_t{kNestedCallbackClass} << 56 | hash);
}

// Post one collective for each identity, in an order of this rank's own, among collectives that
// are matched by their order, and check all sums. A collective's values are multiples of its place
// in `identities`, so that a wrong match gives a wrong sum.
void check_orders(Kind kind, unsigned seed) {
  const std::vector<std::int64_t> identities{
      in_callback_of(0, 0, 0),
      in_callback_of(0, 0, 1),
      in_callback_of(0, 1, 0),
      in_callback_of(1, 0, 0),
      in_callback_of(5, 0xFFF, 0xFFF),
      in_callback_of(0xFFFF'FFFF, 0, 0),
      nested(0),
      nested(0xFF'FFFF'FFFF'FFFF),
  };
  Ranks ranks(3, kind);
  on_every_rank(3, [&](int rank) {
    std::mt19937 random(seed * 3 + static_cast<unsigned>(rank));
    Engine& engine = ranks.engine(rank);
    const auto program = mesh(3, rank);
    const std::size_t ordered = 4;
    std::vector<std::size_t> order(identities.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::vector<float>> values(identities.size() + ordered);
    std::vector<std::shared_ptr<Request>> requests;
    const auto post = [&](std::size_t index, std::int64_t tag) {
      values[index].assign(kCount, static_cast<float>((index + 1) << rank));
      float* data = values[index].data();
      requests.push_back(
          engine.post(ranks.group(rank), reduction(program, data, data, kCount, tag), false));
    };
    std::size_t next = identities.size();
    for (const std::size_t index : order) {
      if (next < values.size() && random() % 2 == 0) post(next++, -1);
      post(index, identities[index]);
    }
    while (next < values.size()) post(next++, -1);
    for (const auto& request : requests) finish(engine, request);
    for (std::size_t index = 0; index < values.size(); ++index) {
      const auto sum = static_cast<float>((index + 1) * 7);
      CHECK(std::ranges::all_of(values[index], [&](float each) { return each == sum; }));
    }
  });
}

TEST("collectives of callbacks are matched by their identities in any order") {
  for (const Kind kind : {Kind::kStream, Kind::kShared, Kind::kDatagram})
    for (unsigned seed = 0; seed < 10; ++seed) check_orders(kind, seed);
}

TEST("an identity takes no number of the group's collectives") {
  Ranks ranks(2, Kind::kStream);
  on_every_rank(2, [&](int rank) {
    std::vector<float> values(10, 1.0f);
    const auto post = [&](std::int64_t tag) {
      const Operation operation =
          reduction(mesh(2, rank), values.data(), values.data(), values.size(), tag);
      const auto request = ranks.engine(rank).post(ranks.group(rank), operation, true);
      finish(ranks.engine(rank), request);
      return record_of(*request).sequence;
    };
    CHECK_EQUAL(post(-1), 0u);
    CHECK_EQUAL(post(in_callback_of(9, 0, 0)), 9u);
    CHECK_EQUAL(post(nested(77)), 77u);
    CHECK_EQUAL(post(-1), 1u);
  });
}

TEST("messages name the callback whose collective they mean") {
  CHECK_EQUAL(number_words(static_cast<std::uint64_t>(in_callback_of(7, 2, 3))),
              std::string("in callback 2 of operation 7, place 3"));
  CHECK_EQUAL(number_words(static_cast<std::uint64_t>(nested(5))),
              std::string("in a callback of another callback's or group's operation, place 5"));
  CHECK_EQUAL(number_words(std::uint64_t{1} << 56 | std::uint64_t{4} << 32 | 6),
              std::string("tag 4 sequence 6"));
}

}  // namespace
}  // namespace slackline::test
