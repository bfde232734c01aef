// A device of a test: what a ring NIC does, in plain C++, on a thread of its own.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
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

class RingDevice {
 public:
  // `before` runs for each taken batch of work; it may throw, which fails the device.
  RingDevice(
      Engine& engine, std::shared_ptr<Group> group, std::function<void()> before = [] {})
      : engine_(engine), group_(std::move(group)), before_(std::move(before)) {
    engine_.attach(*group_, "test");
    thread_ = std::thread([this] { run(); });
  }
  ~RingDevice() { thread_.join(); }  // the group has been closed

  std::atomic<int> operations{0};

 private:
  struct Open {
    DevicePost post;
    std::uint64_t written = 0;
  };

  void run() {
    try {
      while (const std::optional<DeviceWork> work = engine_.device_work(*group_)) {
        before_();
        take(*work);
      }
    } catch (const std::exception& error) {
      engine_.device_failed(*group_, error.what());
    }
  }

  void take(const DeviceWork& work) {
    std::vector<Bytes> out;
    std::vector<std::uint64_t> completed;
    const int last = group_->size() - 1;
    for (const DevicePost& post : work.posts) {
      open_[post.tag] = Open{post};
      ++operations;
      for (std::uint64_t at = 0; group_->rank == 0 && at < post.total; at += post.frame_bytes)
        out.push_back(own(post, at));
    }
    for (const DeviceFrame& frame : work.frames) {
      wire::Header header;
      std::memcpy(&header, frame.bytes.data(), sizeof header);
      const auto found = open_.find(header.tag);
      if (found == open_.end()) continue;
      Open& open = found->second;
      const std::byte* payload = frame.bytes.data() + sizeof header;
      if ((header.flags & wire::kFlagPartial) != 0) {
        out.push_back(sum(open, header, payload, group_->rank == last));
      } else {
        std::memcpy(open.post.memory + header.offset, payload, header.length);
        open.written += header.length;
        if (group_->rank != last - 1) out.push_back(frame.bytes);
      }
      if (open.written == open.post.total) {
        completed.push_back(header.tag);
        open_.erase(found);
      }
    }
    for (const std::uint64_t tag : work.withdrawn) open_.erase(tag);
    const std::vector<std::span<const std::byte>> spans(out.begin(), out.end());
    engine_.device_answer(*group_, spans, completed);
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
    header.tag = post.tag;
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
  std::map<std::uint64_t, Open> open_;
  std::thread thread_;
};

}  // namespace slackline::test
