// Test devices in plain C++, on threads of their own: a ring NIC that adds for its rank, and an
// aggregation node.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "../src/engine/device.h"
#include "ranks.h"
#include "slackline/kernels.h"

namespace slackline::test {

using Bytes = std::vector<std::byte>;

inline std::shared_ptr<Program> offloaded_ring(int ranks, int rank) {
  auto p = reduce_broadcast(ranks, rank);
  p->offloads = true;
  p->longest_segment = 4096;
  return p;
}

// Return the program of the plan `ring`, in which the data of each rank starts one chunk.
inline std::shared_ptr<Program> offloaded_rotating(int ranks, int rank) {
  auto p = ring(ranks, rank);
  p->offloads = true;
  p->longest_segment = 4096;
  for (StepList& step_list : p->step_lists)
    step_list.start = static_cast<std::uint16_t>((step_list.chunk + 1) % ranks);
  return p;
}

class RingDevice {
 public:
  // Attach the device to the group. `before` runs for each batch of work that is taken; an
  // exception from it fails the device.
  RingDevice(
      Engine& engine, std::shared_ptr<Group> group, std::function<void()> before = [] {})
      : engine_(engine), group_(std::move(group)), before_(std::move(before)) {
    engine_.roles().attach(*group_, "test");
    thread_ = std::thread([this] { run(); });
  }
  ~RingDevice() { thread_.join(); }  // requires that the group has been closed

  std::atomic<int> operations{0};

 private:
  struct Open {
    DevicePost post;
    int place = 0;  // number of hops from the rank whose data starts the chunk
    std::uint64_t written = 0;
  };

  void run() {
    try {
      while (const std::optional<DeviceWork> work = engine_.roles().device_work(*group_)) {
        before_();
        take(*work);
      }
    } catch (const std::exception& error) {
      engine_.roles().device_failed(*group_, error.what());
    }
    engine_.roles().device_closed(*group_);
  }

  void take(const DeviceWork& work) {
    std::vector<Bytes> out;
    std::vector<DeviceKey> completed;
    const int ranks = group_->size();
    for (const DevicePost& post : work.posts) {
      open_[post.key] = Open{post, (group_->rank - post.start + ranks) % ranks};
      ++operations;
      for (std::uint64_t at = 0; group_->rank == post.start && at < post.total;
           at += post.frame_bytes)
        out.push_back(own(post, at));
    }
    for (const DeviceFrame& frame : work.frames) {
      wire::Header header;
      std::memcpy(&header, frame.bytes.data(), sizeof header);
      const auto found = open_.find(DeviceKey{header.tag, header.chunk});
      if (found == open_.end()) continue;
      Open& open = found->second;
      const std::byte* payload = frame.bytes.data() + sizeof header;
      if ((header.flags & wire::kFlagPartial) != 0) {
        out.push_back(sum(open, header, payload, open.place == ranks - 1));
      } else {
        std::memcpy(open.post.memory + header.offset, payload, header.length);
        open.written += header.length;
        if (open.place < ranks - 2) out.push_back(frame.bytes);
      }
      if (open.written == open.post.total) {
        completed.push_back(found->first);
        open_.erase(found);
      }
    }
    for (const DeviceKey& key : work.withdrawn) open_.erase(key);
    const std::vector<std::span<const std::byte>> spans(out.begin(), out.end());
    engine_.roles().device_answer(*group_, spans, completed, work.withdrawn);
  }

  static bool half(const DevicePost& post) {
    return post.dtype == wire::DType::kFloat16 || post.dtype == wire::DType::kBfloat16;
  }
  static Bytes make(wire::Header header, std::size_t length, bool partial) {
    header.length = static_cast<std::uint32_t>(length);
    header.flags = partial ? wire::kFlagPartial : 0;
    Bytes frame(sizeof header + length);
    std::memcpy(frame.data(), &header, sizeof header);
    return frame;
  }
  static Bytes own(const DevicePost& post, std::uint64_t at) {
    wire::Header header{};
    header.tag = post.key.tag;
    header.chunk = static_cast<std::uint16_t>(post.key.chunk);
    header.offset = at;
    const std::size_t bytes = std::min<std::uint64_t>(post.frame_bytes, post.total - at);
    Bytes frame = make(header, bytes * (half(post) ? 2 : 1), true);
    std::byte* to = frame.data() + sizeof header;
    if (half(post))
      kernels::widen(post.dtype, post.memory + at, reinterpret_cast<float*>(to), bytes / 2);
    else
      std::memcpy(to, post.memory + at, bytes);
    return frame;
  }
  static Bytes sum(Open& open, const wire::Header& header, const std::byte* payload, bool last) {
    const DevicePost& post = open.post;
    std::byte* mine = post.memory + header.offset;
    const std::size_t bytes = std::min<std::uint64_t>(post.frame_bytes, post.total - header.offset);
    const std::size_t count = bytes / wire::item_size(post.dtype);
    Bytes frame = make(header, last ? bytes : header.length, !last);
    std::byte* to = frame.data() + sizeof header;
    const auto* wide = reinterpret_cast<const float*>(payload);
    constexpr auto kSum = wire::ReduceOp::kSum;
    if (half(post) && last)
      kernels::finish_wide(post.dtype, kSum, wide, mine, to, count, 1);
    else if (half(post))
      kernels::add_wide(post.dtype, kSum, wide, mine, reinterpret_cast<float*>(to), count);
    else
      kernels::add(post.dtype, kSum, payload, mine, to, count, 1);
    if (last) {
      std::memcpy(mine, to, bytes);
      open.written += bytes;
    }
    return frame;
  }

