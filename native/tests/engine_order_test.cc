// Tests of the order in which the data of several operations is sent, and of the limit on the data
// of one operation that a peer may send before this rank has used it.
#include <string>
#include <vector>

#include "../src/engine/headers.h"
#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::size_t kSegment = 256u << 10;
constexpr std::uint64_t kAll = ~std::uint64_t{0};

// Return a segment of the peer's data for the chunk that this rank reduces (chunk 0 of a mesh).
Bytes segment_of(const Request& request, std::size_t index, std::uint32_t sequence) {
  wire::Header h = header_for(request, wire::FrameKind::kData);
  h.job = kJobCode;
  h.source = 1;
  h.offset = index * kSegment;
  h.total = request.total;
  h.flags |= wire::kFlagPartial;
  return numbered(h, sequence, Bytes(kSegment));
}

// Return the bytes of an operation that the engine lets the peer send, from its next grant.
std::uint64_t granted(Hand& hand) {
  for (;;) {
    const Frame frame = hand.expect(wire::FrameKind::kGrant);
    if ((frame.header.flags & wire::kFlagEager) == 0) return frame.header.offset;
  }
}

TEST("the limit on a peer's data ends when the rest fits into the window") {
  constexpr std::size_t kSegments = 20;
  constexpr std::size_t kWindow = 8;
  std::vector<float> values(2 * kSegments * kSegment / sizeof(float), 1.0f);
  Played p;
  const auto request = p.engine.post(
      *p.group, reduction(mesh(2, 0), values.data(), values.data(), values.size(), 3), false);
  std::uint64_t promised = granted(p.hand());
  CHECK_EQUAL(promised, kWindow * kSegment);
  for (std::size_t i = 0; i + kWindow < kSegments; ++i)
    p.hand().write(segment_of(*request, i, static_cast<std::uint32_t>(i + 1)));
  while ((promised = granted(p.hand())) != kAll) CHECK(promised < kSegments * kSegment);
  p.engine.abort_group(*p.group, "the end");
  CHECK(request->finished());
}

TEST("the sum of an operation goes before the data of a later one") {
  constexpr std::size_t kLater = 32;
  // A chunk of eight segments is the shortest one that is cut into segments of full length.
  std::vector<float> first(2 * 8 * kSegment / sizeof(float), 1.0f);
  std::vector<float> later(2 * kLater * kSegment / sizeof(float), 1.0f);
  Played p;
  const auto early = p.engine.post(
      *p.group, reduction(mesh(2, 0), first.data(), first.data(), first.size(), 3), false);
  const auto late = p.engine.post(
      *p.group, reduction(mesh(2, 0), later.data(), later.data(), later.size(), 4), false);
  CHECK_EQUAL(granted(p.hand()), kAll);  // of the first operation; it has begun
  CHECK(granted(p.hand()) < kAll);       // of the later one
  std::uint32_t sequence = 0;
  for (const auto& request : {early, late}) {
    wire::Header grant = header_for(*request, wire::FrameKind::kGrant);
    grant.job = kJobCode;
    grant.source = 1;
    grant.total = request->total;
    grant.offset = kAll;
    p.hand().write(numbered(grant, ++sequence));
  }
  // The data of the later operation waits for room in the socket, since the peer does not read yet.
  p.hand().write(segment_of(*early, 0, ++sequence));
  until([&] { return p.engine.counters()["bytes_reduced"] > 0; }, "the sum");
  std::size_t before = 0;
  for (;;) {
    const Frame frame = p.hand().expect(wire::FrameKind::kData);
    if (frame.header.tag == early->key.tag && frame.header.chunk == 0) break;
    before += frame.header.tag == late->key.tag;
  }
  CHECK(before < kLater / 2);  // the socket and the queue of the rail hold less
  p.engine.abort_group(*p.group, "the end");
}

}  // namespace
}  // namespace slackline::test
