#include "endings.h"

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "completion_queue.h"
#include "describe.h"
#include "gate.h"
#include "headers.h"
#include "link.h"
#include "notices.h"
#include "offload.h"

namespace slackline {

void Endings::succeed(Request& request) { end(request, RequestState::kDone); }

void Endings::fail(Request& request, Failure failure, bool tell_peers) {
  if (request.finished()) return;
  const std::shared_ptr<Request> alive = request.shared_from_this();
  for (const auto& role : request.group->roles) {
    if (role->failed(request, failure)) return;
  }
  if (failure.rank < 0) failure.rank = request.group->rank;
  if (failure.tag < 0) failure.tag = request.user_tag();
  if (failure.sequence < 0) failure.sequence = request.sequence();
  request.failure = std::move(failure);
  uses_.reports.failed(request);
  uses_.operations.forget(alive);
  request.undivided = nullptr;
  std::exception_ptr failed;
  try {
    if (request.offloaded) request.group->device->withdraw(request);
    tell_peers_of(request, tell_peers, !request.any || request.any_source >= 0);
  } catch (...) {
    failed = std::current_exception();
  }
  end(request, RequestState::kFailed);
  if (failed) std::rethrow_exception(failed);
}

void Endings::refuse(const Group& group, const Key& key, const Failure& failure) {
  wire::Header header = blank_header(wire::FrameKind::kAbort);
  header.epoch = key.epoch;
  header.source = static_cast<std::uint16_t>(group.rank);
  header.tag = key.tag;
  for (Link* link : group.links) {
    if (link != nullptr && !link->down && link->wanted()) tell_ended(*link, header, failure);
  }
  uses_.inbox.abort(key, failure);
}

void Endings::lacks_slot(Request& request) {
  fail(request, no_room(request, uses_.memory, uses_.memory.slot_bytes(), "a staging slot"), true);
}

// Tell the peers that a request has failed, and remember it so that its frames are dropped. A
// request that is not `bound` to a sender is known to no peer.
void Endings::tell_peers_of(Request& request, bool tell_peers, bool bound) {
  std::exception_ptr failed;
  for (Link* link : request.group->links) {  // first of all, nothing may touch the memory any more
    try {
      if (link != nullptr) link->port().forget(request);
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (failed) std::rethrow_exception(failed);
  if (bound) uses_.inbox.abort(request.key, request.failure);
  for (std::size_t rank = 0; rank < request.group->links.size(); ++rank) {
    Link* link = request.group->links[rank];
    if (link == nullptr) continue;
    // A peer that this rank has lent memory to must confirm the end, whoever told the peer first. A
    // rank that leaves the group lets its peers read on.
    const bool lends = request.flows[rank].lent > 0 && !uses_.membership.leaves(*request.group);
    const bool concerned = request.key.role == kRoleCollective ||
                           request.key.role == role_receive(static_cast<int>(rank)) ||
                           request.key.role == role_send(static_cast<int>(rank));
    if (!(tell_peers || lends) || !concerned || !bound || link->down || !link->wanted()) continue;
    wire::Header header = header_for(request, wire::FrameKind::kAbort);
    if (request.key.role == role_receive(static_cast<int>(rank)))
      header.flags |= wire::kFlagToSender;
    tell_ended(*link, header, request.failure);
  }
  request.told = true;
}

void Endings::end(Request& request, RequestState state) {
  const std::shared_ptr<Request> alive = request.shared_from_this();
  // The end of the operation is published even if there is no memory for what it causes: the caller
  // then fails all other operations.
  std::exception_ptr failed;
  request.ended_ns = uses_.clock.now();
  try {
    retire(request);
    uses_.reports.ended(request, state == RequestState::kDone);
  } catch (...) {
    failed = std::current_exception();
  }
  uses_.reports.count_end();
  request.replay_copy.reset();
  // Before the end is published: from then on, the owner of a word may use it for its next gate.
  const auto gates = std::exchange(request.gates, {});
  if (state == RequestState::kDone) {
    for (const auto& gate : gates) gate->ended();
  }
  request.state.store(state, std::memory_order_release);
  if (request.queue) std::exchange(request.queue, nullptr)->push(alive);
  uses_.bell.operation_ended(request.async_counted);
  if (request.wants_callback) uses_.completions.push(alive);
  if (failed) std::rethrow_exception(failed);
  for (const auto& role : request.group->roles) role->ended(request);
  uses_.operations.release_barriers(*request.group);
}

void Endings::retire(Request& request) {
  uses_.operations.end(request);
  withhold_lent(request);
  const bool failed = static_cast<bool>(request.failure);
  // The steps that allocate no memory come first. They are done even if a later step finds none.
  for (Chunk& chunk : request.chunks) {
    for (Segment& segment : chunk.segments) {
      // No peer reads the slot any more.
      if (segment.slot >= 0 && failed) uses_.memory.give_slot(std::exchange(segment.slot, -1));
    }
    if (chunk.device_memory != nullptr)
      uses_.memory.arena().free(std::exchange(chunk.device_memory, nullptr));
  }
  for (std::byte* scratch : std::exchange(request.scratch, {})) uses_.memory.arena().free(scratch);
  for (Link* link : request.group->links) {
    // The same frame may be arriving on two rails after one rail failed at the peer, even if only
    // the other rail is left here. The rest of such a frame must not be written to memory that
    // belongs to the caller again.
    if (link != nullptr) link->port().stop_writing(request);
  }
  give_back_pending(request);
  // Room that the request gives up lets none of its own segments go on.
  for (PeerFlow& flow : request.flows) flow.credit_blocked.clear();
  for (Chunk& chunk : request.chunks) {
    for (Segment& segment : chunk.segments) release_slot(request, segment);
  }
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    if (std::exchange(request.flows[peer].asks, false)) request.group->links[peer]->asks().over();
  }
  for (Link* link : request.group->links) {
    if (link != nullptr && link->down) release_memory(*link);
  }
}

void Endings::release_slot(Request& request, Segment& segment) {
  if (segment.slot < 0) return;
  uses_.memory.give_slot(std::exchange(segment.slot, -1));
  --request.flows[segment.slot_peer].slots;
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    if (!request.flows[peer].credit_blocked.empty())
      request.group->links[peer]->unblock(request, static_cast<int>(peer));
  }
}

// Return the payloads that the request has not consumed.
void Endings::give_back_pending(Request& request) {
  std::exception_ptr lacked;
  for (Chunk& chunk : request.chunks) {
    for (Segment& segment : chunk.segments) {
      while (segment.first != nullptr) {
        PendingPayload* pending = segment.first;
        segment.first = pending->next;
        Link* link = pending->link;
        const std::uint16_t flags = pending->flags;
        const std::uint32_t length = pending->length;
        uses_.memory.give_pending(pending);
        try {
          link->port().consumed_early(flags, length);
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
void Endings::withhold_lent(Request& request) noexcept {
  const auto borrows = [&](std::size_t peer) {
    // Without its rail the peer is dead; a peer that has closed the group has ended its operations.
    // A peer that closes its engine says so before it has ended them.
    return request.flows[peer].lent > 0 && request.group->links[peer]->port().lender() != nullptr &&
           !request.group->parted.contains(static_cast<int>(peer));
  };
  std::size_t count = 0;
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) count += borrows(peer) ? 1 : 0;
  if (count > 0) {
    try {
      std::vector<LentMemory::Borrower> borrowers;
      for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
        if (!borrows(peer)) continue;
        Link* link = request.group->links[peer];
        const bool told = request.told && !link->down && !uses_.membership.leaves(*request.group);
        // The peer has ended the operation once it has handled the ABORT frame.
        const std::uint64_t frames =
            link->port().lender()->frames() + link->waiting_frames().size();
        borrowers.push_back(
            {link, request.flows[peer].lent, {told ? frames : Lender::Mark::kNever}});
      }
      std::vector<const void*> addresses;
      each_lent(request, [&](const void* address) { addresses.push_back(address); });
      uses_.memory.loans().withhold(request.key, addresses, std::move(borrowers));
    } catch (const std::bad_alloc&) {
      // Without memory for the table of loans the blocks are withheld as long as the arena lives.
      each_lent(request, [&](const void* address) { uses_.memory.arena().withhold(address); });
    }
    for (Chunk& chunk : request.chunks) {
      for (Segment& segment : chunk.segments) {
        if (segment.readers > 0 && segment.slot >= 0)
          uses_.memory.arena().free(uses_.memory.remove_slot(std::exchange(segment.slot, -1)));
      }
    }
  }
  for (PeerFlow& flow : request.flows) flow.lent = 0;
}

// Call `note` with an address in each block of memory that peers may still read or write.
template <class Note>
void Endings::each_lent(const Request& request, const Note& note) const {
  for (const Chunk& chunk : request.chunks) {
    bool direct = false;
    for (const Segment& segment : chunk.segments) {
      if (segment.readers == 0) continue;
      direct = direct || segment.slot < 0;
      if (segment.slot >= 0) note(uses_.memory.slot(segment.slot));
    }
    if (!direct) continue;
    for (const std::byte* address : {chunk.source, chunk.target, chunk.partial}) note(address);
  }
}

// A peer that is alive may still write, so its link keeps its memory.
void Endings::release_memory(Link& link) {
  const Lender* lender = link.port().lender();
  if (!link.down || lender == nullptr || !lender->gone()) return;
  // A payload that the peer sent before its end is still used if the peer left in good order.
  if (uses_.inbox.frames().refer_to_memory_of(link) || uses_.operations.refer_to_memory_of(link))
    return;
  uses_.links.unmap(link);
}

void Endings::broke_down(const std::exception& error) noexcept {
  uses_.memory.open_reserve();
  try {
    // At a second breakdown the links are cut, because telling the peers takes memory.
    if (breakdown_) throw std::bad_alloc();
    breakdown_ = Failure{
        Fault::kInternal, std::string("the engine failed: ") + error.what(), -1, -1, -1, -1};
    tell_breakdown(error);
    fail_all(breakdown_);
    uses_.links.send();
  } catch (const std::exception&) {
    fail_all_without_memory();
  }
  uses_.memory.renew_reserve();
}

// Tell the other members of every group that this rank takes no further part.
void Endings::tell_breakdown(const std::exception& error) {
  for (const auto& [epoch, group] : uses_.membership.groups()) {
    if (group->broken || group->closed) continue;
    group->told =
        Failure{Fault::kPeer,
                "the engine of rank " + std::to_string(group->rank) + " failed: " + error.what(),
                -1,
                -1,
                -1,
                -1};
    tell_failure(*group);
  }
}

void Endings::fail_all_without_memory() noexcept {
  const auto brief = [](Failure& failure) {
    if (failure) return;
    failure.fault = Fault::kInternal;
    failure.message = Link::kNoMemory;
  };
  brief(breakdown_);
  for (const auto& [epoch, group] : uses_.membership.groups()) brief(group->broken);
  for (Link* link : uses_.links.made()) {
    if (!link->down) link->end_without_memory();
  }
  while (const std::shared_ptr<Request> request = uses_.operations.take_any())
    end_without_memory(*request);
}

void Endings::end_without_memory(Request& request) noexcept {
  if (request.finished()) return;
  request.failure = Failure{};
  request.failure.fault = Fault::kInternal;
  request.failure.message = Link::kNoMemory;
  request.failure.rank = request.group->rank;
  try {
    end(request, RequestState::kFailed);
  } catch (const std::exception&) {
    // end() has published the end of the operation; its caller fails the others.
  }
}

void Endings::end_broken(Request& request) noexcept {
  try {
    fail(request, Failure(breakdown_), false);
  } catch (const std::exception&) {
    fail_all_without_memory();
    end_without_memory(request);
  }
}

void Endings::fail_all(const Failure& failure) {
  for (const auto& [epoch, group] : uses_.membership.groups()) {
    if (!group->broken) group->broken = failure;
  }
  for (const auto& request : uses_.operations.open()) fail(*request, failure, false);
  uses_.operations.clear_queue();
}

}  // namespace slackline
