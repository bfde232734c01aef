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
#include "shares.h"
#include "slackline/failure.h"
#include "slackline/wire.h"

namespace slackline {

class CompletionQueue;
class Gate;
class Group;
class Link;
struct Request;
struct Operation;

// The identity of the operation that a frame belongs to. `role` distinguishes point-to-point sends
// and receives, which contain the peer's rank, from collectives.
struct Key {
  std::uint64_t tag;
  std::uint32_t epoch;
  std::uint32_t role;
  bool operator==(const Key&) const = default;
};
constexpr std::uint32_t kRoleCollective = 0;
// Collectives that were posted in a callback of another operation. They have no sequence numbers:
// the caller gives their identity, which is used once. In the first class, bits 55-44 stand for the
// callback, bits 43-32 for the place in the callback and bits 31-0 for the number of the other
// operation. In the second class, bits 55-0 are a hash.
constexpr int kCallbackClass = 7;
constexpr int kNestedCallbackClass = 8;
constexpr bool in_callback(std::uint64_t tag) {
  return tag >> 56 == kCallbackClass || tag >> 56 == kNestedCallbackClass;
}
// Return the words by which messages name an operation: its tag and its number, or its callback.
std::string number_words(std::uint64_t tag);
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

// A payload that has arrived and has not been consumed yet.
struct PendingPayload {
  PendingPayload* next = nullptr;
  Link* link = nullptr;
  const std::byte* data = nullptr;
  // Freed together with this object. Null when `data` is a rail's buffer or a peer's memory.
  std::byte* owned = nullptr;
  // Peer memory into which the result may be written instead of sending a frame, or null.
  std::byte* give_back = nullptr;
  std::uint32_t length = 0;
  std::uint16_t peer = 0;
  std::uint16_t chunk = 0;
  std::uint16_t flags = 0;
  // The result was written through `give_back`, so the reply is WRITTEN instead of RELEASE.
  bool answered = false;
};

// A frame of an operation that has not been posted here.
struct Unexpected {
  Link* link;
  wire::Header header;
  std::vector<std::byte> payload;
};

struct Segment {
  PendingPayload* first = nullptr;
  std::int32_t slot = -1;       // own staging slot that peers read, -1 for none
  std::uint16_t slot_peer = 0;  // the peer whose slot limit counts this slot
  std::uint16_t position = 0;   // index of the next step of the step list
  std::uint16_t readers = 0;    // peers that still read `slot` or the registered memory
  // Sends whose data must be copied before a REDUCE_ALL may overwrite the data.
  std::uint16_t uncopied = 0;
  bool slot_complete = false;  // `slot` holds the final value, not a partial sum
  bool handed = false;         // the device has received the input of the step at `position`
  bool answered = false;       // the device has returned the output of that step
};

struct Chunk {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::byte* partial = nullptr;   // location of partial sums: the target, or scratch memory
  std::size_t count = 0;          // elements
  std::size_t segment_count = 0;  // elements per segment
  std::vector<Segment> segments;
  const StepList* step_list = nullptr;
  bool offloaded = false;  // the group's device adds
  bool announced = false;  // the device knows of the chunk
  // Arena memory that the device reads and writes.
  std::byte* device_memory = nullptr;
};

// A segment that is queued to be sent.
struct SendItem {
  std::shared_ptr<Request> request;
  std::uint32_t chunk = 0;  // index into request->chunks
  std::uint32_t segment = 0;
  const Step* step = nullptr;
};

// The data of one operation from this rank to one peer. All counts of a flow are totals since the
// operation began.
struct SentFlow {
  std::uint64_t granted = 0;  // payload bytes that the peer allows us to send
  std::uint64_t sent = 0;     // payload bytes sent to the peer
  bool asked = false;         // this rank has asked the peer for a grant, or will
  bool asks = false;          // a grant was requested and has not come yet
  // Staging slots in use for this peer. Each peer has its own limit, so that no peer waits for
  // slots that another peer uses.
  int slots = 0;
  // References that the peer has neither released nor answered by a result. The peer may read and
  // write the memory that they name.
  std::uint32_t lent = 0;
  // Items that wait for credit or for a slot, in order.
  std::vector<SendItem> credit_blocked;
};

// The data of one operation from one peer to this rank.
struct ReceivedFlow {
  std::uint64_t incoming = 0;  // payload bytes that the peer will send
  std::uint64_t received = 0;  // payload bytes received from the peer
  std::uint64_t consumed = 0;  // payload bytes from the peer that have left our buffers
  std::uint64_t promised = 0;  // payload bytes that we have granted to the peer
  std::uint32_t arrived = 0;   // segments received before adding starts
  bool heard = false;          // at least one frame of the peer has arrived
  bool answered = false;       // the peer has asked this rank for a grant; a peer asks once
  // Payload bytes, of `incoming`, that wait here until a REDUCE_ALL consumes them. Grants are
  // limited as long as more of them are to come than may wait at a time.
  std::uint64_t buffered = 0;
  std::uint64_t reduced = 0;  // of `buffered`, those that a REDUCE_ALL has consumed
};

struct PeerFlow : SentFlow, ReceivedFlow {
  // Return whether part of the peer's data is still missing.
  bool lacks_data() const { return received < incoming; }
};

// A copy of this rank's contribution to an operation at an aggregator. The copy outlives the
// operation until every worker has the result, because other ranks may have to repeat the operation
// after the aggregator is lost.
struct ReplayCopy {
  Blocks::Block memory;
  std::size_t bytes = 0;
  std::size_t have = 0;  // bytes copied so far, from the front
  wire::DType dtype{};
  wire::ReduceOp op{};
  std::uint64_t count = 0;
  std::int64_t timeout_ns = 0;
  std::shared_ptr<const Program> program;  // of the repetition
};

enum class RequestState : std::uint8_t { kPosted = 0, kDone = 1, kFailed = 2 };

// The parameters of an operation.
struct RequestKind {
  wire::Collective collective{};
  wire::DType dtype{};
  wire::ReduceOp op{};
  bool wide = false;     // partial sums travel as fp32 (half types in rank order)
  int divisor = 1;       // AVG: the number of ranks, or of a tree's leaves
  int last_divisor = 1;  // AVG: divisor applied once the sum is complete on this rank
  int priority = 0;      // lower is sent first
  // The number of the post at this rank. Of requests with one priority the first is sent first, so
  // that the sums of an operation do not wait behind the data of later ones.
  std::uint64_t order = 0;
  std::size_t item_size = 0;
  std::uint64_t total = 0;
  std::uint16_t digest = 0;  // of the tree in which the operation adds; 0 without
};

// The times of an operation; 0 until they are known.
struct RequestTimes {
  std::int64_t posted_ns = 0;
  std::int64_t deadline_ns = 0;
  std::int64_t ended_ns = 0;
  // For the log of operations, where the engine has one.
  std::int64_t started_ns = 0;
  std::int64_t waiting_since_ns = 0;  // 0 while no thread is blocked until the end
  std::int64_t waited_ns = 0;         // earlier waits that ended before the operation did
  int waiting_threads = 0;
};

// The progress of an operation, and the memory that it uses.
struct RequestProgress {
  bool active = false;              // registered in the engine's table
  std::uint32_t rails = 0;          // see OperationRecord::rails
  std::vector<Chunk> chunks;        // same order as program->step_lists
  std::vector<PeerFlow> flows;      // by rank
  std::vector<std::byte*> scratch;  // arena blocks for partial sums
  std::size_t open_segments = 0;    // segments that have not passed the end of their step list
  std::size_t open_sends = 0;       // sent frames whose memory is still in use
};

// A receive from any source.
struct AnySource {
  bool any = false;
  int any_source = -1;  // the rank that sent
  std::byte* any_target = nullptr;
  std::uint64_t any_count = 0;
};

// The part of an operation that the roles of this rank use.
struct RequestRoles {
  std::shared_ptr<ReplayCopy> replay_copy;  // set at a worker of an aggregator
  // At an aggregator: the segments of each worker that must be here before anything is added; 0
  // once they are.
  std::uint32_t onset = 0;
  bool aggregated = false;  // an aggregator adds, or this operation repeats one that it has lost
  bool offloaded = false;   // the group's device adds
};

// The end of an operation, and who is told of it.
struct RequestEnd {
  Failure failure;
  std::atomic<RequestState> state{RequestState::kPosted};
  bool refused = false;        // failed before any of its data moved
  bool told = false;           // failed, and the peers with memory of this rank were told
  bool async_counted = false;  // no caller drives the operation
  bool wants_callback = false;
  // The next ended operation in Completions, and in `queue`.
  std::shared_ptr<Request> next_completed, next_in_queue;
  std::shared_ptr<CompletionQueue> queue;  // of the thread that waits for the end, or null
  std::vector<std::shared_ptr<Gate>> gates;
};

struct Request : std::enable_shared_from_this<Request>,
                 RequestKind,
                 RequestTimes,
                 RequestProgress,
                 AnySource,
                 RequestRoles,
                 RequestEnd {
  std::shared_ptr<Group> group;
  std::shared_ptr<const Program> program;
  std::shared_ptr<const Shares> shares;  // null for equal chunks
  // Set while the shares are not known, so that the buffer cannot be divided into chunks yet.
  std::shared_ptr<const Operation> undivided;
  Key key{};

  bool finished() const { return state.load(std::memory_order_acquire) != RequestState::kPosted; }
  std::uint32_t sequence() const { return static_cast<std::uint32_t>(key.tag); }
  std::uint32_t user_tag() const { return static_cast<std::uint32_t>(key.tag >> 32) & 0xFFFFFFu; }
};

}  // namespace slackline
