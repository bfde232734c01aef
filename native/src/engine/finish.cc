// The end of an operation, successful or failed: its threads are woken and its memory is returned.
#include <algorithm>
#include <exception>
#include <new>
#include <utility>
#include <vector>

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
  // The steps that allocate no memory come first. They are done even if a later step finds none.
  for (Chunk& chunk : request.chunks) {
    for (Segment& segment : chunk.segments) {
      // No peer reads the slot any more.
      if (segment.slot >= 0 && failed) free_slots_.push_back(std::exchange(segment.slot, -1));
    }
    if (chunk.device_memory != nullptr) arena_.free(std::exchange(chunk.device_memory, nullptr));
  }
  for (std::byte* scratch : std::exchange(request.scratch, {})) arena_.free(scratch);
  for (Link* link : request.group->links) {
    // The same frame may be arriving on two rails after one rail failed at the peer, even if only
    // the other rail is left here. The rest of such a frame must not be written to memory that
    // belongs to the caller again.
    if (link == nullptr) continue;
    for (auto& rail : link->rails()) rail->wire->forget(&request, *this);
  }
  give_back_pending(request);
  for (Chunk& chunk : request.chunks) {
    for (Segment& segment : chunk.segments) release_slot(request, segment);
  }
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    if (std::exchange(request.flows[peer].asks, false)) request.group->links[peer]->ask_over();
  }
  for (PeerFlow& flow : request.flows) flow.credit_blocked.clear();
  for (Link* link : request.group->links) {
    if (link != nullptr && link->down) release_memory(*link);
  }
}

// Return the payloads that the request has not consumed.
void Engine::give_back_pending(Request& request) {
  std::exception_ptr lacked;
  for (Chunk& chunk : request.chunks) {
    for (Segment& segment : chunk.segments) {
      while (segment.first != nullptr) {
        PendingPayload* pending = segment.first;
        segment.first = pending->next;
        const bool eager = (pending->flags & wire::kFlagEager) != 0;
        Link* link = eager && !pending->link->shared_memory() ? pending->link : nullptr;
        const std::uint32_t length = pending->length;
        discard(pending);
        if (link == nullptr) continue;
        try {
          link->eager_consumed(length);
        } catch (const std::bad_alloc&) {  // the other payloads go back all the same
          lacked = std::current_exception();
        }
      }
    }
  }
  if (lacked) std::rethrow_exception(lacked);
}

// Withhold the memory of an ended operation that peers may still read or write. Only an operation
// that has failed, or that goes on without an aggregator, has lent memory at its end.
void Engine::withhold_lent(Request& request) noexcept {
  const auto borrows = [&](std::size_t peer) {
    // Without its rail the peer is dead; a peer that has closed the group has ended its operations.
    // A peer that closes its engine says so before it has ended them.
    return request.flows[peer].lent > 0 && request.group->links[peer]->shm() != nullptr &&
           !request.group->parted.contains(static_cast<int>(peer));
  };
  std::size_t count = 0;
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) count += borrows(peer) ? 1 : 0;
  if (count > 0) {
    try {
      std::vector<LentMemory::Borrower> borrowers;
      for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
        if (!borrows(peer)) continue;
        const Link* link = request.group->links[peer];
        const bool told = request.told && !link->down && !leaves(*request.group);
        borrowers.push_back(
            {link, request.flows[peer].lent, told ? link->frames_up_to_now() : LentMemory::kNever});
      }
      std::vector<const void*> addresses;
      each_lent(request, [&](const void* address) { addresses.push_back(address); });
      lent_.withhold(request.key, addresses, std::move(borrowers));
    } catch (const std::bad_alloc&) {
      // Without memory for the table of loans the blocks are withheld as long as the arena lives.
      each_lent(request, [&](const void* address) { arena_.withhold(address); });
    }
    for (Chunk& chunk : request.chunks) {
      for (Segment& segment : chunk.segments) {
        if (segment.readers > 0 && segment.slot >= 0)
          arena_.free(remove_slot(std::exchange(segment.slot, -1)));
      }
    }
  }
  for (PeerFlow& flow : request.flows) flow.lent = 0;
}

// Call `note` with an address in each block of memory that peers may still read or write.
template <class Note>
void Engine::each_lent(const Request& request, const Note& note) const {
  for (const Chunk& chunk : request.chunks) {
    bool direct = false;
    for (const Segment& segment : chunk.segments) {
      if (segment.readers == 0) continue;
      direct = direct || segment.slot < 0;
      if (segment.slot >= 0) note(slot(segment.slot));
    }
    if (!direct) continue;
    for (const std::byte* address : {chunk.source, chunk.target, chunk.partial}) note(address);
  }
}

}  // namespace slackline
