// Tests of the work of one group's device, and of the checks of its answers. The test is the
// device; no engine takes part.
#include "../src/engine/offload.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../src/engine/headers.h"
#include "frames.h"

namespace slackline::test {
namespace {

// The text of the std::invalid_argument that `call` throws.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no refusal";
}

// An all_reduce of two ranks around a ring, on rank 0. Each of the two chunks has five floats in
// segments of two. Chunk 0 is added here and sent; chunk 1 is sent first and its sum comes back.
class OneRank {
 public:
  OneRank() : arena(std::size_t{1} << 20), offload("a ring NIC", arena, counters) {
    request->group = std::make_shared<Group>(7, 0, std::vector<Link*>(2), false, true);
    request->program = ring(2, 0);
    request->collective = wire::Collective::kAllReduce;
    request->dtype = wire::DType::kFloat32;
    request->op = wire::ReduceOp::kSum;
    request->item_size = sizeof(float);
    request->priority = 3;
    request->key = Key{9, 7, kRoleCollective};
    for (std::size_t c = 0; c < 2; ++c) {
      Chunk& chunk = request->chunks.emplace_back();
      chunk.step_list = &request->program->step_lists[c];
      chunk.source = reinterpret_cast<std::byte*>(&own[c * kCount]);
      chunk.target = chunk.partial = reinterpret_cast<std::byte*>(&sum[c * kCount]);
      chunk.count = kCount;
      chunk.segment_count = 2;
      chunk.segments.resize(3);
      chunk.device_memory = arena.allocate(kCount * sizeof(float));
    }
  }

  wire::Header header(int chunk, std::uint64_t offset) const {
    wire::Header h = header_for(*request, wire::FrameKind::kData);
    h.chunk = static_cast<std::uint16_t>(chunk);
    h.offset = offset;
    return h;
  }
  std::string store(const wire::Header& h, std::size_t bytes) {
    return refusal([&] { offload.store(*request, seal(h, Bytes(bytes))); });
  }

