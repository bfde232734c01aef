// The segments that wait to be sent to one peer.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "request.h"

namespace slackline {

// The queued segments, the most urgent first: by the priority of their operations, then in the
// order in which the operations were posted. All calls are made under the engine's lock.
class SendQueue {
 public:
  using Items = std::map<int, std::deque<SendItem>>;

  void push(SendItem item);
  // Put items of one request, which waited, back in front of its later ones, and empty `items`.
  void push_again(const Request& request, std::vector<SendItem>& items);
  // Return whether an item of the request is queued.
  bool holds(const Request& request) const;
  // Remove all items of the request.
  void remove(const Request& request);
  bool empty() const;
  // Return the items by priority.
  const Items& items() const { return items_; }
  // Take the items one after the other, the most urgent first, and pass each to send(item). It
  // returns false to put the item back and end the loop. Items of operations that have ended are
  // dropped.
  template <class Send>
  void send_all(const Send& send) {
    while (!items_.empty()) {
      const auto most_urgent = items_.begin();
      auto& queue = most_urgent->second;
      while (!queue.empty()) {
        SendItem item = std::move(queue.front());
        queue.pop_front();
        if (item.request->finished()) continue;
        if (send(item)) continue;
        queue.push_front(std::move(item));
        return;
      }
      if (items_.size() == 1) break;
      items_.erase(most_urgent);
    }
  }

 private:
  Items items_;
};

}  // namespace slackline
