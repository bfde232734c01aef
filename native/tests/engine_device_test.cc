// Tests of a group in which some ranks have a device that adds in place of the engine.
#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "devices.h"

namespace slackline::test {
namespace {

TEST("devices around a ring reduce every size, in place or not, over every kind of rail") {
  for (const Kind kind : kKinds) {
    for (const auto& with : std::vector<std::vector<int>>{{0, 1}, {0, 1, 2}, {0, 1, 2, 3}}) {
      const int size = static_cast<int>(with.size());
      Ring net(size, kind, with);
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
      for (const auto& device : net.devices)
        CHECK_EQUAL(device->operations.load(), static_cast<int>(2 * std::size(kSizes)));
    }
  }
}

TEST("any of the ranks may have a device and the others none") {
  for (const Kind kind : kKinds) {
    for (int some = 1; some < 8; ++some) {
      std::vector<int> with;
      for (int rank = 0; rank < 3; ++rank) {
        if ((some >> rank & 1) != 0) with.push_back(rank);
      }
      Ring net(3, kind, with);
      on_every_rank(3, [&](int rank) {
        for (const std::size_t count : kSizes) net.all_reduce(rank, count, true);
        net.all_reduce(rank, 0, true);
      });
      CHECK(net.ranks.counter("device_frames_taken") > 0);
    }
  }
}

// Return the results of every type and reduction on rank 0.
Bytes bits_of(Ring& net) {
  using wire::DType;
  using wire::ReduceOp;
  constexpr std::size_t kCount = 5003;
  Bytes found;
  for (const DType dtype :
       {DType::kFloat32, DType::kInt32, DType::kBfloat16, DType::kFloat16, DType::kFloat64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      const std::size_t item = wire::item_size(dtype);
      std::vector<Bytes> all(static_cast<std::size_t>(net.ranks.size()));
      on_every_rank(net.ranks.size(), [&](int rank) {
        Bytes& values = all[static_cast<std::size_t>(rank)];
        values.resize(kCount * item);
        for (std::size_t i = 0; i < values.size(); ++i)  // no type has infinities or NaNs
          values[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(rank) * 57) % 90);
        Operation operation = reduction(net.plan(net.ranks.size(), rank), nullptr, nullptr, kCount);
        operation.dtype = dtype;
        operation.op = op;
        operation.source = operation.target = values.data();
        operation.total_bytes = values.size();
        finish(net.ranks.engine(rank),
               net.ranks.engine(rank).post(net.ranks.group(rank), operation, true));
      });
      for (const Bytes& each : all) CHECK(each == all.front());
      found.insert(found.end(), all.front().begin(), all.front().end());
    }
  }
  return found;
}

TEST("sums and averages of every type have the bits of ranks without devices") {
  Ring software(4, Kind::kStream, {});
  const Bytes expected = bits_of(software);
  Ring all(4, Kind::kStream, {0, 1, 2, 3});
  CHECK(bits_of(all) == expected);
  Ring some(4, Kind::kShared, {1, 3});
  CHECK(bits_of(some) == expected);
}

TEST("ranks with devices may post by tag in any order") {
  Ring net(4, Kind::kStream, {0, 1, 2, 3});
  all_reduce_in_any_order(net);
}

TEST("a device that fails ends the group on every rank, and is named") {
  for (int culprit = 0; culprit < 3; ++culprit) {
    Ring net(3, Kind::kStream, {});
    int batches = 0;
    for (int rank = 0; rank < 3; ++rank) {
      net.add(rank, [&batches, rank, culprit] {
        if (rank == culprit && ++batches == 2) throw std::runtime_error("it is on fire");
      });
    }
    on_every_rank(3, [&](int rank) {
      std::vector<float> values = contributions(rank, 200'000);
      std::shared_ptr<Request> request;
      for (int i = 0; i < 3; ++i) {
        request = net.post(rank, values.data(), values.data(), values.size(), true);
        if (request->failure) break;
      }
      CHECK(request->failure.fault == Fault::kInternal);
      const std::string expected =
          "the device of rank " + std::to_string(culprit) + " (test) failed: it is on fire";
      CHECK_EQUAL(request->failure.message.substr(0, expected.size()), expected);
    });
  }
}

TEST("a device that never answers costs the operation its time, and says who is waited for") {
  Ranks ranks(2, Kind::kStream, 1, small_engine(), true);
  for (int rank = 0; rank < 2; ++rank) ranks.engine(rank).roles().attach(ranks.group(rank), "test");
  on_every_rank(2, [&](int rank) {
    std::vector<float> values = contributions(rank, 10'000);
    Operation operation =
        reduction(offloaded_ring(2, rank), values.data(), values.data(), values.size());
    operation.timeout_ns = rank == 0 ? kSecond / 5 : 20 * kSecond;
    const auto request = ranks.engine(rank).post(ranks.group(rank), operation, true);
    CHECK(request->failure.fault == Fault::kTimeout);
    CHECK(request->failure.message.find(" waiting for its device (test)") != std::string::npos);
    if (rank == 0) CHECK(!ranks.group(0).device->any_work());  // taken back
  });
}

// Post one operation of two frames at rank 0 of 2, let its device give a wrong answer, and return
// the reason for which the engine refuses it.
std::string refused(const std::function<void(wire::Header&)>& spoil, bool completes = false) {
  Ranks ranks(2, Kind::kStream, 1, small_engine(), true);
  Engine& engine = ranks.engine(0);
  Group& group = ranks.group(0);
  engine.roles().attach(group, "test");
  std::vector<float> values = contributions(0, 2048);
  Operation operation = reduction(offloaded_ring(2, 0), values.data(), values.data(), 2048);
  const auto request = engine.post(group, operation, false);
  const auto work = engine.roles().device_work(group);
  wire::Header header{};
  header.tag = work->posts.at(0).key.tag;
  header.length = 4096;
  header.flags = wire::kFlagPartial;
  spoil(header);
  Bytes frame(sizeof header + 4096);
  std::memcpy(frame.data(), &header, sizeof header);
  const std::vector<std::span<const std::byte>> frames{frame};
  const std::vector<DeviceKey> completed{work->posts[0].key};
  try {
    if (completes)
      engine.roles().device_answer(group, {}, completed, {});
    else
      engine.roles().device_answer(group, frames, {}, {});
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    return text.substr(0, text.find(':'));
  }
  return "taken";
}

TEST("what a device says is checked before it is followed") {
  CHECK_EQUAL(refused([](wire::Header&) {}), "taken");
  CHECK_EQUAL(refused([](wire::Header& h) { h.tag += 1; }),
              "taken");  // dropped: no such operation is open
  CHECK_EQUAL(refused([](wire::Header& h) { h.length = 4092; }),
              "a frame of 4160 bytes is not as long as its header states");
  CHECK_EQUAL(refused([](wire::Header& h) { h.chunk = 1; }),
              "a frame of chunk 1, which the plan does not have");
  CHECK_EQUAL(refused([](wire::Header& h) { h.offset = 64; }),
              "a frame begins where no segment does");
  CHECK_EQUAL(refused([](wire::Header& h) { h.offset = 1 << 20; }),
              "a frame begins where no segment does");
  CHECK_EQUAL(refused([](wire::Header& h) { h.flags = 0; }),
              "a frame's length or flags do not match its step");
  CHECK_EQUAL(refused([](wire::Header&) {}, true),
              "the device completed a chunk before its last step");
}

TEST("a rank that is lost ends the operations of ranks with devices at once") {
  for (const Kind kind : {Kind::kStream, Kind::kDatagram}) {
    Ring net(3, kind, {0, 1, 2});
    on_every_rank(3, [&](int rank) {
      std::vector<float> values = contributions(rank, 300'000);
      if (rank == 2) {
        net.ranks.cut(0, 2, 0);
        net.ranks.cut(1, 2, 0);
        if (kind == Kind::kDatagram) {
          for (const int peer : {0, 1})
            net.ranks.engine(peer).connections().unreachable(net.ranks.link(peer, 2),
                                                             "its process is gone");
        }
        return;
      }
      const auto request = net.post(rank, values.data(), values.data(), values.size(), true);
      CHECK(request->failure.fault == Fault::kPeer);
      CHECK_EQUAL(request->failure.peer, 2);
    });
  }
}

TEST("a rank may leave when it has its result, while other devices are still at work") {
  for (int turn = 0; turn < 20; ++turn) {
    Ring net(3, Kind::kStream, {});
    for (int rank = 0; rank < 3; ++rank) {
      net.add(rank, [rank] {
        // Simulate a slow device. The sleep does not wait for an event.
        if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      });
    }
    on_every_rank(3, [&](int rank) {
      net.all_reduce(rank, 3000, true);
      net.ranks.engine(rank).close_group(net.ranks.group(rank), kSecond);
    });
  }
}

TEST("an aborted or closed engine lets its devices go") {
  for (const bool abort : {true, false}) {
    Ring net(2, Kind::kShared, {0, 1});
    std::vector<float> values = contributions(0, 100'000);
    const auto request = net.post(0, values.data(), values.data(), values.size(), false);
    if (abort)
      net.ranks.engine(0).abort_group(net.ranks.group(0), "enough");
    else
      net.ranks.engine(0).close(0);
    net.ranks.engine(0).wait(*request, -1);
    CHECK(request->failure.fault == Fault::kClosed);
  }
}

}  // namespace
}  // namespace slackline::test
