// Operations that wait for the shares of the ranks, and the end of the wait.
#include "shares.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine_impl.h"

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

void Engine::set_shares(Group& group, Shares& shares, std::vector<std::uint32_t> weights,
                        int number, std::shared_ptr<const Program> program) {
  const Lock lock = lock_for_post();
  if (shares.known || shares.failure) throw std::logic_error("the shares have been set before");
  check(group, weights, number, program.get());
  shares.weights = std::move(weights);
  shares.program = std::move(program);
  shares.number = number;
  shares.known = true;
  change([&] {
    for (const auto& request : operations_.undivided(shares)) {
      if (shares.program) request->program = shares.program;
      request->wide = widens(*request);
      lay_out(*request, *std::exchange(request->undivided, nullptr));
      operations_.queue(request);
      operations_.forget(request);
    }
  });
  wake();
}

void Engine::decline(Shares& shares, Failure failure) {
  const Lock lock = lock_for_post();
  if (shares.known || shares.failure) throw std::logic_error("the shares have been set before");
  shares.failure = std::move(failure);
  change([&] {
    for (const auto& request : operations_.undivided(shares))
      fail(*request, Failure(shares.failure), true);
    drain_dirty();
  });
  wake();
}

void Engine::cancel(Request& request, Failure failure) {
  const Lock lock = lock_for_post();
  change([&] {
    fail(request, std::move(failure), true);
    drain_dirty();
  });
  wake();
}

// Return the offset and the length of chunk number `chunk` in the operation's buffer.
Part Engine::part_of(const Request& request, std::uint64_t count, int chunk) {
  if (request.shares != nullptr && !request.shares->weights.empty())
    return split(count, request.shares->weights, request.item_size, chunk);
  return split(count, request.program->chunks(), request.item_size, chunk);
}

}  // namespace slackline
