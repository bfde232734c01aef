// Tests of the memory that a device reads and writes: the engine keeps this memory after a failure
// until the device releases the memory.
#include <vector>

#include "devices.h"

namespace slackline::test {
namespace {

constexpr std::size_t kCount = 10'000;

// Two ranks. The test plays the device of rank 0; rank 1 has no device and never posts.
struct Half {
  explicit Half(Ring::Plan plan = offloaded_ring)
      : ranks(2, Kind::kStream, 1, small_engine(), plan == offloaded_ring),
        engine(ranks.engine(0)),
        group(ranks.group(0)),
        plan(plan) {
    engine.roles().attach(group, "test");
    before = engine.arena().used();
  }
  // Post an operation that rank 1 never posts, and wait for its timeout. With `takes` the device
  // takes the operation before that.
  std::optional<DeviceWork> fail_one(bool takes) {
    Operation operation = reduction(plan(2, 0), values.data(), values.data(), kCount);
    operation.timeout_ns = kSecond / 20;
    const auto request = engine.post(group, operation, false);
    CHECK(engine.arena().used() >= before + kCount * sizeof(float));
    std::optional<DeviceWork> taken;
    if (takes) taken = engine.roles().device_work(group);
    engine.wait(*request, -1);
    CHECK(request->failure.fault == Fault::kTimeout);
    return taken;
  }
  bool holds() { return engine.arena().used() != before; }

  Ranks ranks;
  Engine& engine;
  Group& group;
  const Ring::Plan plan;
  std::size_t before = 0;
  std::vector<float> values = contributions(0, kCount);
};

TEST("memory of an operation that failed is free again when its device lets go of it") {
  for (const bool completes : {false, true}) {
    Half half;
    for (int turn = 0; turn < 3; ++turn) {
      const DevicePost post = half.fail_one(true)->posts.at(0);
      const std::vector<DeviceKey> withdrawn =
          half.engine.roles().device_work(half.group)->withdrawn;
      CHECK(withdrawn == std::vector{post.key});
      CHECK_EQUAL(half.engine.arena().used(), half.before + 40'960u);  // whole pages
      post.memory[0] = std::byte{1};                                   // the device writes late
      half.engine.roles().device_answer(half.group, {}, {}, {});  // an answer about something else
      CHECK(half.holds());
      if (completes)
        half.engine.roles().device_answer(half.group, {}, withdrawn, {});
      else
        half.engine.roles().device_answer(half.group, {}, {}, withdrawn);
      CHECK(!half.holds());
      half.engine.roles().device_answer(half.group, {}, withdrawn,
                                        withdrawn);  // the device reports it twice
      CHECK(!half.holds());
      CHECK(half.values == contributions(0, kCount));
    }
  }
}

TEST("memory that a device never heard of is free at once") {
  Half half;
  half.fail_one(false);
  CHECK(!half.holds());
  CHECK(!half.group.device->any_work());
}

TEST("each chunk of a tensor is let go of by itself") {
  Half half(offloaded_rotating);
  // The data of rank 0 starts chunk 1. Chunk 0 starts at rank 1, which never posts.
  const DevicePost post = half.fail_one(true)->posts.at(0);
  CHECK_EQUAL(post.key.chunk, 1u);
  CHECK_EQUAL(post.start, 0);
  CHECK_EQUAL(post.total, 312u * 64);  // of 625 lines
  const std::vector<DeviceKey> withdrawn = half.engine.roles().device_work(half.group)->withdrawn;
  CHECK(withdrawn == std::vector{post.key});
  CHECK_EQUAL(half.engine.arena().used(), half.before + 20'480u);
  const std::vector<DeviceKey> other{DeviceKey{post.key.tag, 0}};
  half.engine.roles().device_answer(half.group, {}, {}, other);
  CHECK(half.holds());
  half.engine.roles().device_answer(half.group, {}, {}, withdrawn);
  CHECK(!half.holds());
}

TEST("a device that is closed has let go of everything, and not before") {
  for (const bool broken : {false, true}) {
    Half half;
    half.fail_one(true);
    Operation open = reduction(half.plan(2, 0), half.values.data(), half.values.data(), kCount);
    const auto request = half.engine.post(half.group, open, false);
    half.engine.roles().device_work(half.group);
    if (broken)
      half.engine.roles().device_failed(half.group, "it is on fire");
    else
      half.engine.close_group(half.group, 0);
    CHECK(request->failure);
    CHECK_EQUAL(half.engine.arena().used(), half.before + 2 * 40'960u);
    CHECK(!half.engine.roles().device_work(half.group));
    half.engine.roles().device_closed(half.group);
    CHECK(!half.holds());
  }
}

TEST("an operation that is done has given its device's memory back") {
  for (const Ring::Plan plan : {offloaded_ring, offloaded_rotating}) {
    Ring net(3, Kind::kStream, {0, 1, 2}, [] {}, plan);
    const std::size_t before = net.ranks.engine(1).arena().used();
    on_every_rank(3, [&](int rank) {
      for (int turn = 0; turn < 3; ++turn) net.all_reduce(rank, kCount, true);
    });
    CHECK_EQUAL(net.ranks.engine(1).arena().used(), before);
  }
}

}  // namespace
}  // namespace slackline::test
