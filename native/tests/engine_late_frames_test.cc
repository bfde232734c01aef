// Tests of frames that arrive long after their operation was aborted.
#include <cstring>

#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::uint32_t kMany = AbortedOperations::kMost + 100;
constexpr int kMessageBytes = 8;

// Post a message from the hand and let it time out at once.
void time_out(Played& p, int tag) {
  Bytes got(kMessageBytes);
  Operation operation = receive_from(1, got.data(), got.size(), tag);
  operation.timeout_ns = 1;
  const auto request = p.engine.post(*p.group, operation, false);
  CHECK(p.engine.wait(*request, 10 * kSecond));
  CHECK(request->failure.fault == Fault::kTimeout);
}

// Check that a message still arrives, which is number `sequence` of the tag and of the link
// `link_sequence`.
void check_alive(Played& p, std::uint32_t link_sequence, int tag, std::uint32_t sequence) {
  const Bytes words = pattern(kMessageBytes, 9);
  Bytes got(words.size());
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), tag), false);
  p.hand().write(numbered_message(link_sequence, tag, sequence, words));
  finish(p.engine, request);
  CHECK(got == words);
}

TEST("late frames of thousands of operations that timed out in sequence do not end the group") {
  Played p(1, one_thread(16u << 20));
  for (std::uint32_t i = 0; i < kMany; ++i) time_out(p, 3);
  std::uint32_t link_sequence = 0;
  for (const std::uint32_t late : {0u, 1u, 50u, kMany - 1})
    p.hand().write(numbered_message(++link_sequence, 3, late, pattern(kMessageBytes, 1)));
  check_alive(p, link_sequence + 1, 3, kMany);
}

TEST("late frames of more streams of operations than are remembered do not end the group") {
  Played p(1, one_thread(16u << 20));
  const int tags = static_cast<int>(kMany + AbortedOperations::kMostRuns);
  for (int tag = 0; tag < tags; ++tag) time_out(p, tag);
  std::uint32_t link_sequence = 0;
  for (const int late : {0, 1, 50, 1500, tags - 1})
    p.hand().write(numbered_message(++link_sequence, late, 0, pattern(kMessageBytes, 1)));
  // An operation that follows a forgotten one of its tag receives its own message.
  check_alive(p, link_sequence + 1, 0, 1);
  check_alive(p, link_sequence + 2, tags - 1, 1);
  CHECK(!p.group->broken);
}

TEST("operations that a peer has aborted, however many, fail as soon as they are posted") {
  Played p(1, one_thread(16u << 20));
  Bytes never(kMessageBytes);
  const auto idle = p.engine.post(*p.group, receive_from(1, never.data(), never.size(), 5), false);
  const char* words = "gave up";
  const auto* at = reinterpret_cast<const std::byte*>(words);
  const Bytes reason(at, at + std::strlen(words));
  for (std::uint32_t i = 0; i < kMany; ++i) {
    wire::Header h = message_header(1, 1, 3, i, 0);
    h.kind = static_cast<std::uint8_t>(wire::FrameKind::kAbort);
    h.offset = static_cast<std::uint64_t>(Fault::kTimeout);
    p.hand().write(numbered(h, i + 1, reason));
    if (i % 100 == 0) CHECK(!p.engine.wait(*idle, 0));  // read what has come, so that all fits
  }
  check_alive(p, kMany + 1, 4, 0);  // the engine has read the aborts before this message
  for (std::uint32_t i = 0; i < kMany; ++i) {
    Bytes got(kMessageBytes);
    const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 3), false);
    CHECK(p.engine.wait(*request, 10 * kSecond));
    CHECK(request->failure.fault == Fault::kTimeout);
    CHECK(request->failure.message.ends_with("gave up"));
  }
}

}  // namespace
}  // namespace slackline::test
