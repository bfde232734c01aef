// A rail (one path to a peer) between two processes of one host: a ring of frames in the receiver's
// arena for each direction. Each process maps both arenas.
//
// Short payloads travel in the ring. Long ones stay in the sender's arena, and the frame carries a
// Reference to them. Each ring has one producer and one consumer. A consumer that goes to sleep
// sets the doorbell word in its arena, and a producer that finds the word set writes to the
// consumer's eventfd.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "../base/injector.h"
#include "rail.h"
#include "slackline/arena.h"

namespace slackline {

// The first cache line of every arena: tells the peers whether the arena's owner sleeps.
struct Doorbell {
  std::atomic<std::uint32_t> sleeping;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Order this thread's earlier stores before its later loads of other words. A sleeper sets its
// flag and then looks for frames; a writer stores a frame and then looks at the flag. The fence
// guarantees that at least one of them sees the other's store.
inline void store_before_load() {
#if defined(__SANITIZE_THREAD__)
  thread_local std::atomic<int> word;  // ThreadSanitizer does not model fences
  word.exchange(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

struct Ring {
  static constexpr std::size_t kBytes = 256u << 10;
  alignas(64) std::atomic<std::uint64_t> tail;  // bytes ever written; stored by the producer
  alignas(64) std::atomic<std::uint64_t> head;  // bytes ever read; stored by the consumer
  std::atomic<std::uint32_t> producer_waits;    // set by the producer when it found no room
  alignas(64) std::byte data[kBytes];
};
static_assert(sizeof(Ring) == Ring::kBytes + 128);

// The payload of a frame with kFlagReference.
struct Reference {
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
  std::uint64_t offset;  // of the payload, in the sender's arena
  // Offset in the sender's arena at which a result of the same length may be stored, or kNowhere.
  std::uint64_t give_back;
};
static_assert(sizeof(Reference) == 16);

class ShmRail {
 public:
  static constexpr std::size_t kInlineBytes = 8u << 10;  // longer payloads are sent by reference

  // Take ownership of `doorbell_fd`, the peer's eventfd, and of `control_fd`, a socket whose end
  // of file shows that the peer is gone.
  ShmRail(const Arena& own, std::shared_ptr<PeerArena> peer, int doorbell_fd, int control_fd,
          std::uint64_t receive_ring, std::uint64_t send_ring);
  ~ShmRail();
  ShmRail(const ShmRail&) = delete;
  ShmRail& operator=(const ShmRail&) = delete;

  int control_fd() const { return control_fd_; }
  // Close the descriptors in a forked child, whose parent goes on using its own.
  void leave_to_parent();
  const void* receive_ring() const { return receive_; }
  // Append a frame to the send ring. Return false when the ring has no room; the peer then writes
  // to this rank's eventfd once there is room. `stands_for` is the number of bytes that a reference
  // lends, for faults that limit the rate.
  bool push(const wire::Header& header, const void* payload, std::size_t length,
            std::size_t stands_for = 0);
  // Apply a fault to sent frames. Only delay, jitter, rate and down have an effect, because
  // shared memory neither loses nor damages frames.
  void inject(const std::optional<FaultState>& state);
  // Return the time at which tick() should be called for frames that a fault delays.
  std::int64_t due_ns() const;
  void tick(std::int64_t now_ns);
  bool holds_back() const { return !held_.empty(); }
  // Return the number of frames passed to push() so far, those that a fault delays included.
  std::uint64_t frames_pushed() const { return frames_sent + held_.size(); }
  // Return the position in the send ring after the last frame.
  std::uint64_t written() const { return tail_; }
  // Return the position in the send ring up to which the peer has handled the frames.
  std::uint64_t read_by_peer() const { return send_->head.load(std::memory_order_acquire); }
  bool poll(Link& link, FrameSink& sink);
  bool pending() const { return head_ != receive_->tail.load(std::memory_order_acquire); }
  // Wake the peer if it sleeps and something was pushed since the last call.
  void notify();
  // Return the failure of the rail. The failure is set once the ring contains bytes that no correct
  // peer would write.
  const Failure& failure() const { return failure_; }
  // Fail the rail from this side, and let the peer see its end.
  void give_up(const char* reason);
  // Return whether the control socket has ended, because the peer is gone.
  bool peer_gone() const;
  // Return whether a push was refused and the peer has read frames since, so that the sender
  // should try again.
  bool room_again() const;
  // Return the same as room_again(), but true at most once for each refused push.
  bool take_room_again();

  std::byte* peer_memory(std::uint64_t offset, std::size_t bytes) const {
    return peer_->at(offset, bytes);
  }
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t wakeups = 0;

 private:
  std::shared_ptr<PeerArena> peer_;
  Doorbell* peer_doorbell_;
  int doorbell_fd_;
  int control_fd_;
  Ring* receive_;
  Ring* send_;
  // The positions of this process in both rings. The positions are kept privately and never read
  // back from memory that the peer can write.
  std::uint64_t head_;
  std::uint64_t tail_;
  std::uint64_t cached_head_ = 0;
  bool pushed_ = false;
  bool stalled_ = false;
  Failure failure_;

  struct Held {
    wire::Header header;
    std::vector<std::byte> payload;
    std::int64_t release_ns;
  };
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  bool push_now(const wire::Header& header, const void* payload, std::size_t length);
  // Release an entry of the receive ring to the peer.
  void move_past(std::size_t bytes);
  std::unique_ptr<Injector> injector_;
  std::deque<Held> held_;
};

// Create a ring in newly allocated arena memory and return its offset. Throws std::runtime_error
// when the arena has no room.
std::uint64_t make_ring(Arena& arena);

}  // namespace slackline
