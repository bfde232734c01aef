#include "shares.h"

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "group.h"

namespace slackline {
namespace {

constexpr std::uint64_t kMostWeight = (std::uint64_t{1} << 32) - 1;

void check(const Group& group, const std::vector<std::uint32_t>& weights, int number,
           const Program* program) {
  if (number < 0 || number > Shares::kMostNumber)
    throw std::invalid_argument("the number of shares must be 0 to " +
                                std::to_string(Shares::kMostNumber) + ", not " +
                                std::to_string(number));
  const bool fits = program == nullptr || (program->ranks == group.size() &&
                                           program->rank == group.rank && program->splits);
  if (!fits)
    throw std::invalid_argument(
        "the program of shares is for another rank or group, or does not cut one buffer");
  if (weights.empty()) return;
  if (program == nullptr || program->chunks() != group.size())
    throw std::invalid_argument("weights need a program with a chunk for each rank");
  if (weights.size() != static_cast<std::size_t>(group.size()))
    throw std::invalid_argument(std::to_string(group.size()) + " ranks need " +
                                std::to_string(group.size()) + " weights, not " +
                                std::to_string(weights.size()));
  const auto whole = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  if (whole < 1 || whole > kMostWeight)
    throw std::invalid_argument("the sum of weights must be 1 to " + std::to_string(kMostWeight) +
                                ", not " + std::to_string(whole));
}

}  // namespace

void Shares::set(const Group& group, std::vector<std::uint32_t> their_weights, int their_number,
                 std::shared_ptr<const Program> their_program) {
  if (known || failure) throw std::logic_error("the shares have been set before");
  check(group, their_weights, their_number, their_program.get());
  weights = std::move(their_weights);
  program = std::move(their_program);
  number = their_number;
  known = true;
}

void Shares::decline(Failure reason) {
  if (known || failure) throw std::logic_error("the shares have been set before");
  failure = std::move(reason);
}

}  // namespace slackline
