// Tests of devices with the plan `ring`, in which the data of every rank starts one chunk.
#include <set>

#include "devices.h"

namespace slackline::test {
namespace {

TEST("devices around a rotating ring reduce every size, in place or not, over every rail") {
  for (const Kind kind : kKinds) {
    for (const auto& with :
         std::vector<std::vector<int>>{{0, 1}, {0, 1, 2}, {1, 3}, {0, 1, 2, 3}}) {
      const int size = with.back() + 1;
      Ring net(size, kind, with, [] {}, offloaded_rotating);
      on_every_rank(size, [&](int rank) {
        for (const std::size_t count : kSizes) {
          net.all_reduce(rank, count, count % 2 == 0);
          const std::vector<float> source = contributions(rank, count);
          std::vector<float> target(count, -1);
          finish(net.ranks.engine(rank), net.post(rank, source.data(), target.data(), count, true));
          check_sum(target.data(), count, size);
          CHECK(source == contributions(rank, count));
        }
      });
      // A chunk without elements involves no device. Buffers are split at lines of 64 bytes, so
      // short buffers have empty chunks. Each size is reduced twice.
      int chunks = 0;
      for (const std::size_t count : kSizes)
        chunks += 2 * std::min(size, static_cast<int>((count + 15) / 16));
      for (const auto& device : net.devices) CHECK_EQUAL(device->operations.load(), chunks);
    }
  }
}

// Return sums of values that round, so that the result depends on the order of the additions.
std::vector<std::vector<float>> sums(Ring& net) {
  std::vector<std::vector<float>> all(static_cast<std::size_t>(net.ranks.size()));
  on_every_rank(net.ranks.size(), [&](int rank) {
    auto& values = all[static_cast<std::size_t>(rank)];
    values.resize(20'011);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          1.0f / static_cast<float>(1 + (i * 37 + static_cast<std::size_t>(rank) * 11) % 97);
    for (const wire::ReduceOp op : {wire::ReduceOp::kSum, wire::ReduceOp::kAvg}) {
      Operation operation =
          reduction(net.plan(net.ranks.size(), rank), values.data(), values.data(), values.size());
      operation.op = op;
      Engine& engine = net.ranks.engine(rank);
      finish(engine, engine.post(net.ranks.group(rank), operation, true));
    }
  });
  return all;
}

TEST("sums and averages of a rotating ring have the bits of ranks without devices") {
  for (const int size : {2, 3, 4, 5}) {
    Ring software(size, Kind::kStream, {}, [] {}, ring);
    const auto expected = sums(software);
    for (const auto& each : expected) CHECK(each == expected.front());
    Ring some(size, Kind::kShared, {0, size - 1}, [] {}, offloaded_rotating);
    CHECK(sums(some) == expected);
    std::vector<int> every(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) every[static_cast<std::size_t>(rank)] = rank;
    Ring all(size, Kind::kStream, every, [] {}, offloaded_rotating);
    CHECK(sums(all) == expected);
  }
}

TEST("half types in an order that rounds at every rank are not for devices") {
  Ring net(3, Kind::kStream, {0, 1, 2}, [] {}, offloaded_rotating);
  std::vector<std::uint16_t> ones(1000, 0x3F80);
  on_every_rank(3, [&](int rank) {
    std::vector<std::uint16_t> values = ones;
    Operation operation = reduction(net.plan(3, rank), nullptr, nullptr, values.size());
    operation.dtype = wire::DType::kBfloat16;
    operation.source = operation.target = reinterpret_cast<std::byte*>(values.data());
    operation.total_bytes = values.size() * 2;
    finish(net.ranks.engine(rank),
           net.ranks.engine(rank).post(net.ranks.group(rank), operation, true));
    CHECK(values == std::vector<std::uint16_t>(1000, 0x4040));
  });
  CHECK_EQUAL(net.ranks.counter("device_frames_taken"), 0u);
}

TEST("a device learns which rank's data open a chunk, and of no other chunk than has begun") {
  Ranks ranks(3, Kind::kStream, 1, small_engine());
  Engine& engine = ranks.engine(1);
  engine.roles().attach(ranks.group(1), "test");
  std::vector<float> values = contributions(1, 4800);
  const auto request =
      engine.post(ranks.group(1),
                  reduction(offloaded_rotating(3, 1), values.data(), values.data(), 4800), false);
  const auto first = engine.roles().device_work(ranks.group(1));
  CHECK_EQUAL(first->posts.size(), 1u);
  CHECK_EQUAL(first->posts[0].key.chunk, 0u);
  CHECK_EQUAL(first->posts[0].start, 1);
  // Rank 0 has no device; its data starts chunk 2.
  std::vector<float> others = contributions(0, 4800);
  const auto theirs = ranks.engine(0).post(
      ranks.group(0), reduction(offloaded_rotating(3, 0), others.data(), others.data(), 4800),
      false);
  const auto second = engine.roles().device_work(ranks.group(1));
  CHECK_EQUAL(second->posts.size(), 1u);
  CHECK_EQUAL(second->posts[0].key.chunk, 2u);
  CHECK_EQUAL(second->posts[0].start, 0);
  CHECK_EQUAL(second->posts[0].total, 6400u);
  wire::Header header;
  std::memcpy(&header, second->frames.at(0).bytes.data(), sizeof header);
  CHECK_EQUAL(header.chunk, 2u);
  CHECK_EQUAL(header.total, 6400u);
  ranks.engine(0).abort_group(ranks.group(0), "enough");
  engine.wait(*request, -1);
  ranks.engine(0).wait(*theirs, -1);
}

TEST("ranks with devices may post rotating rings by tag in any order") {
  Ring net(4, Kind::kStream, {0, 1, 3}, [] {}, offloaded_rotating);
  all_reduce_in_any_order(net);
}

}  // namespace
}  // namespace slackline::test
