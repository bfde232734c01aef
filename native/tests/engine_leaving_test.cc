// Tests of what remains of a peer that has gone: its arena is unmapped, its ring is free again, and
// the report keeps the counts of its rails.
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ranks.h"

namespace slackline::test {
namespace {

ino_t inode_of(int fd) {
  struct stat found = {};
  if (::fstat(fd, &found) != 0) fail("fstat");
  return found.st_ino;
}

// Return the number of mappings of the memfd in this process.
int mappings(ino_t inode) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  std::string addresses, permissions, offset, device, path;
  for (ino_t each = 0; maps >> addresses >> permissions >> offset >> device >> each;) {
    std::getline(maps, path);
    found += each == inode && path.find("memfd:") != std::string::npos;
  }
  return found;
}

std::uint64_t counter(Ranks& ranks, int rank, const char* name) {
  return ranks.engine(rank).counters()[name];
}

// Return the bytes of the arena that a ring takes, after a check of how rings are counted.
std::uint64_t ring_bytes(Ranks& ranks, int rank) {
  Engine& engine = ranks.engine(rank);
  const std::uint64_t before = counter(ranks, rank, "ring_bytes");
  const std::uint64_t operations = counter(ranks, rank, "arena_bytes");
  const std::size_t used = engine.arena().used();
  const std::uint64_t ring = engine.connections().new_ring();
  const std::uint64_t taken = engine.arena().used() - used;
  CHECK(taken >= sizeof(Ring));
  CHECK_EQUAL(counter(ranks, rank, "ring_bytes") - before, taken);
  CHECK_EQUAL(counter(ranks, rank, "arena_bytes"), operations);
  CHECK(engine.connections().free_ring(ring));
  CHECK(!engine.connections().free_ring(ring));
  CHECK_EQUAL(counter(ranks, rank, "ring_bytes"), before);
  CHECK_EQUAL(engine.arena().used(), used);
  return taken;
}

void leave(Ranks& ranks, int rank) {
  ranks.groups[static_cast<std::size_t>(rank)].reset();
  ranks.engines[static_cast<std::size_t>(rank)].reset();
}

TEST("an engine that has gone leaves no mapping of its arena and no ring with its peers") {
  Ranks ranks(3, Kind::kShared);
  on_every_rank(3, [&](int rank) {
    std::vector<float> values = contributions(rank, 300'000);
    const Operation operation = reduction(mesh(3, rank), values.data(), values.data(), 300'000);
    finish(ranks.engine(rank), ranks.engine(rank).post(ranks.group(rank), operation, true));
    check_sum(values.data(), values.size(), 3);
  });
  const ino_t gone = inode_of(ranks.engine(2).arena().fd());
  CHECK_EQUAL(mappings(gone), 3);
  const std::uint64_t before[] = {counter(ranks, 0, "ring_bytes"), counter(ranks, 1, "ring_bytes")};
  leave(ranks, 2);
  until([&] { return mappings(gone) == 0; }, "the end of the mappings");
  for (const int rank : {0, 1}) {
    CHECK_EQUAL(before[rank] - counter(ranks, rank, "ring_bytes"), ring_bytes(ranks, rank));
    CHECK_EQUAL(counter(ranks, rank, "shm_links"), 1u);
  }
}

TEST("what an engine sent before it left can be read, and its memory goes when it has been") {
  Ranks ranks(2, Kind::kShared);
  const std::vector<std::byte> words(100'000, std::byte{7});
  std::vector<std::byte> got(words.size());
  const ino_t gone = inode_of(ranks.engine(1).arena().fd());
  const std::uint64_t before = counter(ranks, 0, "ring_bytes");
  const auto sent =
      ranks.engine(1).post(ranks.group(1), send_to(0, words.data(), words.size()), false);
  until([&] { return ranks.engine(0).counters()["shm_frames_received"] > 0; }, "the message");
  ranks.engine(1).close_group(ranks.group(1), 0);
  leave(ranks, 1);
  until([&] { return !ranks.engine(0).connections().link_alive(ranks.link(0, 1)); },
        "the end of the link");
  CHECK_EQUAL(mappings(gone), 1);
  finish(ranks.engine(0),
         ranks.engine(0).post(ranks.group(0), receive_from(1, got.data(), got.size()), true));
  CHECK(got == words);
  until([&] { return mappings(gone) == 0; }, "the end of the mapping");
  CHECK_EQUAL(before - counter(ranks, 0, "ring_bytes"), ring_bytes(ranks, 0));
}

void keeps_the_counts(Kind kind, const std::string& name) {
  Ranks ranks(2, kind);
  on_every_rank(2, [&](int rank) {
    std::vector<float> values = contributions(rank, 300'000);
    const Operation operation = reduction(mesh(2, rank), values.data(), values.data(), 300'000);
    finish(ranks.engine(rank), ranks.engine(rank).post(ranks.group(rank), operation, true));
  });
  const std::vector<RailStatus> before = ranks.engine(0).connections().rails();
  CHECK_EQUAL(before.size(), 1u);
  CHECK(before[0].kind == name && before[0].state == "up");
  CHECK(before[0].counters.frames_sent > 0);
  leave(ranks, 1);
  ranks.cut(0, 1, 0);  // the test's duplicates keep a TCP connection open
  until([&] { return ranks.engine(0).connections().rails().at(0).state == "ended"; },
        "the end of the link");
  until([&] { return counter(ranks, 0, "shm_links") + counter(ranks, 0, "tcp_rails") == 0; },
        "the end of the rail");
  const std::vector<RailStatus> after = ranks.engine(0).connections().rails();
  CHECK_EQUAL(after.size(), 1u);
  CHECK_EQUAL(after[0].rail, before[0].rail);
  CHECK(after[0].kind == name && after[0].name == before[0].name);
  CHECK(after[0].counters.frames_sent >= before[0].counters.frames_sent);
  CHECK(after[0].counters.bytes_sent >= before[0].counters.bytes_sent);
  CHECK_EQUAL(counter(ranks, 0, (name + "_frames_sent").c_str()), after[0].counters.frames_sent);
}

TEST("the report keeps the counts of a shared-memory link that has ended") {
  keeps_the_counts(Kind::kShared, "shm");
}

TEST("the report keeps the counts of a TCP link that has ended") {
  keeps_the_counts(Kind::kStream, "tcp");
}

// Let two ranks take turns in an all_reduce, each as often as the dice say. Then rank 1 leaves,
// with or without its engine, and rank 0's part must end although nobody takes the rest of its
// data.
void leave_at_some_point(unsigned seed, Kind kind) {
  EngineOptions options = one_thread(std::size_t{8} << 20);
  options.memory_segment_bytes = 16u << 10;
  options.wire_segment_bytes = 16u << 10;
  std::mt19937 dice(seed);
  Ranks ranks(2, kind, 1, options, true);
  const Plan& plan = plans()[dice() % plans().size()];
  // Data of up to eight segments, of which a rank copies four at a time into shared memory.
  const std::size_t count = 1 + dice() % 32'768;
  std::vector<std::vector<float>> values;
  std::vector<std::shared_ptr<Request>> requests;
  for (int rank = 0; rank < 2; ++rank) values.push_back(contributions(rank, count));
  for (int rank = 0; rank < 2; ++rank) {
    float* data = values[static_cast<std::size_t>(rank)].data();
    requests.push_back(ranks.engine(rank).post(
        ranks.group(rank), reduction(plan.make(2, rank), data, data, count), false));
  }
  for (unsigned turns = dice() % 16; turns > 0; --turns) {
    const int rank = static_cast<int>(dice() % 2);
    ranks.engine(rank).wait(*requests[static_cast<std::size_t>(rank)], 0);
  }
  ranks.engine(1).close_group(ranks.group(1), 0);
  // An engine that nobody drives acknowledges nothing, so over a wire the engine leaves too.
  if (kind == Kind::kStream || dice() % 2 == 0) leave(ranks, 1);
  if (kind == Kind::kStream) ranks.cut(0, 1, 0);
  if (!ranks.engine(0).wait(*requests[0], 20 * kSecond))
    fail("seed " + std::to_string(seed) + ", " + plan.name +
         ": an operation waits for a rank that has left");
  if (requests[0]->failure) CHECK(requests[0]->failure.fault == Fault::kPeer);
}

TEST("a rank that leaves at any point of an operation leaves nobody behind") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    leave_at_some_point(seed, Kind::kShared);
    leave_at_some_point(seed, Kind::kStream);
  }
}

}  // namespace
}  // namespace slackline::test
