// An engine as rank 0 of three, whose peers the fuzzer plays. The engine posts the operations that
// the fuzzer chooses. For these operations the fuzzer builds the frames that a correct peer would
// send, and then changes some fields of the frames.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "../src/engine/headers.h"
#include "target.h"

namespace slackline::fuzz {

constexpr int kRanks = 3;
constexpr std::uint32_t kEpoch = 1;

struct Posted {
  std::shared_ptr<Request> request;
  Bytes source, target;             // private memory, or
  std::byte* registered = nullptr;  // arena memory, for both
};

class Play {
 public:
  static EngineOptions options() {
    EngineOptions o = test::one_thread(8u << 20);
    o.wire_segment_bytes = 4096;
    o.memory_segment_bytes = 16384;
    o.eager_bytes = 12'000;
    o.spin_microseconds = 0;
    return o;
  }
  static std::size_t slot_bytes() {
    return std::max(options().memory_segment_bytes, options().wire_segment_bytes);
  }
  Play() : engine(options()) {}
  // Open the group and post a first operation. Called after the links have been made.
  void open(std::vector<int> links, bool rank_order, std::int64_t timeout_ns) {
    group = engine.open_group(kEpoch, 0, links, rank_order);
    timeout_ns_ = timeout_ns;
    Operation nothing = test::receive_from(1, nullptr, 0, 4000);
    nothing.timeout_ns = timeout_ns;
    idle_ = engine.post(*group, nothing, false);
    arena_before_ = engine.arena().used();
  }

  // Let the engine do all that it can do now.
  void go_on() { engine.wait(*idle_, 0); }

