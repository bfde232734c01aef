#include "reports.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "describe.h"
#include "offload.h"

namespace slackline {
namespace {

// Return, for each rank of the group, whether the request still needs data from it. `*device` says
// whether the group's device works on some part.
std::vector<bool> awaited_by(const Request& request, bool* device) {
  std::vector<bool> awaited(request.flows.size(), false);
  *device = false;
  for (const Chunk& chunk : request.chunks) {
    for (const Segment& segment : chunk.segments) {
      *device = *device || segment.handed;
      if (segment.handed) continue;
      for (std::size_t i = segment.position; i < chunk.step_list->steps.size(); ++i) {
        const Step& step = chunk.step_list->steps[i];
        if (step.opcode == Opcode::kSend || step.opcode == Opcode::kReduceAll) continue;
        bool here = false;
        for (const PendingPayload* s = segment.first; s != nullptr; s = s->next)
          here = here || (s->peer == step.peer && s->chunk == step.chunk);
        if (!here) awaited[step.peer] = true;
        if (step.opcode != Opcode::kBuffer) break;
      }
    }
  }
  return awaited;
}

// Return whether the request has data for `rank` that the rank has not taken.
bool takes_data(const Request& request, std::size_t rank) {
  const PeerFlow& flow = request.flows[rank];
  return request.group->links[rank] != nullptr && (!flow.credit_blocked.empty() || flow.sent > 0);
}

}  // namespace

void Reports::started(Request& request, const Clock& clock) const {
  if (log_.enabled() && request.started_ns == 0) request.started_ns = clock.now();
}

void Reports::ended(const Request& request, bool succeeded) {
  if (succeeded)
    durations_.add(request.collective, request.total, request.ended_ns - request.posted_ns);
  if (log_.enabled()) log_.add(record_of(request));
}

OpenOperation Reports::open_operation(const Request& request) const {
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

std::vector<OpenOperation> Reports::pending() const {
  std::vector<OpenOperation> open;
  for (const auto& request : operations_.open()) {
    if (!request->failure) open.push_back(open_operation(*request));
  }
  std::ranges::sort(open, {}, [](const OpenOperation& each) { return each.record.posted_ns; });
  return open;
}

void Reports::failed(const Request& request) {
  if (request.failure.fault == Fault::kClosed) return;
  if (failures_.full()) return failures_.leave_out();
  try {
    failures_.add(open_operation(request));
  } catch (const std::bad_alloc&) {  // the caller handles a lack of memory already
    failures_.leave_out();
  }
}

std::string Reports::waiting_for(const Request& request, int* peer) const {
  *peer = -1;
  if (request.any && request.any_source < 0)
    return "any rank, and none has sent a message with this tag";
  if (request.undivided)
    return "the end of earlier operations, which decide on the shares of the ranks";
  if (const Request* earlier = operations_.open_before(request)) {
    return "the end of " + describe(*earlier) + " sequence " + std::to_string(earlier->sequence()) +
           ", which waits for " + waiting_for(*earlier, peer);
  }
  bool device = false;
  const std::vector<bool> awaited = awaited_by(request, &device);
  std::string text;
  if (device) text = "its device (" + request.group->device->name() + ")";
  for (std::size_t rank = 0; rank < awaited.size(); ++rank) {
    if (!awaited[rank]) continue;
    if (*peer < 0) *peer = static_cast<int>(rank);
    if (!text.empty()) text += ", ";
    text += "rank " + std::to_string(rank) +
            (request.flows[rank].heard   ? " (which has begun it)"
             : request.program->forwards ? " (which has not posted it, or waits for others itself)"
                                         : " (which has not posted it)");
    if (request.flows[rank].heard) continue;
    if (const std::optional<Key> other = inbox_.posted_instead(request, static_cast<int>(rank))) {
      text += " but has posted " + number_words(other->tag);
    }
  }
  if (text.empty()) {
    for (std::size_t rank = 0; rank < request.flows.size(); ++rank) {
      if (takes_data(request, rank)) {
        if (*peer < 0) *peer = static_cast<int>(rank);
        text +=
            (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " to take what was sent";
      }
    }
  }
  return text.empty() ? "its peers" : text;
}

// Return the other ranks whose parts of the request are missing. An operation without missing parts
// waits for an earlier operation, for its device, or for any sender.
std::vector<MissingPart> Reports::missing(const Request& request) const {
  if ((request.any && request.any_source < 0) || request.undivided) return {};
  if (const Request* earlier = operations_.open_before(request)) return missing(*earlier);
  bool device = false;
  const std::vector<bool> awaited = awaited_by(request, &device);
  std::vector<MissingPart> parts;
  for (std::size_t rank = 0; rank < awaited.size(); ++rank) {
    if (awaited[rank])
      parts.push_back({static_cast<int>(rank),
                       request.flows[rank].heard ? PartState::kBegun : PartState::kSilent});
  }
  if (!parts.empty() || device) return parts;
  for (std::size_t rank = 0; rank < request.flows.size(); ++rank) {
    if (takes_data(request, rank)) parts.push_back({static_cast<int>(rank), PartState::kTaking});
  }
  return parts;
}

}  // namespace slackline
