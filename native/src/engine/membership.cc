#include "membership.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "link.h"

namespace slackline {

void Membership::open(const std::shared_ptr<Group>& group) {
  if (!groups_.emplace(group->epoch, group).second)
    throw std::invalid_argument("epoch " + std::to_string(group->epoch) + " is in use");
}

GroupNotice Membership::close(const Group& group) {
  // The reason of a failure is part of the notice, so that a waiting peer learns the cause and not
  // only that this rank left.
  const Fault why = group.broken.fault;
  const bool passed_on = why == Fault::kPeer || why == Fault::kInternal;
  GroupNotice notice{group.epoch, group.rank, passed_on ? group.broken : group.told};
  const bool unconnected = std::ranges::any_of(group.links, [](const Link* link) {
    return link != nullptr && !link->down && !link->made();
  });
  if (unconnected) departures_.push_back(notice);
  closed_.insert(group.epoch);
  groups_.erase(group.epoch);
  return notice;
}

std::shared_ptr<Group> Membership::find(std::uint32_t epoch) const {
  const auto found = groups_.find(epoch);
  return found == groups_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Group>> Membership::shared_with(const Link& link) const {
  std::vector<std::shared_ptr<Group>> shared;
  for (const auto& [epoch, group] : groups_) {
    if (group->rank_of(link) >= 0) shared.push_back(group);
  }
  return shared;
}

bool Membership::excludes(const Link& link, std::uint32_t epoch) const {
  const auto found = groups_.find(epoch);
  return found != groups_.end() && found->second->rank_of(link) < 0;
}

}  // namespace slackline
