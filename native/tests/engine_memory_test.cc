// Tests of operations for which the process has too little memory: no operation stays half begun.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "frames.h"

namespace slackline::test {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers map terabytes

// A limit on the address space of the process while the object lives: `more` bytes beyond the
// current size. The object allocates the free heap memory that other tests left, so that the test
// cannot use it.
class Limit {
 public:
  explicit Limit(std::size_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    set(0);
    for (const std::size_t bytes : {1u << 20, 64u << 10, 4u << 10, 512u}) {
      while (void* block = std::malloc(bytes)) taken_ = new (block) Block{taken_};
    }
    set(more);
  }
  ~Limit() {
    ::setrlimit(RLIMIT_AS, &before_);
    while (taken_ != nullptr) std::free(std::exchange(taken_, taken_->next));
  }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  struct Block {
    Block* next;
  };
  void set(std::size_t more) const {
    char text[32] = {};  // a stream would need memory
    const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const ssize_t length = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    const std::size_t pages = std::strtoull(text, nullptr, 10);
    const rlimit now{pages * static_cast<std::size_t>(::getpagesize()) + more, before_.rlim_max};
    if (length <= 0 || ::setrlimit(RLIMIT_AS, &now) != 0) fail("setrlimit");
  }

  rlimit before_{};
  Block* taken_ = nullptr;
};

// An address range that takes no memory until it is touched.
class Addresses {
 public:
  explicit Addresses(std::size_t bytes) : bytes_(bytes) {
    void* at =
        ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    start = static_cast<std::byte*>(at);
  }
  ~Addresses() { ::munmap(start, bytes_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  std::byte* start = nullptr;

 private:
  std::size_t bytes_;
};

constexpr std::size_t kSegmentBytes = 64;
constexpr std::size_t kSegments = 1u << 20;
constexpr std::size_t kBytes = kSegments * kSegmentBytes;

EngineOptions tiny_segments() {
  EngineOptions options = one_thread(std::size_t{1} << 20);
  options.wire_segment_bytes = kSegmentBytes;
  return options;
}

TEST("an operation that there is no memory to describe is not posted, and takes no number") {
  Addresses words(kBytes);
  Played p(1, tiny_segments());
  for (const bool blocking : {false, true}) {
    bool thrown = false;
    const Limit limit(kSegments * sizeof(Segment) / 2);
    try {
      p.engine.post(*p.group, send_to(1, words.start, kBytes, 7), blocking);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    CHECK(thrown);
  }
  const Bytes brief = pattern(10, 1);
  const auto request = p.engine.post(*p.group, send_to(1, brief.data(), brief.size(), 7), false);
  const Frame frame = p.hand().expect(wire::FrameKind::kData);
  CHECK(frame.payload == brief);
  CHECK_EQUAL(static_cast<std::uint32_t>(frame.header.tag), 0u);
  CHECK(!request->failure);
}

TEST("an operation that memory ends under while it begins fails, and so does all that is open") {
  Addresses words(kBytes);
  Played p(1, tiny_segments());
  Bytes got(10);
  const auto open = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 3), false);
  std::shared_ptr<Request> request;
  {
    // The limit leaves room for the segments but not for all queued frames.
    const Limit limit(kSegments * sizeof(Segment) + (4u << 20));
    request = p.engine.post(*p.group, send_to(1, words.start, kBytes, 7), true);
  }
  for (const auto& each : {request, open}) {
    CHECK(each->finished());
    CHECK(each->failure.fault == Fault::kInternal);
    CHECK_EQUAL(each->failure.message, "the engine failed: std::bad_alloc");
  }
  CHECK_EQUAL(p.engine.broken(*p.group), "the engine failed: std::bad_alloc");
  const auto later = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 4), true);
  CHECK_EQUAL(later->failure.message, "the engine failed: std::bad_alloc");
  // To the others this rank is a lost peer.
  CHECK_EQUAL(p.hand().expect(wire::FrameKind::kAbort).header.offset,
              static_cast<std::uint64_t>(Fault::kPeer));
}

#endif

}  // namespace
}  // namespace slackline::test
