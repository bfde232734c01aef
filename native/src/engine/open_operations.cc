// The engine's answers about operations that have not ended or that have failed.
#include "open_operations.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine_impl.h"

namespace slackline {

OpenOperation Engine::open_operation(const Request& request) const {
  OpenOperation open;
  open.record = record_of(request);
  open.record.waited_ns = 0;  // the end, up to which a wait counts, is not known
  open.usual_ns = durations_.mean_ns(request.collective, request.total);
  open.failure = request.failure;
  open.refused = request.failure && request.refused;
  if (!open.refused) open.missing = missing(request);
  if (!request.failure) {
    int peer = -1;
    open.waits_for = waiting_for(request, &peer);
  }
  return open;
}

std::vector<OpenOperation> Engine::pending() {
  const Lock lock = lock_for_post();
  std::vector<OpenOperation> open;
  for (const auto& request : operations_.open()) {
    if (!request->failure) open.push_back(open_operation(*request));
  }
  std::ranges::sort(open, {}, [](const OpenOperation& each) { return each.record.posted_ns; });
  return open;
}

FailureLog::Taken Engine::failures() {
  const Lock lock = lock_for_post();
  return failures_.take();
}

// Keep a description of a request that has just failed. The end of a group or of the engine is no
// failure of its own.
void Engine::note_failure(const Request& request) {
  if (request.failure.fault == Fault::kClosed) return;
  if (failures_.full()) return failures_.leave_out();
  try {
    failures_.add(open_operation(request));
  } catch (const std::bad_alloc&) {  // the caller handles a lack of memory already
    failures_.leave_out();
  }
}

}  // namespace slackline
