#include "calls.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>

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

// Return a worker's part, or the part of the aggregator, whose tree has one leaf for each worker.
std::shared_ptr<Program> aggregated_tree(const Work& work, int workers, int rank) {
  if (rank == workers) {
    const Tree tree = test::even_tree(workers);
    return test::star(workers, rank, &tree);
  }
  const Tree tree = runs_of(work, workers).tree();
  auto program = test::star(workers, rank, &tree);
  program->repeated_by = test::mesh(workers, rank, &tree);
  return program;
}

bool has_an_order(const Work& work) {
  return work.in_tree() || work.verb == Verb::kReduceScatter || work.verb == Verb::kAggregated ||
         test::plans()[static_cast<std::size_t>(work.plan)].rank_ordered;
}

// Store numbers as elements. Those that are no floats are small integers, which are exact.
std::vector<std::byte> stored(const Work& work, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * item_bytes(work));
  if (bytes.empty()) return bytes;
  const auto each = [&](const auto& element_of) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto element = element_of(values[i]);
      std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
    }
  };
  if (work.dtype == 0)
    std::memcpy(bytes.data(), values.data(), bytes.size());
  else if (work.dtype == 1)
    each([](float value) {
      return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    });
  else
    each([](float value) { return static_cast<std::int32_t>(value); });
  return bytes;
}

// Random numbers, made once: the data of each rank are a part of them.
class Numbers {
 public:
  Numbers() : any_(kLongest + kOffsets), small_(any_.size()), smaller_(any_.size()) {
    Draw draw(1);
    for (std::size_t i = 0; i < any_.size(); ++i) {
      const std::uint64_t bits = draw.bits();
      any_[i] =
          static_cast<float>(static_cast<std::int32_t>(bits)) * (bits >> 60 == 0 ? 1e20f : 1e-3f);
      small_[i] = static_cast<float>(static_cast<int>((bits >> 32) * 201 >> 32) - 100);
      smaller_[i] = static_cast<float>(static_cast<int>((bits >> 32) * 41 >> 32) - 20);
    }
  }
  // Return a rank's numbers of an operation.
  std::span<const float> of(const Work& work, int rank) const {
    const std::vector<float>& all = work.dtype != 0 ? smaller_ : has_an_order(work) ? any_ : small_;
    return std::span(all).subspan(offset(work, rank), elements_of(work));
  }
  std::span<const std::byte> message(const Work& work) const {
    return std::as_bytes(std::span(any_)).subspan(offset(work, 0), work.count);
  }

 private:
  static constexpr std::size_t kLongest = 400'000;  // 1.6 million bytes
  static constexpr std::size_t kOffsets = 65'521;

  static std::size_t offset(const Work& work, int rank) {
    return Draw(work.seed + static_cast<std::uint64_t>(rank)).bits() % kOffsets;
  }
  std::vector<float> any_, small_, smaller_;
};

const Numbers& numbers() {
  static const Numbers all;
  return all;
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
      if (work.in_tree()) return aggregated_tree(work, ranks - 1, rank);
      return test::star(ranks - 1, rank);
    case Verb::kAllReduce:
      if (work.in_tree()) return runs_of(work, ranks).program(rank);
      [[fallthrough]];
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

test::Runs runs_of(const Work& work, int ranks) {
  std::vector<int> runs(work.weights.begin(), work.weights.end());
  if (runs.empty()) runs.assign(static_cast<std::size_t>(ranks), 1);
  return {std::accumulate(runs.begin(), runs.end(), 0), runs};
}

std::size_t buffers_of(const Work& work, int ranks, int rank) {
  if (!work.has_nodes()) return 1;
  return static_cast<std::size_t>(std::ranges::count(runs_of(work, ranks).ranks, rank));
}

// Give each rank its nodes, one after the other.
void Truth::sum_in_tree(const Work& work, int ranks) {
  const test::Runs runs = runs_of(work, ranks);
  std::vector<std::vector<float>> leaves;
  for (int leaf = 0; leaf < runs.leaves; ++leaf) {
    const std::span<const float> own = numbers().of(work, leaf);
    leaves.emplace_back(own.begin(), own.end());
  }
  data.resize(static_cast<std::size_t>(ranks));
  for (std::size_t node = 0; node < runs.nodes.size(); ++node) {
    const std::vector<std::byte> sum = stored(work, test::sum_of(leaves, runs.nodes[node]));
    auto& own = data[static_cast<std::size_t>(runs.ranks[node])];
    own.insert(own.end(), sum.begin(), sum.end());
  }
  std::vector<float> sum = test::sum_of(leaves, test::root_of(runs.leaves));
  for (float& value : sum)
    value = work.averages() ? value / static_cast<float>(runs.leaves) : value;
  result = stored(work, sum);
}

Truth::Truth(const Work& work, int ranks) {
  if (work.in_tree()) {
    sum_in_tree(work, ranks);
    return;
  }
  if (is_message(work.verb)) {
    const auto message = numbers().message(work);
    result.assign(message.begin(), message.end());
    return;
  }
  std::vector<float> sum;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::span<const float> own = numbers().of(work, rank);
    data.push_back(stored(work, own));
    if (rank == 0) {
      sum.assign(own.begin(), own.end());
    } else if (work.verb == Verb::kAllGather) {
      const auto [offset, count] = split(work.count, ranks, item_bytes(work), rank);
      std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(offset), count,
                  sum.begin() + static_cast<std::ptrdiff_t>(offset));
    } else {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
  }
  result = work.verb == Verb::kBroadcast ? data[static_cast<std::size_t>(work.from % ranks)]
                                         : stored(work, sum);
}

slackline::Part part_of_result(const Work& work, int ranks, int rank) {
  const std::size_t item = item_bytes(work);
  if (work.verb != Verb::kReduceScatter) return {0, elements_of(work) * item};
  const auto [offset, count] = split(work.count, ranks, item, rank);
  return {offset * item, count * item};
}

}  // namespace slackline::simulation
