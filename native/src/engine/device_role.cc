#include "device_role.h"

namespace slackline {

Role::Pass DeviceRole::step(Request& request, std::uint32_t chunk, std::uint32_t segment,
                            const Step& step) {
  Segment& s = request.chunks[chunk].segments[segment];
  const bool asks =
      step.opcode != Opcode::kBuffer && (step.opcode != Opcode::kSend || step.own_data);
  if (!asks) return Pass::kOthers;
  if (request.finished()) return Pass::kWaits;
  if (!s.handed) {
    if (step.opcode == Opcode::kReduceAll) {
      if (request.onset > 0) return Pass::kWaits;
      for (int rank = 0; rank < group_.rank; ++rank) hand(request, chunk, segment, rank, false);
    } else if (step.opcode == Opcode::kSend) {
      device_->announce(request, request.chunks[chunk]);
    } else if (!hand(request, chunk, segment, step.peer, step.opcode == Opcode::kAdd)) {
      return Pass::kWaits;
    }
    s.handed = true;
  }
  if (!s.answered) return Pass::kWaits;
  s.handed = s.answered = false;
  return step.opcode == Opcode::kSend ? Pass::kOthers : Pass::kDone;
}

// Give a peer's payload to the device. Return false when the payload has not arrived yet.
bool DeviceRole::hand(Request& request, std::uint32_t chunk, std::uint32_t segment, int peer,
                      bool partial) {
  Chunk& c = request.chunks[chunk];
  PendingPayload* pending = Executor::take_pending(c.segments[segment], peer);
  if (pending == nullptr) return false;
  try {
    if (!group_.aggregator) device_->announce(request, c);
    device_->hand(request, c, segment, *pending, partial);
  } catch (...) {
    executor_.discard(pending);
    throw;
  }
  executor_.drop_pending(request, c, segment, pending);
  return true;
}

}  // namespace slackline
