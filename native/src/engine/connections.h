// The calls of an engine about its links and rails (paths to peers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../base/injector.h"
#include "../rail/wire_rail.h"
#include "entry.h"
#include "rail_status.h"
#include "slackline/arena.h"

namespace slackline {

// Any thread may make any call. A call about a link that has ended and was removed does nothing.
class Connections {
 public:
  explicit Connections(Entry& entry) : entry_(entry) {}

  // Return the eventfd to which peers in other processes write.
  int doorbell_fd() const { return entry_.machine.sleep().loop().doorbell_fd(); }
  // Return the offset of a new ring in the arena, into which a peer will write.
  std::uint64_t new_ring();
  // Free a ring that no rail has and no peer writes to. Return false when `offset` has no ring.
  bool free_ring(std::uint64_t offset);
  // Add a link to one peer, without a rail as yet. The first operation that needs the peer causes
  // the event "wanted" and waits for a rail. The other parameters are passed to Link.
  int add_link(std::string name, bool reconnect = false, std::uint32_t first_sequence = 1,
               bool shared = false);
  // Add a rail to a link and take ownership of `fd`. `rail` is the rail's index, the same at both
  // ends; an existing rail with that index is replaced. `job` is the job code that every frame
  // carries. `most_packet_bytes` limits the payload of a UDP packet to what the peer's NIC takes.
  void add_rail(int link, int rail, RailKind kind, int fd, std::uint32_t job, bool checksums = true,
                std::string name = {}, std::size_t most_packet_bytes = 65'535);
  // Add a rail over a peer's arena that this process has mapped; take ownership of the descriptors.
  void add_shm_rail(int link, std::shared_ptr<PeerArena> arena, int doorbell_fd, int control_fd,
                    std::uint64_t receive_ring, std::uint64_t send_ring);
  // Map the peer's arena behind `arena_fd`, and add a rail over it.
  void add_shm_rail(int link, int arena_fd, std::size_t arena_bytes, int doorbell_fd,
                    int control_fd, std::uint64_t receive_ring, std::uint64_t send_ring);
  void drop_rail(int link, int rail, const std::string& reason);
  // End a link because its peer's process is known to be gone.
  void unreachable(int link, const std::string& reason);
  // Set the reason why there is no first rail yet.
  void hindered(int link, const std::string& why);
  // Let a link that has had no rail use wires in place of the planned shared memory.
  void use_wires(int link);
  // End a link that has had no rail and that no group has. Groups that open later need another one.
  void forget_link(int link);
  void set_fault(int link, int rail, const std::optional<FaultState>& state);
  bool link_alive(int link);
  // Block until a rail changes state. Return nothing once the engine is closed.
  std::optional<RailEvent> next_event();
  // Return the state of every rail, rails of lost links included.
  std::vector<RailStatus> rails();

 private:
  template <class Change>
  void change(int link, const Change& make);

  Entry& entry_;
};

}  // namespace slackline
