// The engine's answers about operations that have not ended or that have failed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "clock.h"
#include "inbox.h"
#include "open_operations.h"
#include "operation_log.h"
#include "operations.h"

namespace slackline {

// All calls are made under the engine's lock.
class Reports {
 public:
  Reports(const Operations& operations, const Inbox& inbox, OperationLog& log)
      : operations_(operations), inbox_(inbox), log_(log) {}

  // Note that an operation has started, for the log.
  void started(Request& request, const Clock& clock) const;
  // Note that an operation has ended. May throw std::bad_alloc.
  void ended(const Request& request, bool succeeded);
  // Keep a description of a request that has just failed. The end of a group or of the engine is no
  // failure of its own.
  void failed(const Request& request);

  // Return the number of operations that have ended.
  std::uint64_t operations_ended() const { return ended_; }
  void count_end() { ++ended_; }
  // Return the operations that have not ended, the oldest first.
  std::vector<OpenOperation> pending() const;
  // Return the operations that have failed since the previous call.
  FailureLog::Taken failures() { return failures_.take(); }
  // Return a description of the ranks that the request waits for, and of the state of each. `*peer`
  // is set to the first such rank, or to -1 when only acknowledgements are missing.
  std::string waiting_for(const Request& request, int* peer) const;

 private:
  OpenOperation open_operation(const Request& request) const;
  std::vector<MissingPart> missing(const Request& request) const;

  const Operations& operations_;
  const Inbox& inbox_;
  OperationLog& log_;
  Durations durations_;
  FailureLog failures_;
  std::uint64_t ended_ = 0;
};

}  // namespace slackline
