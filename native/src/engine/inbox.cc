#include "inbox.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace slackline {

void Inbox::abort(const Key& key, Failure failure) {
  frames_.drop_all(key);
  const std::optional<Key> forgotten = aborted_.remember(key, std::move(failure));
  if (!forgotten) return;
  // Operations of one stream are posted in the order of their numbers. Of those that were posted
  // here up to the forgotten one, late frames are dropped without a further question.
  const std::shared_ptr<Group> group = membership_.find(forgotten->epoch);
  const std::uint32_t next = group == nullptr ? 0 : group->posted(*forgotten);
  if (next == 0) return;
  std::uint32_t& last = group->forgotten[Group::stream_of(*forgotten)];
  last = std::max(last, std::min(next - 1, static_cast<std::uint32_t>(forgotten->tag)));
}

bool Inbox::was_aborted(const Key& key) const {
  if (aborted_.contains(key)) return true;
  const std::shared_ptr<Group> group = membership_.find(key.epoch);
  if (group == nullptr || group->forgotten.empty()) return false;
  const auto last = group->forgotten.find(Group::stream_of(key));
  return last != group->forgotten.end() && static_cast<std::uint32_t>(key.tag) <= last->second;
}

std::optional<Key> Inbox::posted_instead(const Request& request, int rank) const {
  if (const auto begun = frames_.begun_by(rank, request.key.epoch, request.key.role)) return begun;
  return aborted_.told_by(rank, request.key.epoch, request.key.role);
}

}  // namespace slackline
