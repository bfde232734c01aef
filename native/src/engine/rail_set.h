// The rails of a wire port: the choice of a rail for each frame, and what is known of their speed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "link_rail.h"

namespace slackline {

// All calls are made under the engine's lock.
class RailSet {
 public:
  using Rails = std::vector<std::unique_ptr<LinkRail>>;

  Rails& all() { return rails_; }
  const Rails& all() const { return rails_; }
  bool empty() const { return rails_.empty(); }
  // Return the rail with this index, or null.
  LinkRail* find(int index) const;
  LinkRail& add(int index, std::string name, std::unique_ptr<WireRail> wire);
  // Remove and return a rail.
  std::unique_ptr<LinkRail> take(std::size_t place);

  // Return the rail whose queue will be sent first, of those that are up and have room; null if
  // there is none. Rails with empty queues take turns. With `crowded` also accept a rail without
  // room.
  LinkRail* pick(std::int64_t now_ns, bool crowded = false);
  // Return a rail for a control frame. Control frames are few and short, so they may exceed a
  // rail's queue limit.
  LinkRail* any(std::int64_t now_ns);
  // Measure the speed of a rail. `carries` says that unacknowledged frames are on it, `heard_ns`
  // when the peer was last heard.
  static void measure(LinkRail& rail, std::int64_t now_ns, bool carries, std::int64_t heard_ns);
  // Let a rail that has come back prove itself by a small window.
  static void begin_slowly(LinkRail& rail);
  // Return whether a rail has confirmed nothing for too long.
  static bool silent(const LinkRail& rail, std::int64_t now_ns);
  // Return whether another rail than this one surely works.
  bool another_is_well(const LinkRail& rail, std::int64_t now_ns) const;

 private:
  double typical_rate() const;

  Rails rails_;
  std::uint64_t picks_ = 0;
};

}  // namespace slackline
