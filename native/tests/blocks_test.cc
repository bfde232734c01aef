// Tests of the pool of reusable memory blocks.
#include "../src/engine/blocks.h"

#include <set>
#include <vector>

#include "check.h"

namespace slackline::test {
namespace {

TEST("blocks are used again, and no more is kept than was in use at once") {
  const auto blocks = std::make_shared<Blocks>();
  std::set<std::byte*> first;
  {
    std::vector<Blocks::Block> held;
    for (int i = 0; i < 3; ++i) first.insert(held.emplace_back(blocks->take(1000)).get());
    CHECK_EQUAL(blocks->idle_bytes(), 0u);
  }
  CHECK_EQUAL(blocks->idle_bytes(), 3u * 1024);
  std::vector<Blocks::Block> again;
  for (int i = 0; i < 3; ++i) CHECK(first.contains(again.emplace_back(blocks->take(1024)).get()));
  CHECK_EQUAL(blocks->idle_bytes(), 0u);
}

TEST("blocks of a size that is used no more make room for others") {
  const auto blocks = std::make_shared<Blocks>();
  {
    std::vector<Blocks::Block> small;
    for (int i = 0; i < 4; ++i) small.push_back(blocks->take(512));
  }
  std::set<std::byte*> seen;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<Blocks::Block> held;
    for (int i = 0; i < 3; ++i) held.push_back(blocks->take(4096));
    std::set<std::byte*> mine;
    for (const auto& each : held) mine.insert(each.get());
    if (turn > 0) CHECK(mine == seen);
    seen = mine;
  }
  CHECK_EQUAL(blocks->idle_bytes(), 3u * 4096);
}

TEST("a block may outlive its home's last user") {
  Blocks::Block block = std::make_shared<Blocks>()->take(100);
  block[0] = block[99] = std::byte{1};
  block.reset();
  CHECK(block == nullptr);
}

}  // namespace
}  // namespace slackline::test
