// A posted operation while the engine works on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blocks.h"
#include "program.h"
#include "slackline/failure.h"
#include "slackline/wire.h"

namespace slackline {

class Group;
class Link;
struct Job;

// Which operation a frame belongs to. `role` tells point-to-point sends and receives, which name
// their peer, from collectives.
struct Key {
  std::uint64_t tag;
  std::uint32_t epoch;
  std::uint32_t role;
  bool operator==(const Key&) const = default;
};
constexpr std::uint32_t kRoleCollective = 0;
constexpr std::uint32_t role_receive(int peer) {
  return 0x10000u | static_cast<std::uint32_t>(peer);
}
constexpr std::uint32_t role_send(int peer) { return 0x20000u | static_cast<std::uint32_t>(peer); }

struct KeyHash {
  std::size_t operator()(const Key& k) const {
    std::uint64_t h = k.tag * 0x9E3779B97F4A7C15ull;
    h ^= (static_cast<std::uint64_t>(k.epoch) << 32 | k.role) * 0xC2B2AE3D27D4EB4Full;
    return static_cast<std::size_t>(h ^ (h >> 29));
  }
};

// A payload that arrived and was not consumed yet.
struct Stash {
  Stash* next = nullptr;
  Link* link = nullptr;
  const std::byte* data = nullptr;
  std::byte* owned =
      nullptr;  // freed with the stash; null when `data` is a rail's buffer or a peer's memory
  std::byte* give_back =
      nullptr;  // peer memory that may take the result instead of a frame, or null
  std::uint32_t length = 0;
  std::uint16_t peer = 0;
  std::uint16_t flags = 0;
  bool answered = false;  // the result was written through `give_back`: WRITTEN replaces RELEASE
};

struct Segment {
  Stash* first = nullptr;
  std::int32_t slot = -1;       // own staging slot that peers read, -1 when none
  std::uint16_t slot_lane = 0;  // the peer on whose account the slot is
  std::uint16_t position = 0;   // next step of the chain
  std::uint16_t readers = 0;    // peers that still read `slot` or the registered memory
  std::uint16_t uncopied = 0;   // sends whose copy a fold must wait for
  bool slot_complete = false;   // `slot` holds the final value, not a partial one
  bool handed = false;          // the device has what the step at `position` needs
  bool answered = false;        // and has given what the step makes
};

struct Chunk {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::byte* partial = nullptr;   // where partial sums live: the target, or scratch
  std::size_t count = 0;          // elements
  std::size_t segment_count = 0;  // elements a segment
  std::vector<Segment> segments;
  const Chain* chain = nullptr;
  bool offloaded = false;              // the group's device adds
  bool announced = false;              // the device knows of it
  std::byte* device_memory = nullptr;  // of the arena: what the device reads and writes
};

// One segment that a plan says to send.
struct SendItem {
  std::shared_ptr<Job> job;
  std::uint32_t chunk = 0;  // index into job->chunks
  std::uint32_t segment = 0;
  const Step* step = nullptr;
};

// What flows between this rank and one peer for one operation.
struct Lane {
  std::uint64_t granted = 0;   // payload bytes the peer allows us to have sent in all
  std::uint64_t sent = 0;      // payload bytes sent
  std::uint64_t incoming = 0;  // payload bytes that the peer is to send in all
  std::uint64_t received = 0;  // of them
  std::uint64_t consumed = 0;  // payload bytes of the peer that left our buffers
  std::uint64_t promised = 0;  // what we granted to the peer
  std::uint32_t arrived = 0;   // segments of the peer, counted while the job is gated
  bool heard = false;          // some frame of the peer arrived
  bool windowed = false;       // the peer's data may have to wait here: grants follow consumption
  bool asked = false;          // we asked the peer for a grant, or will
  bool asks = false;           // and the peer has not answered
  int slots = 0;  // staging slots in use for this peer: each has its own share, so that none waits
                  // for another's
  std::vector<SendItem> parked;  // wait for credit or for a slot, in order

  // Whether the peer has not sent everything yet.
  bool lacks_data() const { return received < incoming; }
};

// What this rank contributed to an operation at an aggregator. Others may have to repeat it, so it
// outlives the operation until everybody has the result.
struct Kept {
  Blocks::Block memory;
  std::size_t bytes = 0;
  std::size_t have = 0;  // copied so far, from the front
  wire::DType dtype{};
  wire::ReduceOp op{};
  std::uint64_t count = 0;
  std::int64_t timeout_ns = 0;
};

enum class JobState : std::uint8_t { kPosted = 0, kDone = 1, kFailed = 2 };

struct Job : std::enable_shared_from_this<Job> {
  std::shared_ptr<Group> group;
  std::shared_ptr<const Program> program;
  Key key{};
  wire::Collective collective{};
  wire::DType dtype{};
  wire::ReduceOp op{};
  bool wide = false;  // partial sums travel as fp32 (half types under rank order)
  int divisor = 1;    // AVG: the number of ranks
  int priority = 0;   // lower is sent first
  std::size_t item_size = 0;
  std::uint64_t total = 0;
  std::int64_t posted_ns = 0;
  std::int64_t deadline_ns = 0;
  std::int64_t ended_ns = 0;        // 0: it has not
  std::vector<Chunk> chunks;        // as program->chains
  std::vector<Lane> lanes;          // by rank
  std::vector<std::byte*> scratch;  // arena blocks for partial sums
  std::size_t open_segments = 0;    // chains not yet passed to the end
  std::size_t open_sends = 0;       // frames whose memory is still in use
  bool active = false;              // in the engine's table
  bool wants_callback = false;
  bool async_counted = false;
  int any_source = -1;  // for a receive from any source: who sent it
  std::byte* any_target = nullptr;
  std::uint64_t any_count = 0;
  bool any = false;
  std::shared_ptr<Kept> kept;  // at a worker of an aggregator
  bool gated = false;          // at an aggregator: nothing is added before the onset
  bool offloaded = false;      // the group's device adds
  int last_divisor = 1;        // AVG: divided when the sum is complete on this rank
  Failure failure;
  std::atomic<JobState> state{JobState::kPosted};

  bool finished() const { return state.load(std::memory_order_acquire) != JobState::kPosted; }
  std::uint32_t sequence() const { return static_cast<std::uint32_t>(key.tag); }
  std::uint32_t user_tag() const { return static_cast<std::uint32_t>(key.tag >> 32) & 0xFFFFFFu; }
};

}  // namespace slackline
