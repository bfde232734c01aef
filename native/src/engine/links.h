// The links of an engine: their table, and the counts of their rails.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "link.h"
#include "memory.h"
#include "operations.h"
#include "rail_events.h"
#include "rail_status.h"
#include "rail_watch.h"
#include "rings.h"
#include "sleep.h"

namespace slackline {

// The table of an engine's links. A link is made late: its first rail comes when an operation needs
// the peer. A link that has ended stays until remove_ended(). All calls are made under the engine's
// lock.
class Links {
 public:
  struct Uses {
    Clock& clock;
    Memory& memory;
    Sleep& sleep;  // watches the sockets of rails
    const Operations& operations;
  };

  explicit Links(const Uses& uses)
      : uses_(uses), rings_(uses.memory.arena()), watch_(uses.sleep), events_(uses.clock) {}
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Add a link without a rail, and return its number.
  int add(const Link::Uses& uses, std::string name, const LinkOptions& options);
  // Return the link with this number, or null if it has been removed. Throws std::out_of_range if
  // no link has had the number.
  Link* find(int number) const;
  // Return the link with this number. If it has been removed, add a link in its place that has
  // ended, too. Throws std::out_of_range if no link has had the number.
  Link& find_or_renew(int number, const Link::Uses& uses);
  // Return the links that have or had a rail, in the order of their first rails.
  const std::vector<Link*>& made() const { return made_; }
  void note_made(Link& link) { made_.push_back(&link); }  // needs no memory
  // Return whether every link is down or has nothing left to send.
  bool idle() const;
  // Remove the links that have ended and for which `used(link)` is false. Their counts stay.
  void remove_ended(const std::function<bool(Link&)>& used);
  // Remove all links.
  void clear();
  // Close the descriptors of all rails in a forked child, so that the peers see the end of the
  // parent when it ends. The links themselves stay alive there, since groups point to them.
  void leave_to_parent();

  // Mark a link as having frames to send, until take_dirty().
  void mark_dirty(Link& link) noexcept;
  bool any_dirty() const { return !dirty_.empty(); }
  // Return the links that were marked, in the order of the marks, and remove the marks. The result
  // is valid until the next call.
  const std::vector<Link*>& take_dirty() {
    taken_dirty_.clear();
    taken_dirty_.swap(dirty_);
    return taken_dirty_;
  }

  // Send all that may be sent on the links that are marked.
  void send();
  // Prepare the links for a sleep. Return false if one of them has something to do.
  bool ready_to_sleep();

  RailWatch& watch() { return watch_; }
  const RailWatch& watch() const { return watch_; }
  RailEvents& events() { return events_; }
  // Return the next time at which a rail needs its tick() or a link its watch(); WireRail::kNever
  // when nothing is due.
  std::int64_t due_ns() const;

  Rings& rings() { return rings_; }
  // Unmap the memory of the peer of a link that has ended, and free the ring of this link.
  void unmap(Link& link);

  // Return the state of every rail, rails of lost links included.
  std::vector<RailStatus> rails() const;
  // Add the counts of all links to `counts`.
  void count(Port::Counts& counts) const;

 private:
  std::int64_t due_of(const Link& link) const;
  void make_room();

  const Uses uses_;
  std::map<int, std::unique_ptr<Link>> links_;
  int added_ = 0;         // links so far; the next one's number
  Port::Counts removed_;  // of the links that have been removed
  std::vector<Link*> made_;
  std::vector<Link*> dirty_, taken_dirty_;  // both have room for all links
  Rings rings_;
  RailWatch watch_;
  RailEvents events_;
};

}  // namespace slackline
