#include "steps.h"

#include <algorithm>

namespace slackline {

bool needs(const Request& request, int rank) {
  for (const Chunk& chunk : request.chunks) {
    for (const Segment& segment : chunk.segments) {
      for (std::size_t i = segment.position; i < chunk.step_list->steps.size(); ++i) {
        const Step& step = chunk.step_list->steps[i];
        if (step.peer != rank || step.opcode == Opcode::kReduceAll) continue;
        if (step.opcode == Opcode::kSend) return true;
        bool here = segment.handed && i == segment.position;
        for (const PendingPayload* s = segment.first; s != nullptr; s = s->next)
          here = here || (s->peer == rank && s->chunk == step.chunk);
        if (!here) return true;
      }
    }
  }
  return false;
}

bool sends_to(const Request& request, int rank) {
  return std::ranges::any_of(request.chunks, [&](const Chunk& chunk) {
    return std::ranges::any_of(chunk.step_list->steps, [&](const Step& step) {
      return step.opcode == Opcode::kSend && step.peer == rank;
    });
  });
}

}  // namespace slackline
