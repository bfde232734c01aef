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

TEST("of too many aborted operations the oldest are forgotten") {
  AbortedOperations aborted;
  const std::uint64_t most = AbortedOperations::kMost;
  for (std::uint64_t tag = 0; tag < most; ++tag) aborted.remember(key_of(tag), reason("first"));
  aborted.remember(key_of(0), reason("again"));  // known already: nothing is forgotten for it
  CHECK(aborted.contains(key_of(0)) && aborted.contains(key_of(most - 1)));
  aborted.remember(key_of(most), reason("one more"));
  CHECK(!aborted.contains(key_of(0)) && aborted.contains(key_of(1)));
  CHECK_EQUAL(aborted.find(key_of(most))->message, "one more");
  aborted.remember(key_of(0), reason("anew"));
  CHECK_EQUAL(aborted.find(key_of(0))->message, "anew");
  CHECK(!aborted.contains(key_of(1)));
}

}  // namespace
}  // namespace slackline::test
