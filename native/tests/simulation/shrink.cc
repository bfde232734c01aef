#include "shrink.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace slackline::simulation {
namespace {

// Changes that make a schedule simpler. Each returns false if there is nothing left to change.
using Change = std::function<bool(Schedule&)>;

template <class T>
bool simplify(T& value, T simple) {
  if (value == simple) return false;
  value = simple;
  return true;
}

std::vector<Change> changes_of(const Schedule& schedule) {
  std::vector<Change> changes;
  for (std::size_t length = std::max(schedule.work.size(), std::size_t{1}); length > 0;
       length /= 2) {
    for (std::size_t from = 0; from < schedule.work.size(); from += length) {
      changes.emplace_back([from, length](Schedule& s) {
        if (from >= s.work.size()) return false;
        const auto begin = s.work.begin() + static_cast<std::ptrdiff_t>(from);
        const std::size_t gone = std::min(length, s.work.size() - from);
        s.work.erase(begin, begin + static_cast<std::ptrdiff_t>(gone));
        for (Fault& fault : s.faults) {
          const auto first = static_cast<int>(from);
          if (fault.work >= first)
            fault.work = std::max(fault.work - static_cast<int>(gone), first);
        }
        return true;
      });
    }
  }
  for (std::size_t i = 0; i < schedule.faults.size(); ++i) {
    changes.emplace_back([i](Schedule& s) {
      if (i >= s.faults.size()) return false;
      s.faults.erase(s.faults.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    });
  }
  changes.emplace_back([](Schedule& s) { return simplify(s.manners.short_reads, false); });
  changes.emplace_back([](Schedule& s) { return simplify(s.manners.short_writes, false); });
  changes.emplace_back([](Schedule& s) { return simplify(s.manners.refusals, 0); });
  changes.emplace_back([](Schedule& s) { return simplify(s.manners.lazy, false); });
  changes.emplace_back([](Schedule& s) { return simplify(s.manners.preempts, false); });
  changes.emplace_back([](Schedule& s) { return simplify(s.line.bytes_per_ns, 1.0); });
  changes.emplace_back([](Schedule& s) { return simplify(s.line.delay_ns, Line{}.delay_ns); });
  changes.emplace_back([](Schedule& s) { return simplify(s.line.room, Line{}.room); });
  changes.emplace_back([](Schedule& s) { return simplify(s.progress_thread, false); });
  changes.emplace_back([](Schedule& s) { return simplify(s.spin_us, 0); });
  changes.emplace_back([](Schedule& s) { return simplify(s.rank_order, false); });
  changes.emplace_back([](Schedule& s) { return simplify(s.device_sets, -1); });
  changes.emplace_back([](Schedule& s) { return simplify(s.first_sequence, std::uint32_t{1}); });
  for (std::size_t i = 0; i < schedule.rails.size(); ++i) {
    changes.emplace_back([i](Schedule& s) { return s.rails[i] > 1 && simplify(s.rails[i], 1); });
  }
  for (std::size_t i = 0; i < schedule.work.size(); ++i) {
    changes.emplace_back([i](Schedule& s) {
      if (i >= s.work.size() || s.work[i].count < 2) return false;
      s.work[i].count /= 2;
      return true;
    });
    changes.emplace_back(
        [i](Schedule& s) { return i < s.work.size() && simplify(s.work[i].in_place, false); });
    changes.emplace_back(
        [i](Schedule& s) { return i < s.work.size() && simplify(s.work[i].dtype, 0); });
    changes.emplace_back(
        [i](Schedule& s) { return i < s.work.size() && simplify(s.work[i].weights, {}); });
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(schedule.ranks); ++rank) {
      const auto part = [i, rank](auto change) {
        return [i, rank, change](Schedule& s) {
          return i < s.work.size() && change(s.work[i].parts[rank]);
        };
      };
      changes.emplace_back(part([](Part& p) { return simplify(p.pause_ns, std::int64_t{0}); }));
      changes.emplace_back(part([](Part& p) { return simplify(p.blocking, false); }));
      changes.emplace_back(part([](Part& p) { return simplify(p.waits_for_all, false); }));
      changes.emplace_back(part([](Part& p) { return simplify(p.registered, false); }));
      changes.emplace_back(part([](Part& p) { return simplify(p.cancel_ns, std::int64_t{-1}); }));
      changes.emplace_back(part([](Part& p) { return simplify(p.shares_ns, std::int64_t{-1}); }));
    }
  }
  return changes;
}

}  // namespace

std::optional<std::string> broken_by(const Schedule& schedule) {
  try {
    World(schedule).play();
  } catch (const Broken& law) {
    return law.what();
  }
  return std::nullopt;
}

Schedule shrink(Schedule schedule, int most) {
  bool smaller = true;
  while (smaller && most > 0) {
    smaller = false;
    for (const Change& change : changes_of(schedule)) {
      Schedule candidate = schedule;
      if (!change(candidate)) continue;
      if (--most < 0) break;
      if (!broken_by(candidate)) continue;
      schedule = std::move(candidate);
      smaller = true;
    }
  }
  return schedule;
}

}  // namespace slackline::simulation
