#include "connections.h"

#include <unistd.h>

#include <utility>

#include "../rail/far.h"
#include "../rail/shm.h"
#include "../rail/stream.h"
#include "../rail/udp.h"
#include "wire_port.h"

namespace slackline {

// Make a change of a link, unless the link has been removed, as all are once the engine is closed,
// and have a thread work on what the change causes.
template <class Change>
void Connections::change(int link, const Change& make) {
  const Driver::Lock lock = entry_.lock();
  Link* target = entry_.machine.links().find(link);
  if (target == nullptr) return;
  entry_.change([&] { make(*target); });
  entry_.machine.driver().wake();
}

std::uint64_t Connections::new_ring() {
  const Driver::Lock lock = entry_.lock();
  return entry_.machine.links().rings().make();
}

bool Connections::free_ring(std::uint64_t offset) {
  const Driver::Lock lock = entry_.lock();
  return entry_.machine.links().rings().free(offset);
}

int Connections::add_link(std::string name, bool reconnect, std::uint32_t first_sequence,
                          bool shared) {
  const Driver::Lock lock = entry_.lock();
  return entry_.machine.links().add(entry_.machine.link_uses(), std::move(name),
                                    {reconnect, first_sequence, shared});
}

void Connections::add_rail(int link, int rail, RailKind kind, int fd, std::uint32_t job,
                           bool checksums, std::string name, std::size_t most_packet_bytes) {
  std::unique_ptr<WireRail> wire;
  try {
    entry_.check_process();
    if (kind == RailKind::kTcp)
      wire = std::make_unique<StreamRail>(fd, job, checksums, leaves_host(fd));
    else
      wire = std::make_unique<UdpRail>(fd, job, most_packet_bytes);
  } catch (...) {
    ::close(fd);
    throw;
  }
  change(link, [&](Link& target) {
    if (target.down) return;  // the rail closes the descriptor
    entry_.machine.links().watch().add(target, rail, *wire);
    target.add_rail(rail, name.empty() ? name_of(kind) : std::move(name), std::move(wire));
  });
}

void Connections::add_shm_rail(int link, int arena_fd, std::size_t arena_bytes, int doorbell_fd,
                               int control_fd, std::uint64_t receive_ring,
                               std::uint64_t send_ring) {
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

void Connections::add_shm_rail(int link, std::shared_ptr<PeerArena> arena, int doorbell_fd,
                               int control_fd, std::uint64_t receive_ring,
                               std::uint64_t send_ring) {
  std::unique_ptr<ShmRail> rail;
  try {
    entry_.check_process();
    rail = std::make_unique<ShmRail>(entry_.machine.memory().arena(), std::move(arena), doorbell_fd,
                                     control_fd, receive_ring, send_ring);
  } catch (...) {
    for (const int fd : {doorbell_fd, control_fd}) ::close(fd);
    throw;
  }
  change(link, [&](Link& target) {
    if (target.down) return;  // the rail closes its descriptors
    target.share(std::move(rail));
  });
}

void Connections::drop_rail(int link, int rail, const std::string& reason) {
  change(link, [&](Link& target) {
    WirePort* port = wires_of(target);
    LinkRail* found = port == nullptr ? nullptr : port->rail(rail);
    if (found == nullptr) return;  // the rail has already gone
    found->wire->give_up(reason);
    if (target.reap()) entry_.machine.groups().lost(target);
  });
}

void Connections::unreachable(int link, const std::string& reason) {
  change(link, [&](Link& target) {
    if (target.down) return;
    target.port().drain();  // what the peer sent before its end comes first
    if (target.give_up(reason)) entry_.machine.groups().lost(target);
  });
}

void Connections::hindered(int link, const std::string& why) {
  const Driver::Lock lock = entry_.lock();
  if (Link* target = entry_.machine.links().find(link)) target->hindered(why);
}

void Connections::use_wires(int link) {
  const Driver::Lock lock = entry_.lock();
  if (Link* target = entry_.machine.links().find(link)) target->use_wires();
}

void Connections::forget_link(int link) {
  change(link, [&](Link& target) {
    if (!entry_.machine.tables().membership.refers_to(target))
      target.forget("it is in no group, and was never connected");
  });
}

void Connections::set_fault(int link, int rail, const std::optional<FaultState>& state) {
  change(link, [&](Link& target) {
    target.port().inject(rail, state);
    entry_.machine.links().mark_dirty(target);
  });
}

bool Connections::link_alive(int link) {
  const Driver::Lock lock = entry_.lock();
  const Link* found = entry_.machine.links().find(link);
  return found != nullptr && !found->down && !found->said_bye;
}

std::optional<RailEvent> Connections::next_event() {
  Driver::Lock lock = entry_.lock_to_wait();
  return entry_.machine.links().events().next(lock, entry_.machine.driver().stopped());
}

std::vector<RailStatus> Connections::rails() {
  const Driver::Lock lock = entry_.lock();
  return entry_.machine.links().rails();
}

}  // namespace slackline
