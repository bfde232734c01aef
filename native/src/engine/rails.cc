// The engine's calls about rails (paths to a peer): adding and closing rails, shared memory, fault
// injection, and reports of the state of rails.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "../base/clock.h"
#include "../rail/far.h"
#include "../rail/stream.h"
#include "../rail/udp.h"
#include "engine_impl.h"

namespace slackline {
void Engine::add_rail(int link, int rail, RailKind kind, int fd, std::uint32_t job, bool checksums,
                      std::string name, std::size_t most_packet_bytes) {
  const Lock lock = lock_for_post();
  std::unique_ptr<WireRail> wire;
  try {
    if (kind == RailKind::kTcp)
      wire = std::make_unique<StreamRail>(fd, job, checksums, leaves_host(fd));
    else
      wire = std::make_unique<UdpRail>(fd, job, most_packet_bytes);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (links_.empty()) return;  // the engine is closed; the rail has closed the descriptor
  Link& target = links_.at(link);
  if (target.down) return;
  links_.rail_added(target, rail, *wire);
  change([&] {
    target.add_rail(rail, name.empty() ? name_of(kind) : std::move(name), std::move(wire));
  });
  wake();
}

std::uint64_t Engine::new_ring() {
  const Lock lock = lock_for_post();
  const std::uint64_t ring = make_ring(arena_);
  try {
    rings_.insert(ring);
  } catch (const std::bad_alloc&) {
    arena_.free(arena_.at(ring));
    throw;
  }
  return ring;
}

bool Engine::free_ring(std::uint64_t offset) {
  const Lock lock = lock_for_post();
  return drop_ring(offset);
}

bool Engine::drop_ring(std::uint64_t offset) {
  return rings_.erase(offset) > 0 && arena_.free(arena_.at(offset));
}

void Engine::add_shm_rail(int link, int arena_fd, std::size_t arena_bytes, int doorbell_fd,
                          int control_fd, std::uint64_t receive_ring, std::uint64_t send_ring) {
  std::shared_ptr<PeerArena> arena;
  try {
    arena = std::make_shared<PeerArena>(arena_fd, arena_bytes);
  } catch (...) {
    for (const int fd : {arena_fd, doorbell_fd, control_fd}) ::close(fd);
    throw;
  }
  ::close(arena_fd);
  add_shm_rail(link, std::move(arena), doorbell_fd, control_fd, receive_ring, send_ring);
}

void Engine::add_shm_rail(int link, std::shared_ptr<PeerArena> arena, int doorbell_fd,
                          int control_fd, std::uint64_t receive_ring, std::uint64_t send_ring) {
  const Lock lock = lock_for_post();
  std::unique_ptr<ShmRail> rail;
  try {
    rail = std::make_unique<ShmRail>(arena_, std::move(arena), doorbell_fd, control_fd,
                                     receive_ring, send_ring);
  } catch (...) {
    for (const int fd : {doorbell_fd, control_fd}) ::close(fd);
    throw;
  }
  // The engine is closed, or the link has ended: the rail closes its descriptors.
  if (links_.empty() || links_.at(link).down) return;
  change([&] { links_.at(link).set_shm(std::move(rail)); });
  loop_.watch_control(control_fd, link);
  wake();
}

void Engine::use_wires(int link) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  links_.at(link).use_wires();
}

// Unmap the arena of a peer that has gone, and free the ring that the peer wrote to, once nothing
// reads them any more. A peer that is alive may still write, so its link keeps both.
void Engine::release_memory(Link& link) {
  if (!link.down || link.shm() == nullptr || !link.shm()->peer_gone() || reads_memory_of(link))
    return;
  const std::unique_ptr<ShmRail> rail = link.take_shm();
  drop_ring(arena_.offset_of(rail->receive_ring()));
}

// Return whether a payload that the peer sent before its end is still to be read from the peer's
// memory. Such a payload is still used if the peer left in good order.
bool Engine::reads_memory_of(const Link& link) const {
  if (unexpected_.refer_to_memory_of(link)) return true;
  for (const auto& [key, request] : operations_.started()) {
    if (request->group->rank_of(link) < 0) continue;
    for (const Chunk& chunk : request->chunks) {
      for (const Segment& segment : chunk.segments) {
        for (const PendingPayload* s = segment.first; s != nullptr; s = s->next) {
          if (s->link == &link && (s->flags & wire::kFlagReference) != 0) return true;
        }
      }
    }
  }
  return false;
}

void Engine::drop_rail(int link, int rail, const std::string& reason) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  Link& target = links_.at(link);
  LinkRail* found = target.rail(rail);
  if (found == nullptr) return;  // the rail has already gone
  change([&] {
    found->wire->give_up(reason);
    if (target.reap()) link_lost(target);
  });
  wake();
}

void Engine::unreachable(int link, const std::string& reason) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  Link& target = links_.at(link);
  change([&] {
    for (auto& rail : target.rails()) {  // what the peer sent before its end comes first
      while (poll_rail(target, *rail->wire)) {
      }
    }
    if (target.give_up(reason)) link_lost(target);
  });
  wake();
}

void Engine::set_fault(int link, int rail, const std::optional<FaultState>& state) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return;  // the engine is closed
  Link& target = links_.at(link);
  change([&] {
    if (target.shm() != nullptr) target.shm()->inject(state);
    for (auto& each : target.rails()) {
      if (rail < 0 || each->index == rail) each->wire->inject(state);
    }
  });
  links_.mark_dirty(target);
  wake();
}

std::optional<RailEvent> Engine::next_event() {
  check_process();
  Lock lock(mutex_);
  return links_.next_event(lock, stopped_);
}

std::vector<RailStatus> Engine::rails() {
  const Lock lock = lock_for_post();
  return links_.rails();
}

std::map<std::string, std::uint64_t> Engine::counters() {
  const Lock lock = lock_for_post();
  return last_counters_.empty() ? count() : last_counters_;
}

std::map<std::string, std::uint64_t> Engine::count() {
  lent_.collect();
  // Rings belong to links, not to operations, so they are counted apart.
  const std::size_t ring_bytes = rings_.size() * Arena::rounded(sizeof(Ring));
  std::map<std::string, std::uint64_t> c{{"operations", ended_operations_},
                                         {"bytes_reduced", bytes_reduced_},
                                         {"sleeps", sleeps_},
                                         {"device_frames_taken", offloaded_.frames_taken},
                                         {"device_frames_given", offloaded_.frames_given},
                                         {"arena_bytes", arena_.used() - ring_bytes},
                                         {"ring_bytes", ring_bytes},
                                         {"withheld_bytes", lent_.withheld_bytes()},
                                         {"slots", slots_.size() - vacant_slots_.size()}};
  links_.count(c);
  return c;
}

}  // namespace slackline
