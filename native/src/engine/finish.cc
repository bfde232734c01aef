// The end of an operation, successful or failed: its threads are woken and its memory is returned.
#include <algorithm>
#include <exception>
#include <utility>

#include "../base/clock.h"
#include "engine_impl.h"

namespace slackline {

void Engine::send_finished(Request& request) {
  if (request.finished()) return;
  --request.open_sends;
  maybe_finish(request);
}

// Finish the request if no segment and no send of it is left.
void Engine::maybe_finish(Request& request) {
  if (request.open_segments > 0 || request.open_sends > 0 || request.finished()) return;
  if (request.last_divisor > 1) Offload::divide_last(request);
  finish(request, RequestState::kDone);
}

void Engine::finish(Request& request, RequestState state) {
  const std::shared_ptr<Request> alive = request.shared_from_this();
  // The end of the operation is published even if there is no memory for what it causes: the caller
  // of finish() then fails all other operations.
  std::exception_ptr failed;
  request.ended_ns = now_ns();
  try {
    retire(request);
    if (state == RequestState::kDone)
      durations_.add(request.collective, request.total, request.ended_ns - request.posted_ns);
    if (operation_log.enabled()) operation_log.add(record_of(request));
  } catch (...) {
    failed = std::current_exception();
  }
  ++ended_operations_;
  request.replay_copy.reset();
  request.state.store(state, std::memory_order_release);
  if (request.async_counted) --async_open_;
  if (request.queue) std::exchange(request.queue, nullptr)->push(alive);
  if (waiters_ > 0) finished_.notify_all();
  if (caller_asleep_) loop_.ring();  // the sleeping caller may wait for this operation
  if (request.wants_callback) completions_.push(alive);
  if (failed) std::rethrow_exception(failed);
  if (request.group->aggregation) served(request);
  operations_.release_barriers(*request.group);
}

void Engine::retire(Request& request) {
  operations_.end(request);
  withhold_lent(request);
  const bool failed = static_cast<bool>(request.failure);
  for (Chunk& chunk : request.chunks) {
    for (Segment& segment : chunk.segments) {
      while (segment.first != nullptr) {
        PendingPayload* pending = segment.first;
        segment.first = pending->next;
        if (pending->owned != nullptr) give_buffer(pending->owned);
        if ((pending->flags & wire::kFlagEager) != 0 && !pending->link->shared_memory())
          pending->link->eager_consumed(pending->length);
        idle_pending_.push_back(pending);
      }
      if (segment.slot < 0) continue;
      if (failed)
        free_slots_.push_back(std::exchange(segment.slot, -1));  // no peer reads the slot any more
      else
        release_slot(request, segment);
    }
  }
  for (Chunk& chunk : request.chunks) {
    if (chunk.device_memory != nullptr) arena_.free(std::exchange(chunk.device_memory, nullptr));
  }
  for (std::byte* scratch : request.scratch) arena_.free(scratch);
  for (Link* link : request.group->links) {
    // The same frame may be arriving on two rails after one rail failed at the peer, even if only
    // the other rail is left here. The rest of such a frame must not be written to memory that
    // belongs to the caller again.
    if (link == nullptr) continue;
    for (auto& rail : link->rails()) rail->wire->forget(&request, *this);
  }
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    if (std::exchange(request.flows[peer].asks, false)) request.group->links[peer]->ask_over();
  }
  request.scratch.clear();
  for (PeerFlow& flow : request.flows) flow.credit_blocked.clear();
  for (Link* link : request.group->links) {
    if (link != nullptr && link->down) release_memory(*link);
  }
}

// Withhold the memory of an ended operation that peers may still read or write. Only an operation
// that has failed, or that goes on without an aggregator, has lent memory at its end.
void Engine::withhold_lent(Request& request) {
  std::vector<LentMemory::Borrower> borrowers;
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    const std::uint32_t count = std::exchange(request.flows[peer].lent, 0);
    const Link* link = request.group->links[peer];
    // Without its rail the peer is dead; a peer that has closed the group has ended its operations.
    // A peer that closes its engine says so before it has ended them.
    if (count == 0 || link->shm() == nullptr ||
        request.group->parted.contains(static_cast<int>(peer)))
      continue;
    const bool told = request.told && !link->down && !leaves(*request.group);
    borrowers.push_back({link, count, told ? link->frames_up_to_now() : LentMemory::kNever});
  }
  if (borrowers.empty()) return;
  std::vector<const void*> lent;
  std::vector<std::byte*> slots;
  for (Chunk& chunk : request.chunks) {
    bool direct = false;
    for (Segment& segment : chunk.segments) {
      if (segment.readers == 0) continue;
      direct = direct || segment.slot < 0;
      if (segment.slot >= 0) slots.push_back(remove_slot(std::exchange(segment.slot, -1)));
    }
    if (direct) lent.insert(lent.end(), {chunk.source, chunk.target, chunk.partial});
  }
  lent.insert(lent.end(), slots.begin(), slots.end());
  lent_.withhold(request.key, lent, std::move(borrowers));
  for (std::byte* memory : slots) arena_.free(memory);
}

}  // namespace slackline
