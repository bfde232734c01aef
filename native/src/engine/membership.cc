#include "membership.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "link.h"

namespace slackline {

void Membership::open(const std::shared_ptr<Group>& group) {
  if (was_closed(group->epoch) || !groups_.emplace(group->epoch, group).second)
    throw std::invalid_argument("epoch " + std::to_string(group->epoch) + " is in use");
}

GroupNotice Membership::notice_of(const Group& group) {
  // The reason of a failure is part of the notice, so that a waiting peer learns the cause and not
  // only that this rank left.
  const Fault why = group.broken.fault;
  const bool passed_on = why == Fault::kPeer || why == Fault::kInternal;
  return GroupNotice{group.epoch, group.rank, passed_on ? group.broken : group.told};
}

GroupNotice Membership::close(const Group& group) {
  GroupNotice notice = notice_of(group);
  const bool unconnected = std::ranges::any_of(group.links, [](const Link* link) {
    return link != nullptr && !link->down && !link->made();
  });
  std::vector<const Link*> awaited;
  for (std::size_t rank = 0; rank < group.links.size(); ++rank) {
    const Link* link = group.links[rank];
    const bool over = link == nullptr || link->down || link->said_bye ||
                      group.parted.contains(static_cast<int>(rank));
    if (!over) awaited.push_back(link);
  }
  if (!awaited.empty()) closed_[group.epoch] = std::move(awaited);
  groups_.erase(group.epoch);
  if (unconnected) {
    departures_.push_back(notice);
    if (departures_.size() > kMostDepartures) {
      settle(departures_.front().epoch, [](const Link* link) { return !link->made(); });
      departures_.pop_front();
    }
  }
  return notice;
}

template <class Gone>
void Membership::settle(std::uint32_t epoch, const Gone& gone) {
  const auto found = closed_.find(epoch);
  if (found == closed_.end()) return;
  std::erase_if(found->second, gone);
  if (found->second.empty()) closed_.erase(found);
}

template <class Gone>
void Membership::settle_all(const Gone& gone) {
  for (auto entry = closed_.begin(); entry != closed_.end();) {
    std::erase_if(entry->second, gone);
    entry = entry->second.empty() ? closed_.erase(entry) : std::next(entry);
  }
}

void Membership::left(const Link& link, std::uint32_t epoch) {
  const auto it = [&](const Link* each) { return each == &link; };
  if (epoch == 0) return settle_all(it);
  settle(epoch, it);
  if (const auto group = find(epoch); group != nullptr) {
    if (const int rank = group->rank_of(link); rank >= 0) group->parted.insert(rank);
  }
}

void Membership::lost(const Link& link) {
  settle_all([&](const Link* each) { return each == &link; });
  std::erase_if(early_, [&](const EarlyNotice& notice) {
    return notice.link == &link && !notice.failure;  // an abort counts for ever
  });
}

void Membership::keep_early(EarlyNotice notice) {
  if (uses(notice.header.epoch)) return;
  early_.push_back(std::move(notice));
  if (early_.size() > kMostEarly) early_.pop_front();
}

std::vector<EarlyNotice> Membership::take_early(std::uint32_t epoch) {
  std::vector<EarlyNotice> taken;
  for (const EarlyNotice& notice : early_) {
    if (notice.header.epoch == epoch) taken.push_back(notice);
  }
  std::erase_if(early_, [&](const EarlyNotice& notice) { return notice.header.epoch == epoch; });
  return taken;
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

bool Membership::refers_to(const Link& link) const {
  const auto it = [&](const Link* each) { return each == &link; };
  return std::ranges::any_of(
             groups_, [&](const auto& e) { return std::ranges::any_of(e.second->links, it); }) ||
         std::ranges::any_of(closed_,
                             [&](const auto& e) { return std::ranges::any_of(e.second, it); }) ||
         std::ranges::any_of(early_, [&](const EarlyNotice& notice) { return it(notice.link); });
}

bool Membership::excludes(const Link& link, std::uint32_t epoch) const {
  const auto found = groups_.find(epoch);
  return found != groups_.end() && found->second->rank_of(link) < 0;
}

}  // namespace slackline
