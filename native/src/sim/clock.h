// The clock of a simulation: events in integer picoseconds, ordered by time and then by the order
// in which they were made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace slackline::sim {

using Time = std::int64_t;  // picoseconds

// The largest simulated time, 53 days: sums of times are limited to it and so do not overflow.
inline constexpr Time kNever = Time{1} << 62;

inline Time after(Time time, Time by) { return by >= kNever - time ? kNever : time + by; }

enum class EventKind : std::uint8_t {
  kCall,      // index: unused; argument: the owner's token (a number) for the event
  kLeft,      // index: a piece (packets of a frame) that has left its source's port
  kAtSwitch,  // index: a piece whose head is at the switch; argument: the time of its tail there
  kAtPort,    // index: a piece whose head is at the target's port; argument: the time of its tail
  kArrived,   // index: a piece that has arrived
  kQueue,     // index: a piece that joins the queue of its source again
  kCopied,    // index: a frame whose source may write to memory again
  kRead,      // index: a frame that has arrived through memory
  kTask,      // index: a thread; argument: the turn in which its task ends
};

struct Event {
  Time time;
  std::uint64_t number;
  std::int64_t argument;
  std::uint32_t index;
  EventKind kind;
};

class Clock {
 public:
  Time now() const { return now_; }
  std::uint64_t executed() const { return executed_; }
  bool empty() const { return heap_.empty(); }
  Time next() const { return heap_.front().time; }

  // Schedule an event; `time` has not passed.
  void at(Time time, EventKind kind, std::uint32_t index, std::int64_t argument = 0) {
    heap_.push_back(Event{time, made_++, argument, index, kind});
    std::push_heap(heap_.begin(), heap_.end(), follows);
  }
  // Remove the next event and set the clock to its time.
  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), follows);
    const Event event = heap_.back();
    heap_.pop_back();
    now_ = event.time;
    ++executed_;
    return event;
  }

 private:
  static bool follows(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.number > b.number;
  }

  std::vector<Event> heap_;
  std::uint64_t made_ = 0;
  std::uint64_t executed_ = 0;
  Time now_ = 0;
};

}  // namespace slackline::sim
