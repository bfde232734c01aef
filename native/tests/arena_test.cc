#include "slackline/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "ranks.h"

namespace slackline {
namespace {

constexpr std::size_t kCapacity = std::size_t{8} << 20;

TEST("an arena gives aligned blocks that do not overlap") {
  Arena arena(kCapacity);
  std::map<std::byte*, std::size_t> blocks;
  for (const std::size_t bytes : {0ul, 1ul, 63ul, 64ul, 65ul, 4095ul, 4096ul, 5000ul, 2ul << 20}) {
    std::byte* block = arena.allocate(bytes);
    CHECK(block != nullptr);
    const std::size_t unit = bytes >= 2u << 20 ? 2u << 20 : bytes >= 4096 ? 4096 : 64;
    CHECK_EQUAL(arena.offset_of(block) % unit, 0u);
    CHECK(arena.contains(block, bytes));
    std::memset(block, 0xAB, bytes);
    blocks[block] = bytes;
  }
  for (auto it = blocks.begin(); std::next(it) != blocks.end(); ++it)
    CHECK(it->first + it->second <= std::next(it)->first);
}

std::size_t bytes_with_pages(const Arena& arena) {
  struct stat state{};
  CHECK(::fstat(arena.fd(), &state) == 0);
  return static_cast<std::size_t>(state.st_blocks) * 512;
}

TEST("long blocks that are freed keep their pages up to a limit, the last ones") {
  constexpr std::size_t kBlock = std::size_t{4} << 20;
  Arena arena(8 * kBlock, 2 * kBlock);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(arena.allocate(kBlock));
    std::memset(blocks.back(), i, kBlock);
  }
  CHECK_EQUAL(bytes_with_pages(arena), 4 * kBlock);
  for (std::byte* block : blocks) CHECK(arena.free(block));
  CHECK_EQUAL(bytes_with_pages(arena), 2 * kBlock);
  // A kept range that is allocated again must not lose its pages when other ranges are freed later.
  std::byte* const both = arena.allocate(3 * kBlock);
  std::memset(both, 9, 3 * kBlock);
  std::byte* const other = arena.allocate(2 * kBlock);
  std::memset(other, 8, 2 * kBlock);
  CHECK(arena.free(other));
  CHECK(std::all_of(both, both + 3 * kBlock, [](std::byte b) { return b == std::byte{9}; }));
  CHECK_EQUAL(bytes_with_pages(arena), 5 * kBlock);
  CHECK(arena.free(both));
  CHECK_EQUAL(bytes_with_pages(arena), 0u);  // longer than the limit of kept memory
}

TEST("freed neighbours become one block, in whatever order they are freed") {
  std::vector<int> order = {0, 1, 2};
  do {
    Arena arena(kCapacity);
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(arena.allocate(1u << 20));
    for (const int i : order) CHECK(arena.free(blocks[static_cast<std::size_t>(i)]));
    CHECK_EQUAL(arena.used(), 0u);
    CHECK(arena.allocate(kCapacity) != nullptr);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST("an arena without room says so, and serves what still fits") {
  Arena arena(kCapacity);
  CHECK(arena.allocate(kCapacity + 1) == nullptr);
  CHECK(arena.allocate(std::numeric_limits<std::size_t>::max()) == nullptr);
  std::byte* all = arena.allocate(kCapacity);
  CHECK(all != nullptr);
  CHECK(arena.allocate(1) == nullptr);
  CHECK(arena.free(all));
  CHECK(arena.allocate(1) != nullptr);
}

TEST("freeing what is not a block is refused") {
  Arena arena(kCapacity);
  std::byte* block = arena.allocate(4096);
  CHECK(!arena.free(block + 64));
  CHECK(!arena.free(nullptr));
  CHECK(arena.free(block));
  CHECK(!arena.free(block));
}

TEST("a withheld block becomes free when it is released, whatever was freed first") {
  Arena arena(kCapacity);
  std::byte* block = arena.allocate(1u << 20);
  CHECK(arena.withhold(block + 5000) == block);
  CHECK(arena.withhold(block) == block);
  CHECK(arena.withhold(block + (1u << 20)) == nullptr);
  CHECK(arena.withhold(nullptr) == nullptr);
  CHECK_EQUAL(arena.freed_and_withheld(block), 0u);
  CHECK(arena.free(block));
  CHECK(!arena.free(block));
  CHECK_EQUAL(arena.freed_and_withheld(block), std::size_t{1} << 20);
  CHECK_EQUAL(arena.used(), std::size_t{1} << 20);
  CHECK(arena.allocate(kCapacity) == nullptr);
  arena.release(block);
  CHECK(arena.allocate(kCapacity) == nullptr);
  arena.release(block);
  CHECK_EQUAL(arena.used(), 0u);
  std::byte* again = arena.allocate(1u << 20);
  CHECK(again == block);
  arena.withhold(again);
  arena.release(again);  // the program still has the block
  CHECK_EQUAL(arena.used(), std::size_t{1} << 20);
  CHECK(arena.free(again));
  CHECK(arena.allocate(kCapacity) != nullptr);
}

TEST("memory whose pages are on their way to the kernel is waited for, not refused") {
  constexpr std::size_t kBlock = std::size_t{64} << 20;
  Arena arena(kBlock, 0);
  test::on_every_rank(2, [&](int thread) {
    for (int round = 0; round < 200; ++round) {
      // Without the wait an allocation would fail although no block is in use.
      std::byte* memory = arena.allocate(kBlock / 2);
      CHECK(memory != nullptr);
      std::memset(memory, thread, 4096);
      CHECK(memory[4095] == static_cast<std::byte>(thread));
      CHECK(arena.free(memory));
    }
  });
  CHECK_EQUAL(arena.used(), 0u);
  CHECK(arena.allocate(kBlock) != nullptr);
}

TEST("a range is inside an arena only as a whole") {
  Arena arena(kCapacity);
  std::byte* base = arena.at(0);
  CHECK(arena.contains(base, kCapacity));
  CHECK(!arena.contains(base, kCapacity + 1));
  CHECK(!arena.contains(base + 1, kCapacity));
  CHECK(!arena.contains(base + kCapacity, 0));
  CHECK(!arena.contains(base + 8, std::numeric_limits<std::size_t>::max()));
  int outside = 0;
  CHECK(!arena.contains(&outside, sizeof outside));
}

TEST("a peer's mapping shows the same bytes, and nothing beyond the arena") {
  Arena arena(kCapacity);
  const PeerArena peer(arena.fd(), arena.capacity());
  std::byte* block = arena.allocate(100);
  std::memset(block, 0x5A, 100);
  CHECK(std::memcmp(peer.at(arena.offset_of(block), 100), block, 100) == 0);
  CHECK(peer.at(kCapacity - 8, 8) != nullptr);
  CHECK(peer.at(kCapacity - 8, 9) == nullptr);
  CHECK(peer.at(std::numeric_limits<std::uint64_t>::max(), 1) == nullptr);
  CHECK(peer.at(8, std::numeric_limits<std::size_t>::max()) == nullptr);
}

TEST("a peer's arena that is shorter than it says, or may shrink, is not mapped") {
  const Arena arena(kCapacity);
  const auto refused = [](int fd, std::size_t capacity) -> std::string {
    try {
      const PeerArena peer(fd, capacity);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK_EQUAL(refused(arena.fd(), kCapacity), "");
  CHECK_EQUAL(refused(arena.fd(), kCapacity + 1),
              "a peer's arena must have the 8388609 bytes that the peer says, not 8388608");
  CHECK(::ftruncate(arena.fd(), 4096) != 0);
  const int loose = ::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(::ftruncate(loose, kCapacity) == 0);
  CHECK_EQUAL(refused(loose, kCapacity), "a peer's arena must be a memfd that cannot shrink");
  ::close(loose);
}

TEST("a peer's arena of reserved huge pages, or one that no address space holds, is not mapped") {
  const auto refused = [](unsigned flags, std::size_t capacity) -> std::string {
    const int fd = ::memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    CHECK(fd >= 0);
    CHECK(::ftruncate(fd, static_cast<off_t>(capacity)) == 0);
    CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    std::string why;
    try {
      const PeerArena peer(fd, capacity);
    } catch (const std::exception& error) {
      why = error.what();
    }
    ::close(fd);
    return why;
  };
  CHECK_EQUAL(refused(MFD_HUGETLB, kCapacity),
              "a peer's arena must not be made of reserved huge pages");
  CHECK_EQUAL(refused(0, std::size_t{1} << 62),
              "mmap of a peer's arena of 4611686018427387904 bytes: Cannot allocate memory");
  CHECK_EQUAL(refused(0, 0), "mmap of a peer's arena of 0 bytes: Invalid argument");
}

TEST("a seeded life of allocations keeps every block's bytes and ends in one free block") {
  Arena arena(kCapacity);
  std::mt19937 random(1);
  struct Block {
    std::byte* memory;
    std::size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> live;
  const auto give = [&](std::size_t i) {
    const Block block = live[i];
    CHECK(std::all_of(block.memory, block.memory + block.bytes,
                      [&](std::byte b) { return b == std::byte{block.mark}; }));
    CHECK(arena.free(block.memory));
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int step = 0; step < 2000; ++step) {
    if (random() % 2 == 0 && !live.empty()) {
      give(random() % live.size());
      continue;
    }
    const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 400'000 : 9'000);
    std::byte* memory = arena.allocate(bytes);
    if (memory == nullptr) continue;
    const auto mark = static_cast<unsigned char>(random());
    std::memset(memory, mark, bytes);
    live.push_back({memory, bytes, mark});
  }
  while (!live.empty()) give(live.size() - 1);
  CHECK_EQUAL(arena.used(), 0u);
  CHECK(arena.allocate(kCapacity) != nullptr);
}

}  // namespace
}  // namespace slackline