  void post(Choices& choices) {
    if (posted.size() >= 12 || idle_->finished()) return;
    constexpr std::array<std::size_t, 7> kCounts = {0, 1, 17, 1000, 2100, 5000, 20'000};
    constexpr std::array<wire::DType, 4> kTypes = {wire::DType::kFloat32, wire::DType::kBfloat16,
                                                   wire::DType::kInt64, wire::DType::kUint8};
    const std::uint8_t what = choices.byte();
    Operation operation;
    operation.count = choices.one_of(kCounts);
    operation.dtype = choices.one_of(kTypes);
    operation.tag = static_cast<int>(choices.below(3));
    operation.priority = what >> 6;
    operation.timeout_ns = timeout_ns_;
    operation.total_bytes = operation.count * wire::item_size(operation.dtype);
    const auto bytes = static_cast<std::size_t>(operation.total_bytes);
    Posted made{nullptr, Bytes(bytes, std::byte{1}), Bytes(bytes), nullptr};
    operation.source = made.source.data();
    operation.target = made.target.data();
    if ((what & 32) != 0 && bytes > 0 && (made.registered = engine.arena().allocate(bytes)))
      operation.source = operation.target = made.registered;
    choose(operation, what % 8);
    if (operation.program == nullptr)
      (operation.receives ? operation.source : operation.target) = nullptr;
    made.request = engine.post(*group, operation, false);
    posted.push_back(std::move(made));
  }

  // Return the header of a frame that `peer` would correctly send for one of the operations. The
  // frame is a DATA frame unless the fuzzer chooses another kind.
  wire::Header honest(int peer, Choices& choices, std::size_t* length) {
    wire::Header h = test::message_header(kEpoch, peer, 0, 0, 0);
    *length = 0;
    if (posted.empty()) return h;
    const Posted& p = posted[choices.below(posted.size())];
    const Request& request = *p.request;
    h = header_for(request, wire::FrameKind::kData);
    h.source = static_cast<std::uint16_t>(peer);
    if (request.chunks.empty()) return h;
    const Chunk& chunk = request.chunks[choices.below(request.chunks.size())];
    const std::size_t segment = choices.below(chunk.segments.size());
    const bool partial = choices.byte() % 2 == 1;
    h.chunk = chunk.step_list->chunk;
    h.offset = segment * chunk.segment_count * request.item_size;
    h.total = total_for(request, chunk);
    if (partial) h.flags |= wire::kFlagPartial;
    const std::size_t first = std::min(chunk.count, segment * chunk.segment_count);
    const std::size_t elements = std::min(chunk.segment_count, chunk.count - first);
    *length = elements * (partial && request.wide ? sizeof(float) : request.item_size);
    return h;
  }

  // Change up to three fields of a frame.
  static void spoil(wire::Header& h, Choices& choices, std::size_t* length) {
    for (std::size_t n = choices.below(4); n > 0; --n) {
      switch (choices.below(14)) {
        case 0:
          h.kind = static_cast<std::uint8_t>(choices.byte() % 13);
          break;
        case 1:
          h.flags ^= static_cast<std::uint16_t>(1u << choices.byte() % 16);
          break;
        case 2:
          h.source = static_cast<std::uint16_t>(choices.byte() % 5);
          break;
        case 3:
          h.offset = choices.number(4);
          break;
        case 4:
          h.offset = choices.number(8);
          break;
        case 5:
          h.chunk = static_cast<std::uint16_t>(choices.number(2));
          break;
        case 6:
          h.epoch = choices.byte() % 3;
          break;
        case 7:
          h.dtype = static_cast<std::uint8_t>(choices.byte() % 16);
          break;
        case 8:
          h.op = choices.byte();
          break;
        case 9:
          h.tag += choices.byte() % 3;
          break;
        case 10:
          h.tag = choices.number(8);
          break;
        case 11:
          h.total = choices.number(8);
          break;
        case 12:
          *length = choices.number(2) % 20'000;
          break;
        default:
          h.flags |= wire::kFlagEager;
      }
    }
  }

  // End every operation, in one of several ways, and check that all memory is returned.
  void end(std::uint8_t how) {
    if (how % 4 == 0) engine.abort_group(*group, "the end");
    if (how % 4 == 1) engine.close_group(*group, 0);
    constexpr std::int64_t kPatience = 10 * test::kSecond;
    CHECK(engine.wait(*idle_, kPatience));
    bool good = true;
    for (const Posted& p : posted) {
      CHECK(engine.wait(*p.request, kPatience));
      good = good && !p.request->failure;
      if (p.registered != nullptr) CHECK(engine.arena().free(p.registered));
    }
    // After a failed operation, memory that a peer may still read or write is never used again.
    const std::size_t slots = engine.counters()["slots"] * slot_bytes();
    if (good) {
      // The ring of a peer that has left is freed once the engine has noticed the peer's end.
      const std::size_t used = engine.arena().used() - slots;
      CHECK(used <= arena_before_ && arena_before_ - used <= rings_left_behind);
      if (used != arena_before_) CHECK_EQUAL((arena_before_ - used) % ring_bytes, 0u);
    }
    std::vector<std::weak_ptr<Request>> requests;
    for (Posted& p : posted) requests.emplace_back(std::exchange(p.request, nullptr));
    engine.close(0);
    group.reset();
    for (const auto& request : requests) CHECK(request.expired());
  }

  Engine engine;
  std::size_t ring_bytes = 0;         // arena bytes of a ring; 0 without shared memory
  std::size_t rings_left_behind = 0;  // bytes of the rings of peers that have left
  std::shared_ptr<Group> group;
  std::vector<Posted> posted;

 private:
  static void choose(Operation& operation, int what) {
    if (what < 3) {
      operation.peer = what == 2 ? -1 : 1 + static_cast<int>(operation.count % 2);
      operation.receives = what != 0;
      operation.any_source = what == 2;
      return;
    }
    operation.op = wire::ReduceOp::kSum;
    operation.program = what == 7
                            ? test::direct(kRanks, 0)
                            : test::plans()[static_cast<std::size_t>(what - 3)].make(kRanks, 0);
  }

  std::int64_t timeout_ns_ = 0;
  std::shared_ptr<Request> idle_;
  std::size_t arena_before_ = 0;
};

}  // namespace slackline::fuzz
