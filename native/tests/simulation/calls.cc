#include "calls.h"

#include <cstring>

#include "../../src/engine/split.h"
#include "../ranks.h"

namespace slackline::simulation {
namespace {

constexpr std::uint8_t kStar = 9;  // numbers of plans that the library does not use
constexpr std::uint8_t kChain = 10;

std::shared_ptr<Program> broadcast(int ranks, int rank, int root, bool chain) {
  auto program = std::make_shared<Program>(wire::Collective::kBroadcast, chain ? kChain : kStar,
                                           ranks, rank, 1, true, chain, false);
  const int place = (rank - root + ranks) % ranks;
  if (place > 0)
    program->append(Opcode::kCopy, chain ? (rank - 1 + ranks) % ranks : root, 0, false);
  for (int k = 1; k < ranks; ++k) {
    if (chain ? k == 1 && place < ranks - 1 : place == 0)
      program->append(Opcode::kSend, (rank + k) % ranks, 0, false);
  }
  return program;
}

std::shared_ptr<Program> all_gather(int ranks, int rank) {
  auto program = std::make_shared<Program>(wire::Collective::kAllGather, kStar, ranks, rank, ranks,
                                           true, false, false);
  for (int k = 1; k < ranks; ++k) program->append(Opcode::kSend, (rank + k) % ranks, rank, false);
  for (int k = 1; k < ranks; ++k) {
    const int owner = (rank + k) % ranks;
    program->append(Opcode::kCopy, owner, owner, false);
  }
  return program;
}

std::shared_ptr<Program> reduce_scatter(int ranks, int rank) {
  auto program = std::make_shared<Program>(wire::Collective::kReduceScatter, kStar, ranks, rank,
                                           ranks, true, false, false);
  for (int k = 1; k < ranks; ++k) {
    const int owner = (rank + k) % ranks;
    program->append(Opcode::kSend, owner, owner, false);
  }
  for (int k = 1; k < ranks; ++k) program->append(Opcode::kBuffer, (rank + k) % ranks, rank, false);
  program->append(Opcode::kReduceAll, rank, rank, false);
  return program;
}

// Return the rank to whose part of the buffer an element belongs.
int owner_of(const Work& work, int ranks, std::size_t i) {
  for (int owner = 0; owner < ranks; ++owner) {
    const slackline::Part part = split(work.count, ranks, item_bytes(work), owner);
    if (i >= part.offset && i < part.offset + part.count) return owner;
  }
  return ranks - 1;
}

bool sums_in_rank_order(const Work& work) {
  return work.verb == Verb::kReduceScatter || work.verb == Verb::kAggregated ||
         test::plans()[static_cast<std::size_t>(work.plan)].rank_ordered;
}

}  // namespace

std::shared_ptr<Program> program_of(const Work& work, int ranks, int rank) {
  switch (work.verb) {
    case Verb::kBroadcast:
      return broadcast(ranks, rank, work.from % ranks, work.plan % 2 == 1);
    case Verb::kAllGather:
      return all_gather(ranks, rank);
    case Verb::kReduceScatter:
      return reduce_scatter(ranks, rank);
    case Verb::kAggregated:
      return test::star(ranks - 1, rank);
    default:
      return test::plans()[static_cast<std::size_t>(work.plan)].make(ranks, rank);
  }
}

std::size_t elements_of(const Work& work) { return work.verb == Verb::kBarrier ? 0 : work.count; }

wire::DType dtype_of(const Work& work) {
  constexpr wire::DType kAll[] = {wire::DType::kFloat32, wire::DType::kBfloat16,
                                  wire::DType::kInt32};
  return kAll[work.dtype];
}

std::size_t item_bytes(const Work& work) { return wire::item_size(dtype_of(work)); }

void store(const Work& work, float value, std::byte* to) {
  if (work.dtype == 2) {
    const auto whole = static_cast<std::int32_t>(value);
    std::memcpy(to, &whole, sizeof whole);
    return;
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if (work.dtype == 0) {
    std::memcpy(to, &bits, sizeof bits);
    return;
  }
  const auto upper = static_cast<std::uint16_t>(bits >> 16);  // exact for small integers
  std::memcpy(to, &upper, sizeof upper);
}

float element_of(const Work& work, int rank, std::size_t i) {
  Draw draw(work.seed + static_cast<std::uint64_t>(rank) * 0x10001 + i * 0x9E37);
  const std::uint64_t bits = draw.bits();
  if (work.dtype != 0) return static_cast<float>(static_cast<int>(bits % 41) - 20);
  if (!sums_in_rank_order(work)) return static_cast<float>(static_cast<int>(bits % 201) - 100);
  return static_cast<float>(static_cast<std::int32_t>(bits)) * (bits >> 60 == 0 ? 1e20f : 1e-3f);
}

std::optional<float> result_of(const Work& work, int ranks, int rank, std::size_t i) {
  if (work.verb == Verb::kBroadcast) return element_of(work, work.from % ranks, i);
  if (work.verb == Verb::kAllGather) return element_of(work, owner_of(work, ranks, i), i);
  if (work.verb == Verb::kReduceScatter && owner_of(work, ranks, i) != rank) return std::nullopt;
  float sum = element_of(work, 0, i);
  for (int each = 1; each < ranks; ++each) sum += element_of(work, each, i);
  return sum;
}

std::byte message_byte(const Work& work, std::size_t i) {
  return static_cast<std::byte>((work.seed >> (i % 7 * 8)) + i * 31);
}

}  // namespace slackline::simulation
