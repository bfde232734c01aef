#include "aggregation.h"

#include <algorithm>

#include "../base/figures.h"
#include "headers.h"
#include "link.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {
namespace {

constexpr std::int64_t kNoTimeout = std::int64_t{1}
                                    << 62;  // the workers have timeouts of their own

}  // namespace

bool Aggregation::begun_by_all(const Group& group, const std::deque<Unexpected>& frames) {
  std::vector<bool> here(group.links.size(), false);
  for (const Unexpected& frame : frames) {
    const int rank = group.rank_of(*frame.link);
    if (rank >= 0) here[static_cast<std::size_t>(rank)] = true;
  }
  return std::count(here.begin(), here.end(), true) + 1 >= std::ssize(here);
}

std::string Aggregation::refusal(const wire::Header& header, std::size_t arena_bytes) {
  const auto dtype = static_cast<wire::DType>(header.dtype);
  const std::size_t item = wire::item_size(dtype);
  const std::uint64_t bytes = bytes_of(header);
  if ((header.op >> 4) != static_cast<unsigned>(wire::Collective::kAllReduce)) {
    return "an aggregator only performs all_reduce, not the collective with code " +
           std::to_string(header.op >> 4);
  }
  if (item == 0 || bytes % item != 0 ||
      !kernels::supported(dtype, static_cast<wire::ReduceOp>(header.op & 0xF))) {
    return "an aggregator cannot reduce " + std::to_string(bytes) + " bytes of dtype code " +
           std::to_string(header.dtype) + " by reduction code " + std::to_string(header.op & 0xF);
  }
  if (bytes > arena_bytes / 2) {
    return "the aggregator has no room for " + show_bytes(bytes) +
           ": it takes at most half of its arena of " + show_bytes(arena_bytes);
  }
  return {};
}

const std::shared_ptr<const Program>& Aggregation::program_of(const wire::Header& header) const {
  constexpr unsigned kPlans = (1u << (wire::kSharesShift - wire::kPlanIdShift)) - 1;
  const bool in_tree =
      tree_ != nullptr && (header.flags >> wire::kPlanIdShift & kPlans) == tree_->plan;
  return in_tree ? tree_ : program_;
}

Operation Aggregation::operation(const Key& key, const wire::Header& header,
                                 std::byte* target) const {
  Operation operation;
  operation.program = program_of(header);
  operation.digest = digest_of(header);
  operation.dtype = static_cast<wire::DType>(header.dtype);
  operation.op = static_cast<wire::ReduceOp>(header.op & 0xF);
  operation.target = target;
  operation.total_bytes = bytes_of(header);
  operation.count = operation.total_bytes / wire::item_size(operation.dtype);
  operation.key = &key;
  operation.timeout_ns = kNoTimeout;
  return operation;
}

Operation Aggregation::refused(const Key& key, const wire::Header& header) const {
  Operation operation;
  operation.program = program_;
  operation.dtype = wire::DType::kUint8;
  operation.op = wire::ReduceOp::kSum;
  operation.total_bytes = bytes_of(header);
  operation.key = &key;
  operation.timeout_ns = kNoTimeout;
  return operation;
}

void Aggregation::wait(const Key& key) {
  if (std::ranges::find(waiting_, key) == waiting_.end()) waiting_.push_back(key);
}

std::optional<Key> Aggregation::take_waiting() {
  if (waiting_.empty()) return std::nullopt;
  const Key key = waiting_.front();
  waiting_.pop_front();
  return key;
}

bool Aggregation::count_arrival(Request& request, int worker) const {
  ++request.flows[static_cast<std::size_t>(worker)].arrived;
  const auto segments = static_cast<std::uint32_t>(request.chunks[0].segments.size());
  const std::uint32_t enough = std::min(onset_, segments);
  for (int rank = 0; rank < request.group->rank; ++rank) {
    // A worker on this host may have to wait for its slots to be read before it sends more.
    const Link* link = request.group->links[static_cast<std::size_t>(rank)];
    const std::uint32_t all = std::min(enough, link->port().rules().most_unread);
    if (request.flows[static_cast<std::size_t>(rank)].arrived < all) return false;
  }
  return true;
}

std::vector<std::uint64_t> Aggregation::note_result(std::uint64_t tag, std::uint64_t bytes) {
  tags_.push_back(tag);
  tags_bytes_ += bytes;
  if (tags_.size() < kMostTags && tags_bytes_ < kMostTagsBytes) return {};
  tags_bytes_ = 0;
  return std::exchange(tags_, {});
}

}  // namespace slackline
