#include "memory_port.h"

#include <algorithm>
#include <utility>

#include "executor.h"
#include "links.h"
#include "segments.h"
#include "slackline/kernels.h"

namespace slackline {

const Port::Rules& MemoryPort::rules() const {
  static constexpr Rules kRules{false, true, kSlotsPerPeer};
  return kRules;
}

void MemoryPort::connect(std::unique_ptr<ShmRail> rail) {
  rail_ = std::move(rail);
  uses_.links.watch().add_process(link_, rail_->control_fd());
}

void MemoryPort::close() {
  if (rail_ != nullptr) uses_.links.watch().remove_process(rail_->control_fd());
}

bool MemoryPort::serve(bool) {
  if (rail_ == nullptr) return false;
  const bool any = rail_->poll(link_, uses_.sink);
  if (rail_->take_room_again()) uses_.links.mark_dirty(link_);
  if (rail_->holds_back() && rail_->due_ns() <= uses_.clock.now()) {
    rail_->tick(uses_.clock.now());
    uses_.links.mark_dirty(link_);
  }
  return any;
}

void MemoryPort::drain() {
  while (rail_ != nullptr && rail_->poll(link_, uses_.sink)) {
  }
}

bool MemoryPort::reap() {
  if (rail_ == nullptr) return false;
  const bool failed = static_cast<bool>(rail_->failure());
  if (!failed && (!rail_->peer_gone() || rail_->pending())) return false;
  link_.down = true;
  close();
  link_.failure =
      failed ? rail_->failure() : Failure{Fault::kPeer, "its process has ended", -1, -1, -1, -1};
  return true;
}

std::int64_t MemoryPort::due_ns(bool) const {
  return rail_ == nullptr ? WireRail::kNever : rail_->due_ns();
}

bool MemoryPort::ready_to_sleep() {
  return rail_ == nullptr || link_.down || !(rail_->pending() || rail_->room_again());
}

void MemoryPort::end_without_memory() noexcept {
  if (rail_ != nullptr) rail_->give_up(Link::kNoMemory);
}

std::string MemoryPort::condition() const {
  return link_.down ? "its process has ended" : "its process lives";
}

void MemoryPort::inject(int, const std::optional<FaultState>& state) {
  if (rail_ != nullptr) rail_->inject(state);
}

void MemoryPort::leave_to_parent() {
  if (rail_ != nullptr) rail_->leave_to_parent();
}

RailStatus MemoryPort::status() const {
  RailStatus status;
  status.link = link_.index();
  status.kind = status.name = "shm";
  status.state = link_.down ? "ended" : "up";
  status.counters.frames_sent = rail_->frames_sent;
  status.counters.frames_received = rail_->frames_received;
  return status;
}

std::vector<RailStatus> MemoryPort::rails() const {
  if (rail_ == nullptr) return {};
  return {status()};
}

std::vector<RailStatus> MemoryPort::ended_rails() const {
  if (!ended_) return {};
  return {*ended_};
}

void MemoryPort::count(Counts& counts) const {
  counts["shm_reference_bytes"] += counters_.reference_bytes;
  counts["shm_staged_bytes"] += counters_.staged_bytes;
  counts["shm_inline_bytes"] += counters_.inline_bytes;
  counts["shm_wakeups"] += counters_.wakeups;
  if (rail_ == nullptr) return;
  counts["shm_links"] += 1;
  counts["shm_wakeups"] += rail_->wakeups;
}

Port::Outcome MemoryPort::send(const SendItem& item, wire::Header& header, const std::byte* data,
                               std::size_t bytes) {
  item.request->rails |= kSharedMemoryBit;
  const Step& step = *item.step;
  if (step.complete && Executor::answered(*item.request, item.chunk, item.segment, step.peer))
    return send_answer(item, header);
  if (bytes <= ShmRail::kInlineBytes) return send_inline(item, header, data, bytes);
  return send_reference(item, header, data, bytes);
}

// Tell the peer that the reduction has stored the result in its memory.
Port::Outcome MemoryPort::send_answer(const SendItem& item, wire::Header& header) {
  header.flags |= wire::kFlagWritten;
  if (!rail_->push(header, nullptr, 0)) return Outcome::kNoRoom;
  uses_.executor.forget_answer(*item.request, item.chunk, item.segment, item.step->peer);
  uses_.executor.sent(*item.request);
  return Outcome::kSent;
}

Port::Outcome MemoryPort::send_inline(const SendItem& item, wire::Header& header,
                                      const std::byte* data, std::size_t bytes) {
  header.length = static_cast<std::uint32_t>(bytes);
  if (!rail_->push(header, data, bytes)) return Outcome::kNoRoom;
  counters_.inline_bytes += bytes;
  item.request->flows[item.step->peer].sent += bytes;
  uses_.executor.sent(*item.request);
  return Outcome::kSent;
}

Port::Outcome MemoryPort::send_reference(const SendItem& item, wire::Header& header,
                                         const std::byte* data, std::size_t bytes) {
  Request& request = *item.request;
  Segment& segment = request.chunks[item.chunk].segments[item.segment];
  PeerFlow& flow = request.flows[item.step->peer];
  Reference reference{0, Reference::kNowhere};
  const bool staged = item.step->copied || !uses_.memory.arena().contains(data, bytes);
  if (!staged) {
    reference = in_place(item, data, bytes);
  } else if (const Outcome outcome = stage(item, data, bytes, reference);
             outcome != Outcome::kSent || request.finished()) {
    return outcome;
  }
  header.flags |= wire::kFlagReference;
  header.length = sizeof reference;
  if (!rail_->push(header, &reference, sizeof reference, bytes)) {
    if (staged && segment.readers == 0) uses_.endings.release_slot(request, segment);
    return Outcome::kNoRoom;
  }
  ++segment.readers;
  ++flow.lent;
  flow.sent += bytes;
  counters_.reference_bytes += bytes;
  return Outcome::kSent;
}

Reference MemoryPort::in_place(const SendItem& item, const std::byte* data,
                               std::size_t bytes) const {
  const Request& request = *item.request;
  const Chunk& chunk = request.chunks[item.chunk];
  const Arena& arena = uses_.memory.arena();
  Reference reference{arena.offset_of(data), Reference::kNowhere};
  const bool wide = request.wide && !item.step->complete;
  if (wide || chunk.target == nullptr) return reference;
  const std::byte* home = chunk.target + item.segment * chunk.segment_count * request.item_size;
  if (arena.contains(home, bytes)) reference.give_back = arena.offset_of(home);
  return reference;
}

// Copy the data into a slot, unless they are in one. Return kSent if they are in a slot, or if the
// request has failed for want of one.
Port::Outcome MemoryPort::stage(const SendItem& item, const std::byte* data, std::size_t bytes,
                                Reference& reference) {
  Request& request = *item.request;
  Segment& segment = request.chunks[item.chunk].segments[item.segment];
  PeerFlow& flow = request.flows[item.step->peer];
  if (!flow.credit_blocked.empty()) return Outcome::kBlocked;
  if (segment.slot >= 0 && segment.slot_complete != item.step->complete) return Outcome::kBlocked;
  if (segment.slot < 0) {
    // The peer returns no slot before it has that segment of all nodes.
    if (flow.slots >= std::max(kSlotsPerPeer, request.program->own_nodes()))
      return Outcome::kBlocked;
    segment.slot = uses_.memory.take_slot();
    if (segment.slot < 0) {
      uses_.endings.lacks_slot(request);
      return Outcome::kSent;  // nothing waits for the send
    }
    segment.slot_peer = item.step->peer;
    segment.slot_complete = item.step->complete;
    ++flow.slots;
    kernels::copy(uses_.memory.slot(segment.slot), data, bytes, false);
    counters_.staged_bytes += bytes;
  }
  reference.offset = reference.give_back =
      uses_.memory.arena().offset_of(uses_.memory.slot(segment.slot));
  return Outcome::kSent;
}

bool MemoryPort::control(wire::Header header, const std::string& text) {
  header.length = static_cast<std::uint32_t>(text.size());
  return rail_ != nullptr && rail_->push(header, text.data(), text.size());
}

void MemoryPort::flush() {
  if (rail_ != nullptr) rail_->notify();
}

bool MemoryPort::handled(Mark& mark) const {
  if (mark.position == 0 && rail_->frames_sent >= mark.frames) mark.position = rail_->written();
  return mark.position > 0 && rail_->read_by_peer() >= mark.position;
}

std::uint64_t MemoryPort::unmap() {
  RailStatus last = status();
  last.state = "ended";
  ended_ = std::move(last);
  counters_.wakeups += rail_->wakeups;
  const std::unique_ptr<ShmRail> rail = std::move(rail_);
  return uses_.memory.arena().offset_of(rail->receive_ring());
}

}  // namespace slackline
