// The parts of an engine below its public calls, and the work that a driver has them do.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "arrivals.h"
#include "clock.h"
#include "completions.h"
#include "driver.h"
#include "endings.h"
#include "executor.h"
#include "groups.h"
#include "inbox.h"
#include "links.h"
#include "membership.h"
#include "memory.h"
#include "operations.h"
#include "reports.h"
#include "sleep.h"

namespace slackline {

// The tables of an engine: each only keeps its entries.
struct Tables {
  explicit Tables(OperationLog& log) : reports(operations, inbox, log) {}

  Membership membership;
  Operations operations;
  Inbox inbox{membership};
  Completions completions;  // what next_completion() returns
  Reports reports;
};

class Machine final : public Driven {
 public:
  Machine(const EngineOptions& options, OperationLog& log);

  Clock& clock() { return clock_; }
  Memory& memory() { return memory_; }
  Sleep& sleep() { return sleep_; }
  Tables& tables() { return tables_; }
  Driver& driver() { return driver_; }
  Links& links() { return links_; }
  Endings& endings() { return endings_; }
  Executor& executor() { return executor_; }
  Groups& groups() { return groups_; }
  // Return what each link is made with.
  Link::Uses link_uses();

  bool work() noexcept override;
  bool queued() const override;
  bool ready_to_sleep() override;
  std::int64_t timer_ns() const override { return links_.due_ns(); }
  std::int64_t due_ns() const override;
  void woken(bool in_time) override;
  bool far() const override { return links_.watch().far(); }
  void broke_down(const std::exception& error) noexcept override { endings_.broke_down(error); }

 private:
  // The times of the work that is done now and then, whether or not frames arrive.
  struct Rounds {
    std::int64_t watched_ns = 0;    // the last look at the links
    std::int64_t checked_ns = 0;    // the last look at the deadlines
    std::vector<LoopEvent> events;  // that the driving thread asks for; has room for one wait
  };

  bool serve(std::span<const LoopEvent> events);
  void watch();

  Clock clock_;
  Memory memory_;
  Sleep sleep_;
  Tables tables_;
  Driver driver_;
  Links links_;
  Endings endings_;
  Executor executor_;
  Groups groups_;
  Arrivals arrivals_;
  Rounds rounds_;
};

}  // namespace slackline
