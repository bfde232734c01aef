// Tests of the memory of aborted operations.
#include "../src/engine/aborted_operations.h"

#include <string>

#include "check.h"

namespace slackline::test {
namespace {

slackline::Failure reason(const std::string& message) {
  return {Fault::kPeer, message, 0, 1, -1, -1};
}

Key key_of(std::uint64_t tag, std::uint32_t epoch = 1) { return Key{tag, epoch, kRoleCollective}; }

TEST("an aborted operation has the failure with which it was aborted first") {
  AbortedOperations aborted;
  CHECK(aborted.find(key_of(3)) == nullptr && !aborted.contains(key_of(3)));
  aborted.remember(key_of(3), reason("first"));
  aborted.remember(key_of(3), reason("second"));
  CHECK(aborted.contains(key_of(3)));
  CHECK_EQUAL(aborted.find(key_of(3))->message, "first");
  // The same operation of another group, and the message with the same tag, are others.
  CHECK(!aborted.contains(key_of(3, 2)));
  CHECK(!aborted.contains(Key{3, 1, role_receive(0)}));
}

TEST("an operation that a peer has aborted is found by the peer, the group and the role") {
  AbortedOperations aborted;
  slackline::Failure told = reason("of rank 2");
  told.rank = -1;
  told.peer = 2;
  aborted.remember(key_of(1), reason("of this rank"));
  aborted.remember(key_of(5), told);
  aborted.remember(key_of(4), told);
  CHECK(aborted.told_by(2, 1, kRoleCollective) == key_of(5));
  CHECK(!aborted.told_by(1, 1, kRoleCollective));
  CHECK(!aborted.told_by(2, 2, kRoleCollective));
  CHECK(!aborted.told_by(2, 1, role_receive(0)));
}

constexpr std::uint64_t kStream = std::uint64_t{1} << 32;  // the first operation of another tag

TEST("any number of aborted operations in sequence are remembered") {
  AbortedOperations aborted;
  const std::uint64_t many = 5 * AbortedOperations::kMost;
  for (std::uint64_t sequence = 7; sequence < many; ++sequence) {
    CHECK(!aborted.remember(key_of(sequence), reason("late")));
    CHECK(!aborted.remember(key_of(sequence), reason("again")));
  }
  for (std::uint64_t sequence = 7; sequence < many; ++sequence)
    CHECK(aborted.contains(key_of(sequence)));
  CHECK_EQUAL(aborted.find(key_of(many - 1))->message, "late");
  CHECK_EQUAL(aborted.find(key_of(100))->message, "aborted as sequence 7 was: late");
  CHECK(!aborted.contains(key_of(6)) && !aborted.contains(key_of(many)));
  CHECK(!aborted.contains(key_of(kStream + 100)) && !aborted.contains(key_of(100, 2)));
}

TEST("operations between aborted ones count as aborted only if they were") {
  AbortedOperations aborted;
  const std::uint64_t far = kStream - 2 * AbortedOperations::kMost;
  for (const std::uint64_t sequence : {3, 4, 6, 5, 9})
    aborted.remember(key_of(sequence), reason("x"));
  for (std::uint64_t i = 0; i < AbortedOperations::kMost; ++i)
    aborted.remember(key_of(far + i), reason("y"));
  for (std::uint64_t sequence = 0; sequence < 12; ++sequence) {
    const bool was = (sequence >= 3 && sequence <= 6) || sequence == 9;
    CHECK_EQUAL(aborted.contains(key_of(sequence)), was);
  }
}

TEST("of too many runs of aborted operations the oldest is forgotten, and its end is named") {
  AbortedOperations aborted;
  aborted.remember(key_of(0), reason("first"));
  aborted.remember(key_of(1), reason("first"));
  const std::uint64_t most = AbortedOperations::kMost + AbortedOperations::kMostRuns;
  for (std::uint64_t stream = 1; stream < most; ++stream)
    CHECK(!aborted.remember(key_of(stream * kStream), reason("each alone")));
  CHECK(aborted.contains(key_of(1)));
  CHECK(aborted.remember(key_of(most * kStream), reason("one more")) == key_of(1));
  CHECK(!aborted.contains(key_of(0)) && !aborted.contains(key_of(1)));
  CHECK(aborted.contains(key_of(kStream)) && aborted.contains(key_of(most * kStream)));
  aborted.remember(key_of(0), reason("anew"));
  CHECK_EQUAL(aborted.find(key_of(0))->message, "anew");
}

}  // namespace
}  // namespace slackline::test