  Engine& engine_;
  const std::shared_ptr<Group> group_;
  const std::function<void()> before_;
  std::map<DeviceKey, Open> open_;
  std::thread thread_;
};

// An aggregation node. The device adds complete sets of frames, one frame of each worker, in
// float32 or int32, and fails after `limit` sets.
class NodeDevice {
 public:
  NodeDevice(Engine& engine, std::shared_ptr<Group> group, int limit)
      : engine_(engine), group_(std::move(group)), left_(limit) {
    engine_.roles().attach(*group_, "test");
    thread_ = std::thread([this] { run(); });
  }
  ~NodeDevice() { thread_.join(); }  // requires that the engine has been closed

 private:
  void run() {
    const auto workers = static_cast<std::size_t>(group_->size() - 1);
    while (const auto work = engine_.roles().device_work(*group_)) {
      std::vector<Bytes> out;
      for (std::size_t i = 0; i < work->frames.size(); ++i) {
        const Bytes& frame = work->frames[i].bytes;
        if (i % workers == 0)
          out.push_back(frame);
        else
          add(out.back(), frame);
      }
      if ((left_ -= static_cast<int>(out.size())) < 0) {
        engine_.roles().device_failed(*group_, "it is on fire");
        return;
      }
      const std::vector<std::span<const std::byte>> spans(out.begin(), out.end());
      engine_.roles().device_answer(*group_, spans, {}, {});
    }
  }

  static void add(Bytes& sum, const Bytes& frame) {
    wire::Header header;
    std::memcpy(&header, frame.data(), sizeof header);
    const auto dtype = static_cast<wire::DType>(header.dtype);
    std::byte* to = sum.data() + sizeof header;
    kernels::add(dtype, wire::ReduceOp::kSum, to, frame.data() + sizeof header, to,
                 (frame.size() - sizeof header) / wire::item_size(dtype), 1);
  }

  Engine& engine_;
  const std::shared_ptr<Group> group_;
  int left_;
  std::thread thread_;
};

inline constexpr Kind kKinds[] = {Kind::kStream, Kind::kDatagram, Kind::kShared};
inline constexpr std::size_t kSizes[] = {1, 15, 1000, 1024, 1025, 20'000, 100'003};

// A ring of ranks; the ranks listed in `with` have a device behind their engine.
struct Ring {
  using Plan = std::shared_ptr<Program> (*)(int ranks, int rank);

  Ring(
      int size, Kind kind, std::vector<int> with, std::function<void()> before = [] {},
      Plan plan = offloaded_ring)
      : ranks(size, kind, 1, small_engine(), plan == offloaded_ring), plan(plan) {
    for (const int rank : with) add(rank, before);
  }
  ~Ring() {
    on_every_rank(ranks.size(), [&](int rank) {
      ranks.engine(rank).close_group(ranks.group(rank), kSecond / 10);
    });
    devices.clear();
  }
  void add(int rank, const std::function<void()>& before) {
    devices.push_back(std::make_unique<RingDevice>(
        ranks.engine(rank), ranks.groups[static_cast<std::size_t>(rank)], before));
  }
  std::shared_ptr<Request> post(int rank, const float* source, float* target, std::size_t count,
                                bool blocking, int tag = -1,
                                std::int64_t timeout_ns = 60 * kSecond) {
    Operation operation = reduction(plan(ranks.size(), rank), source, target, count, tag);
    operation.timeout_ns = timeout_ns;
    return ranks.engine(rank).post(ranks.group(rank), operation, blocking);
  }
  void all_reduce(int rank, std::size_t count, bool blocking) {
    std::vector<float> values = contributions(rank, count);
    finish(ranks.engine(rank), post(rank, values.data(), values.data(), count, blocking));
    check_sum(values.data(), count, ranks.size());
  }

  Ranks ranks;
  const Plan plan;
  std::vector<std::unique_ptr<RingDevice>> devices;
};

// Post a hundred sums on each of up to 4 ranks, each rank in a different order.
inline void all_reduce_in_any_order(Ring& net) {
  on_every_rank(net.ranks.size(), [&](int rank) {
    constexpr int kTags = 100;
    constexpr std::size_t kCount = 5000;
    std::vector<std::vector<float>> values(kTags, contributions(rank, kCount));
    std::vector<std::shared_ptr<Request>> requests;
    constexpr int kStrides[] = {1, 3, 7, 99};
    for (int i = 0; i < kTags; ++i) {
      const int tag = i * kStrides[rank] % kTags;
      auto& mine = values[static_cast<std::size_t>(tag)];
      requests.push_back(net.post(rank, mine.data(), mine.data(), kCount, false, tag));
    }
    for (const auto& request : requests) finish(net.ranks.engine(rank), request);
    for (const auto& each : values) check_sum(each.data(), kCount, net.ranks.size());
  });
}

}  // namespace slackline::test
