#include "send_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace slackline {

void SendQueue::push(SendItem item) {
  auto& queue = items_[item.request->priority];
  const auto later = [](std::uint64_t order, const SendItem& other) {
    return order < other.request->order;
  };
  const auto place = std::upper_bound(queue.begin(), queue.end(), item.request->order, later);
  queue.insert(place, std::move(item));
}

void SendQueue::push_again(const Request& request, std::vector<SendItem>& items) {
  auto& queue = items_[request.priority];
  const auto earlier = [](const SendItem& other, std::uint64_t order) {
    return other.request->order < order;
  };
  const auto place = std::lower_bound(queue.begin(), queue.end(), request.order, earlier);
  queue.insert(place, std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
  items.clear();
}

bool SendQueue::holds(const Request& request) const {
  return std::ranges::any_of(items_, [&](const auto& entry) {
    return std::ranges::any_of(
        entry.second, [&](const SendItem& item) { return item.request.get() == &request; });
  });
}

void SendQueue::remove(const Request& request) {
  for (auto& [priority, queue] : items_)
    std::erase_if(queue, [&](const SendItem& item) { return item.request.get() == &request; });
}

bool SendQueue::empty() const {
  return std::ranges::all_of(items_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace slackline
