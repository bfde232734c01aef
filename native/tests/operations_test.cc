// Tests of the table of operations that have not ended. The operations are made by hand; no engine
// runs them.
#include "../src/engine/operations.h"

#include <limits>
#include <memory>
#include <vector>

#include "parts.h"
#include "ranks.h"

namespace slackline::test {
namespace {

using Pointer = Operations::Pointer;
using Pointers = std::vector<Pointer>;

std::shared_ptr<Group> group_of(std::uint32_t epoch, std::vector<Link*> links = {nullptr}) {
  return std::make_shared<Group>(epoch, 0, std::move(links), false, true);
}

Pointer operation(const std::shared_ptr<Group>& group, std::uint64_t tag,
                  wire::Collective collective = wire::Collective::kAllReduce,
                  std::int64_t deadline_ns = 1000) {
  auto request = std::make_shared<Request>();
  request->group = group;
  request->key = Key{tag, group->epoch, kRoleCollective};
  request->collective = collective;
  request->deadline_ns = deadline_ns;
  return request;
}
Pointer barrier(const std::shared_ptr<Group>& group, std::uint64_t tag) {
  return operation(group, tag, wire::Collective::kBarrier);
}

TEST("a started operation is found by its identity until it ends") {
  Operations operations;
  const auto group = group_of(1);
  const Pointer request = operation(group, 5);
  CHECK(operations.find(request->key) == nullptr && !operations.any_open());
  operations.start(request);
  CHECK(operations.find(request->key) == request && request->active && operations.any_open());
  CHECK(operations.find(Key{5, 2, kRoleCollective}) == nullptr);
  CHECK_EQUAL(operations.started().size(), 1u);
  // The end of an operation that never started leaves the one with the same identity alone.
  operations.end(*operation(group, 5));
  CHECK(operations.find(request->key) == request);
  operations.end(*request);
  CHECK(operations.find(request->key) == nullptr && !request->active && !operations.any_open());
}

TEST("queued operations are taken in their order") {
  Operations operations;
  const auto group = group_of(1);
  const Pointer first = operation(group, 1), second = operation(group, 2);
  CHECK(!operations.any_queued() && operations.take_queued() == nullptr);
  operations.queue(first);
  operations.queue(second);
  CHECK(operations.any_queued() && operations.waits_to_start(second->key));
  CHECK(operations.take_queued() == first && operations.take_queued() == second);
  CHECK(!operations.any_queued() && !operations.waits_to_start(second->key));
}

TEST("operations wait for their own shares only") {
  Operations operations;
  const auto group = group_of(1);
  const auto shares = std::make_shared<Shares>(), others = std::make_shared<Shares>();
  Pointers with;
  for (std::uint64_t tag = 0; tag < 4; ++tag) {
    const Pointer request = operation(group, tag);
    request->shares = tag % 2 == 0 ? shares : others;
    request->undivided = std::make_shared<Operation>();
    operations.hold(request);
    if (tag % 2 == 0) with.push_back(request);
  }
  CHECK(operations.waits_to_start(with[1]->key));
  CHECK(operations.undivided(*shares) == with);
  for (const Pointer& each : with) operations.forget(each);
  CHECK(!operations.waits_to_start(with[1]->key));
  CHECK(operations.undivided(*shares).empty());
  CHECK_EQUAL(operations.held_in(*group).size(), 2u);
}

TEST("a barrier waits for the untagged collectives posted before it on its group") {
  const auto group = group_of(1), other = group_of(2);
  const Pointer wall = barrier(group, 5);
  const auto waits_for = [&](const Pointer& request, auto&& put) {
    Operations operations;
    put(operations, request);
    return operations.open_before(*wall) == request.get();
  };
  const auto started = [](Operations& all, const Pointer& each) { all.start(each); };
  const auto queued = [](Operations& all, const Pointer& each) { all.queue(each); };
  const auto held = [](Operations& all, const Pointer& each) { all.hold(each); };
  CHECK(waits_for(operation(group, 4), started));
  CHECK(waits_for(operation(group, 4), queued));
  CHECK(waits_for(operation(group, 4), held));
  CHECK(!waits_for(operation(group, 6), started));
  CHECK(!waits_for(operation(other, 4), started));
  const Pointer ended = operation(group, 4);
  ended->state = RequestState::kDone;
  CHECK(!waits_for(ended, queued));
  Operations operations;
  operations.start(operation(group, 4));
  CHECK(operations.open_before(*operation(group, 5)) == nullptr);  // it is no barrier
  CHECK(operations.open_before(*barrier(group, std::uint64_t{7} << 32 | 5)) == nullptr);  // tagged
}

TEST("barriers are queued when the operations before them have ended") {
  Operations operations;
  const auto group = group_of(1), other = group_of(2);
  const Pointer before = operation(group, 4);
  const Pointer first = barrier(group, 5), elsewhere = barrier(other, 1),
                undivided = operation(group, 7);
  undivided->undivided = std::make_shared<Operation>();
  operations.start(before);
  for (const Pointer& request : {first, elsewhere, undivided}) operations.hold(request);
  operations.release_barriers(*group);
  CHECK(!operations.any_queued());
  operations.end(*before);
  operations.release_barriers(*group);
  CHECK(operations.take_queued() == first && !operations.any_queued());
  CHECK((operations.held_in(*group) == Pointers{undivided}));
  CHECK((operations.held_in(*other) == Pointers{elsewhere}));
}

TEST("a message is meant for the oldest receive with its tag in its group, from its rank") {
  Parts parts;
  Link& link = parts.add("rank 1");
  const auto group = group_of(1, {nullptr, &link});
  constexpr std::uint64_t kTag = std::uint64_t{2} << 56 | std::uint64_t{9} << 32;
  Operations operations;
  const Pointer first = operation(group, kTag), second = operation(group, kTag);
  for (const Pointer& request : {first, second}) operations.wait_for_sender(request);
  CHECK(operations.any_open() && operations.receives_in(*group) == (Pointers{first, second}));
  const auto take = [&](std::uint64_t tag, std::uint32_t epoch, int source) {
    return operations.take_receive(Key{tag, epoch, role_receive(source)}, link, source);
  };
  CHECK(take(kTag + (std::uint64_t{1} << 32), 1, 1) == nullptr);
  CHECK(take(kTag, 2, 1) == nullptr);
  CHECK(take(kTag, 1, 0) == nullptr);
  CHECK(take(kTag | 3, 1, 1) == first);  // whatever the sequence number
  CHECK(take(kTag, 1, 1) == second);
  CHECK(take(kTag, 1, 1) == nullptr && !operations.any_open());
}

TEST("a failed operation waits no more, except in the queue") {
  Operations operations;
  const auto group = group_of(1);
  const Pointer held = operation(group, 1), receive = operation(group, 2),
                queued = operation(group, 3);
  operations.hold(held);
  operations.wait_for_sender(receive);
  operations.queue(queued);
  for (const Pointer& request : {held, receive, queued}) {
    request->state = RequestState::kFailed;
    operations.forget(request);
  }
  CHECK(operations.held_in(*group).empty() && operations.receives_in(*group).empty());
  CHECK(operations.open().empty());
  CHECK(operations.take_queued() == queued);
}

TEST("the open operations of a group are those that wait anywhere") {
  Operations operations;
  const auto group = group_of(1), other = group_of(2);
  Pointers expected;
  for (const auto& each : {group, other}) {
    const Pointer started = operation(each, 1), receive = operation(each, 2),
                  queued = operation(each, 3), held = operation(each, 4);
    operations.start(started);
    operations.wait_for_sender(receive);
    operations.queue(queued);
    operations.hold(held);
    if (each == group) expected = {started, receive, queued, held};
  }
  CHECK(operations.open(group.get()) == expected);
  CHECK((operations.started_in(*group) == Pointers{expected[0]}));
  CHECK_EQUAL(operations.open().size(), 8u);
  operations.clear_queue();
  CHECK(!operations.any_queued());
  CHECK_EQUAL(operations.open().size(), 6u);
  while (operations.take_any() != nullptr) {
  }
  CHECK(operations.open().empty());
}

TEST("deadlines count once an operation is held, started or waits for its sender") {
  Operations operations;
  const auto group = group_of(1);
  const auto due = [&](std::uint64_t tag, std::int64_t ns) {
    return operation(group, tag, wire::Collective::kAllReduce, ns);
  };
  CHECK_EQUAL(operations.next_deadline_ns(), std::numeric_limits<std::int64_t>::max());
  operations.queue(due(1, 10));
  CHECK_EQUAL(operations.next_deadline_ns(), std::numeric_limits<std::int64_t>::max());
  const Pointer started = due(2, 400), receive = due(3, 300), held = due(4, 200);
  operations.start(started);
  CHECK_EQUAL(operations.next_deadline_ns(), 400);
  operations.wait_for_sender(receive);
  CHECK_EQUAL(operations.next_deadline_ns(), 300);
  operations.hold(held);
  CHECK_EQUAL(operations.next_deadline_ns(), 200);
  CHECK(operations.late(199).empty());
  CHECK((operations.late(200) == Pointers{held}));
  CHECK((operations.late(400) == Pointers{started, receive, held}));
}

}  // namespace
}  // namespace slackline::test
