// What a peer on the same host had lent when it goes: its arena is unmapped, its ring is free
// again.
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "ranks.h"

namespace slackline::test {
namespace {

ino_t inode_of(int fd) {
  struct stat found = {};
  if (::fstat(fd, &found) != 0) fail("fstat");
  return found.st_ino;
}

// How often this process has mapped the memfd.
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

std::uint64_t arena_bytes(Ranks& ranks, int rank) {
  return ranks.engine(rank).counters()["arena_bytes"];
}

// What a ring takes of an arena.
std::uint64_t ring_bytes(Ranks& ranks, int rank) {
  const std::uint64_t before = arena_bytes(ranks, rank);
  const std::uint64_t ring = ranks.engine(rank).new_ring();
  const std::uint64_t taken = arena_bytes(ranks, rank) - before;
  CHECK(taken >= sizeof(Ring));
  CHECK(ranks.engine(rank).free_ring(ring));
  CHECK(!ranks.engine(rank).free_ring(ring));
  CHECK_EQUAL(arena_bytes(ranks, rank), before);
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
  const std::uint64_t before[] = {arena_bytes(ranks, 0), arena_bytes(ranks, 1)};
  leave(ranks, 2);
  until([&] { return mappings(gone) == 0; }, "the end of the mappings");
  for (const int rank : {0, 1}) {
    CHECK_EQUAL(before[rank] - arena_bytes(ranks, rank), ring_bytes(ranks, rank));
    CHECK_EQUAL(ranks.engine(rank).counters()["shm_links"], 1u);
  }
}

TEST("what an engine sent before it left can be read, and its memory goes when it has been") {
  Ranks ranks(2, Kind::kShared);
  const std::vector<std::byte> words(100'000, std::byte{7});
  std::vector<std::byte> got(words.size());
  const ino_t gone = inode_of(ranks.engine(1).arena().fd());
  const std::uint64_t before = arena_bytes(ranks, 0);
  const auto sent =
      ranks.engine(1).post(ranks.group(1), send_to(0, words.data(), words.size()), false);
  until([&] { return ranks.engine(0).counters()["shm_frames_received"] > 0; }, "the message");
  ranks.engine(1).close_group(ranks.group(1), 0);
  leave(ranks, 1);
  until([&] { return !ranks.engine(0).link_alive(ranks.link(0, 1)); }, "the end of the link");
  CHECK_EQUAL(mappings(gone), 1);
  finish(ranks.engine(0),
         ranks.engine(0).post(ranks.group(0), receive_from(1, got.data(), got.size()), true));
  CHECK(got == words);
  until([&] { return mappings(gone) == 0; }, "the end of the mapping");
  CHECK_EQUAL(before - arena_bytes(ranks, 0), ring_bytes(ranks, 0));
}

}  // namespace
}  // namespace slackline::test
