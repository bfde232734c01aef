// Random numbers of a simulation. The same seed gives the same numbers with every compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace slackline::simulation {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  // SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Return a number from `low` to `high`, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % (static_cast<std::uint64_t>(high - low) + 1));
  }
  // Return true with this probability in percent.
  bool percent(int chance) { return between(0, 99) < chance; }
  // Return a number from `low` to `high` whose logarithm is evenly distributed; `low` must be above
  // 0.
  std::int64_t spread(std::int64_t low, std::int64_t high) {
    int doublings = 0;
    while ((low << doublings) < high) ++doublings;
    const std::int64_t from = low << between(0, doublings > 0 ? doublings - 1 : 0);
    return between(from, from * 2 < high ? from * 2 : high);
  }
  template <class Container>
  auto& one_of(Container& all) {
    return *(std::begin(all) + between(0, static_cast<std::int64_t>(std::size(all)) - 1));
  }

 private:
  std::uint64_t state_;
};

}  // namespace slackline::simulation
