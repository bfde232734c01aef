// Tests of the sentences on frame kinds (slackline.wire, FrameKind) on an engine: the frames that
// it sends, and the effect of frames that it receives.
#include <string>

#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::uint64_t kWholeGroup = ~std::uint64_t{0};

Bytes text(const std::string& words) {
  const auto* start = reinterpret_cast<const std::byte*>(words.data());
  return {start, start + words.size()};
}

// Return the frame by which rank 1 ends group 1 because of rank `culprit`.
Bytes end_of_group(std::uint32_t sequence, int culprit, int departure) {
  wire::Header h = header_of(wire::FrameKind::kAbort);
  const Bytes reason = text("enough");
  h.epoch = 1;
  h.source = 1;
  h.tag = kWholeGroup;
  h.offset = static_cast<std::uint64_t>(Fault::kPeer);
  h.total = static_cast<std::uint64_t>(culprit + 1);
  h.chunk = static_cast<std::uint16_t>(departure);
  h.length = static_cast<std::uint32_t>(reason.size());
  return numbered(h, sequence, reason);
}

TEST("an ABORT with the largest tag names the error, the rank that caused it and how it left") {
  Played p;
  p.engine.abort_group(*p.group, "enough");
  const Frame frame = p.hand().expect(wire::FrameKind::kAbort);
  CHECK_EQUAL(frame.header.tag, kWholeGroup);
  CHECK_EQUAL(frame.header.offset, static_cast<std::uint64_t>(Fault::kPeer));
  CHECK_EQUAL(frame.header.total, 1u);  // rank 0, plus 1
  CHECK_EQUAL(frame.header.chunk, static_cast<std::uint16_t>(Departure::kAborted));
  CHECK(frame.payload == text("rank 0 aborted the group: enough"));
}

TEST("an ABORT with the largest tag ends every operation of the group") {
  struct Case {
    int culprit, sent;
    Departure expected;
  };
  for (const Case& each :
       {Case{1, 2, Departure::kAborted}, Case{1, 0, Departure::kNone}, Case{1, 1, Departure::kNone},
        Case{1, 77, Departure::kNone}, Case{-1, 2, Departure::kNone}}) {
    Played p;
    Bytes got(10);
    const auto first = p.engine.post(*p.group, receive_from(1, got.data(), 5, 3), false);
    const auto second = p.engine.post(*p.group, receive_from(1, got.data() + 5, 5, 4), false);
    p.hand().write(end_of_group(1, each.culprit, each.sent));
    for (const auto& request : {first, second}) {
      CHECK(p.engine.wait(*request, 10 * kSecond));
      CHECK(request->failure.fault == Fault::kPeer);
      CHECK_EQUAL(request->failure.peer, 1);
      CHECK(request->failure.departure == each.expected);
    }
  }
}

TEST("an ABORT with another tag ends one operation") {
  Played p;
  const Bytes words = pattern(1000, 1);
  Bytes got(words.size());
  Bytes never(words.size());
  const auto ended = p.engine.post(*p.group, receive_from(1, never.data(), never.size(), 3), false);
  const auto other = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 4), false);
  wire::Header h = message_header(1, 1, 3, 0, 0);
  const Bytes reason = text("no room");
  h.kind = static_cast<std::uint8_t>(wire::FrameKind::kAbort);
  h.offset = static_cast<std::uint64_t>(Fault::kUsage);
  h.length = static_cast<std::uint32_t>(reason.size());
  p.hand().write(numbered(h, 1, reason));
  CHECK(p.engine.wait(*ended, 10 * kSecond));
  CHECK(ended->failure.fault == Fault::kUsage);
  CHECK_EQUAL(ended->failure.message, "no room");
  CHECK(!other->finished());
  p.hand().write(numbered_message(2, 4, 0, words));
  finish(p.engine, other);
  CHECK(got == words);
}

TEST("a CREDIT counts the eager bytes that were consumed since the start, headers included") {
  constexpr std::size_t kPayload = 64 << 10;
  constexpr int kMessages = 32;
  constexpr std::uint64_t kEach = kPayload + sizeof(wire::Header);
  constexpr std::uint64_t kReportEvery = 1u << 20;
  Played p;
  const Bytes words = pattern(kPayload, 1);
  Bytes got(words.size());
  std::uint64_t consumed = 0, reported = 0;
  for (int i = 0; i < kMessages; ++i) {
    wire::Header h = message_header(1, 1, i, 0, words.size());
    h.flags |= wire::kFlagEager;
    p.hand().write(numbered(h, static_cast<std::uint32_t>(i + 1), words));
    finish(p.engine, p.engine.post(*p.group, receive_from(1, got.data(), got.size(), i), true));
    consumed += kEach;
    if (consumed - reported < kReportEvery) continue;
    reported = consumed;
    CHECK_EQUAL(p.hand().expect(wire::FrameKind::kCredit).header.offset, consumed);
  }
  CHECK(reported > kReportEvery + kEach);  // two reports at least, so the count is a sum
}

}  // namespace
}  // namespace slackline::test