  static constexpr std::size_t kCount = 5;
  Arena arena;
  OffloadCounters counters;
  Offload offload;
  std::mutex mutex;
  std::shared_ptr<Request> request = std::make_shared<Request>();
  std::vector<float> own = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  std::vector<float> sum = std::vector<float>(2 * kCount);
};

TEST("a chunk is announced once, with this rank's data in its device memory") {
  OneRank ring;
  Chunk& chunk = ring.request->chunks[1];
  ring.offload.announce(*ring.request, chunk);
  ring.offload.announce(*ring.request, chunk);
  CHECK_EQUAL(ring.request->open_sends, 1u);
  bool ended = false;
  std::unique_lock lock(ring.mutex);
  const DeviceWork work = ring.offload.next(lock, ended).value();
  CHECK(work.posts.size() == 1 && work.frames.empty() && work.withdrawn.empty());
  const DevicePost& post = work.posts[0];
  CHECK((post.key == DeviceKey{9, 1}));
  CHECK(post.dtype == wire::DType::kFloat32 && post.memory == chunk.device_memory);
  CHECK_EQUAL(post.total, 20u);
  CHECK_EQUAL(post.frame_bytes, 8u);
  CHECK_EQUAL(post.priority, 3);
  CHECK(std::memcmp(post.memory, &ring.own[5], post.total) == 0);
}

TEST("a peer's payload reaches the device as a sealed frame") {
  OneRank ring;
  const std::vector<float> words = {20, 30};
  PendingPayload payload;
  payload.data = reinterpret_cast<const std::byte*>(words.data());
  payload.length = 8;
  payload.peer = 1;
  ring.offload.hand(*ring.request, ring.request->chunks[0], 1, payload, true);
  CHECK_EQUAL(ring.counters.frames_taken, 1u);
  bool ended = false;
  std::unique_lock lock(ring.mutex);
  const DeviceWork work = ring.offload.next(lock, ended).value();
  CHECK(work.frames.size() == 1 && work.posts.empty());
  CHECK_EQUAL(work.frames[0].port, 1);
  const Bytes& bytes = work.frames[0].bytes;
  const wire::Header h = Offload::header_of(bytes);
  CHECK(h.tag == 9 && h.chunk == 0 && h.source == 1 && h.offset == 8 && h.total == 20);
  CHECK(h.length == 8 && (h.flags & wire::kFlagPartial) != 0);
  CHECK_EQUAL(h.header_checksum, crc32c(0, &h, sizeof h - sizeof h.header_checksum));
  CHECK(std::memcmp(bytes.data() + sizeof h, words.data(), 8) == 0);
}

TEST("a device waits for its work, and gets nothing once it is closed") {
  OneRank ring;
  bool ended = false;
  std::vector<std::size_t> taken;
  std::thread device([&] {
    std::unique_lock lock(ring.mutex);
    while (const auto work = ring.offload.next(lock, ended)) taken.push_back(work->posts.size());
  });
  const auto announced = [&] {
    const std::lock_guard lock(ring.mutex);
    ring.offload.announce(*ring.request, ring.request->chunks[0]);
    return !taken.empty();
  };
  until(announced, "the device");
  {
    const std::lock_guard lock(ring.mutex);
    ring.offload.announce(*ring.request, ring.request->chunks[1]);
    ring.offload.close();
  }
  device.join();
  CHECK(taken == std::vector<std::size_t>{1});
  ended = true;
  OneRank other;
  other.offload.announce(*other.request, other.request->chunks[0]);
  std::unique_lock lock(other.mutex);
  CHECK(!other.offload.next(lock, ended));
}

TEST("memory of a withdrawn operation is kept while the device may use it") {
  OneRank ring;
  const std::size_t both = ring.arena.used();
  std::byte* memory = ring.request->chunks[0].device_memory;
  bool ended = false;
  ring.offload.announce(*ring.request, ring.request->chunks[0]);
  {
    std::unique_lock lock(ring.mutex);
    CHECK_EQUAL(ring.offload.next(lock, ended)->posts.size(), 1u);
  }
  ring.offload.announce(*ring.request, ring.request->chunks[1]);
  ring.offload.withdraw(*ring.request);
  // The device has taken chunk 0 only; the request still owns the memory of chunk 1.
  CHECK(ring.request->chunks[0].device_memory == nullptr);
  CHECK(ring.request->chunks[1].device_memory != nullptr);
  {
    std::unique_lock lock(ring.mutex);
    const DeviceWork work = ring.offload.next(lock, ended).value();
    CHECK(work.posts.empty() && (work.withdrawn == std::vector<DeviceKey>{{9, 0}}));
  }
  const std::vector<DeviceKey> others = {{8, 0}, {9, 1}}, first = {{9, 0}};
  ring.offload.release(others);
  CHECK_EQUAL(ring.arena.used(), both);
  ring.offload.release(first);
  CHECK_EQUAL(ring.arena.used(), both / 2);
  CHECK(!ring.arena.free(memory));
  ring.offload.release(first);
  CHECK_EQUAL(ring.arena.used(), both / 2);
}

TEST("a device that is gone uses no memory, and none is kept for it afterwards") {
  OneRank ring;
  const std::size_t both = ring.arena.used();
  bool ended = false;
  for (Chunk& chunk : ring.request->chunks) ring.offload.announce(*ring.request, chunk);
  {
    std::unique_lock lock(ring.mutex);
    CHECK_EQUAL(ring.offload.next(lock, ended)->posts.size(), 2u);
  }
  Chunk chunk;
  std::swap(chunk, ring.request->chunks[1]);
  ring.request->chunks.pop_back();
  ring.offload.withdraw(*ring.request);
  ring.offload.device_gone();
  CHECK_EQUAL(ring.arena.used(), both / 2);
  ring.request->chunks[0] = chunk;
  ring.offload.withdraw(*ring.request);
  CHECK(ring.request->chunks[0].device_memory != nullptr);
}

TEST("the result of a step is stored in its segment") {
  OneRank ring;
  ring.request->chunks[0].segments[2].handed = true;
  const std::vector<float> words = {44};
  Bytes payload(sizeof(float));
  std::memcpy(payload.data(), words.data(), payload.size());
  const auto [chunk, segment] =
      ring.offload.store(*ring.request, seal(ring.header(0, 16), payload));
  CHECK(chunk == 0 && segment == 2);
  CHECK((ring.sum == std::vector<float>{0, 0, 0, 0, 44, 0, 0, 0, 0, 0}));
  CHECK(ring.request->chunks[0].segments[2].answered);
  CHECK_EQUAL(ring.counters.frames_given, 1u);
}

TEST("a frame that answers no step is refused") {
  OneRank ring;
  Chunk& added = ring.request->chunks[0];
  CHECK_EQUAL(refusal([] { Offload::header_of(Bytes(3)); }),
              "a frame of 3 bytes is not as long as its header states: tag 0 offset 0 length 0");
  CHECK_EQUAL(ring.store(ring.header(5, 0), 8),
              "a frame of chunk 5, which the plan does not have: tag 9 offset 0 length 8");
  for (const std::uint64_t offset : {4u, 24u})
    CHECK_EQUAL(ring.store(ring.header(0, offset), 8),
                "a frame begins where no segment does: tag 9 offset " + std::to_string(offset) +
                    " length 8");
  const std::string no_step = "a frame arrived that no step waits for: tag 9 offset 0 length 8";
  CHECK_EQUAL(ring.store(ring.header(0, 0), 8), no_step);
  added.segments[0].handed = true;
  const std::string differs = "a frame's length or flags do not match its step: tag 9 offset 0 ";
  CHECK_EQUAL(ring.store(ring.header(0, 0), 4), differs + "length 4");
  wire::Header partial = ring.header(0, 0);
  partial.flags |= wire::kFlagPartial;
  CHECK_EQUAL(ring.store(partial, 8), differs + "length 8");
  CHECK_EQUAL(ring.store(ring.header(0, 0), 8), "no refusal");
  CHECK_EQUAL(ring.store(ring.header(0, 0), 8), no_step);
  Segment& last = ring.request->chunks[1].segments[0];
  last.handed = true;
  last.position = 1;  // the sum comes back, and no rank gets it from here
  CHECK_EQUAL(ring.store(ring.header(1, 0), 8),
              "a frame arrived that the plan sends to no rank: tag 9 offset 0 length 8");
  CHECK_EQUAL(ring.counters.frames_given, 1u);
}

TEST("a chunk can be completed only at its last step, and only with the result sent before") {
  OneRank ring;
  const Request& request = *ring.request;
  Chunk& chunk = ring.request->chunks[1];
  CHECK_EQUAL(Offload::completed(request, DeviceKey{9, 1}), 1u);
  const std::vector<float> sums = {60, 70, 80, 90, 100};
  std::memcpy(chunk.device_memory, sums.data(), 20);
  Segment& segment = chunk.segments[1];
  const auto store = [&] { return Offload::store_completed(request, chunk, 1); };
  const std::string where = ": tag 9 chunk 1 at offset 8";
  CHECK_EQUAL(refusal(store), "the device completed a chunk before its last step" + where);
  segment.handed = true;
  CHECK_EQUAL(refusal(store), "the device completed a chunk before its last step" + where);
  segment.position = 1;
  CHECK(store() && segment.answered);
  CHECK((ring.sum == std::vector<float>{0, 0, 0, 0, 0, 0, 0, 80, 90, 0}));
  segment.position = 2;
  CHECK(!store());
  ring.sum[7] = 81;
  CHECK_EQUAL(refusal(store), "the device sent one result and stored another" + where);
  const std::string not_given = "the device completed a chunk that it was not given: tag 9 chunk ";
  ring.arena.free(std::exchange(chunk.device_memory, nullptr));
  for (const std::uint32_t number : {1u, 5u})
    CHECK_EQUAL(refusal([&] { Offload::completed(request, DeviceKey{9, number}); }),
                not_given + std::to_string(number));
}

TEST("a device adds where its result has the same bits as the engine's") {
  using wire::DType;
  using wire::ReduceOp;
  const Group ordered(1, 0, std::vector<Link*>(2), false, true);
  const Group free_order(1, 0, std::vector<Link*>(2), false, false);
  for (const Group* group : {&ordered, &free_order}) {
    CHECK(Offload::adds(*group, DType::kFloat32, ReduceOp::kSum));
    CHECK(Offload::adds(*group, DType::kFloat32, ReduceOp::kAvg));
    CHECK(Offload::adds(*group, DType::kInt32, ReduceOp::kSum));
    CHECK(!Offload::adds(*group, DType::kInt32, ReduceOp::kAvg));
    CHECK(!Offload::adds(*group, DType::kFloat64, ReduceOp::kSum));
    CHECK(!Offload::adds(*group, DType::kFloat32, ReduceOp::kMax));
    for (const DType half : {DType::kFloat16, DType::kBfloat16}) {
      CHECK_EQUAL(Offload::adds(*group, half, ReduceOp::kSum), group->rank_order);
      CHECK(!Offload::adds(*group, half, ReduceOp::kAvg));
    }
  }
}

TEST("a sum becomes an average in the memory of each chunk that this rank has") {
  OneRank ring;
  ring.request->last_divisor = 4;
  ring.sum = {4, 8, 12, 16, 20, 24, 28, 32, 36, 40};
  ring.request->chunks[1].target = nullptr;
  Offload::divide_last(*ring.request);
  CHECK((ring.sum == std::vector<float>{1, 2, 3, 4, 5, 24, 28, 32, 36, 40}));
}

}  // namespace
}  // namespace slackline::test
