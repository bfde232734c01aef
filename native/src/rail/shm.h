// A rail between two processes of one host: a ring of frames in the receiver's arena, and both
// arenas mapped on both sides.
//
// Short payloads travel in the ring; long ones stay where they are and the frame carries a
// Reference. The ring has one producer and one consumer. A consumer that sleeps says so in its
// doorbell word, and a producer that finds the word set rings its eventfd.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "injector.h"
#include "rail.h"
#include "slackline/arena.h"

namespace slackline {

// The first line of every arena.
struct Doorbell {
  std::atomic<std::uint32_t> sleeping;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Orders what this thread stored before what it loads next, of another word: a sleeper that says so
// and then looks for frames, a writer that stores a frame and then looks for a sleeper.
inline void store_before_load() {
#if defined(__SANITIZE_THREAD__)
  thread_local std::atomic<int> word;  // that sanitizer knows no fences
  word.exchange(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

struct Ring {
  static constexpr std::size_t kBytes = 256u << 10;
  alignas(64) std::atomic<std::uint64_t> tail;  // bytes ever written; producer
  alignas(64) std::atomic<std::uint64_t> head;  // bytes ever read; consumer
  std::atomic<std::uint32_t> producer_waits;    // set by the producer when it found no room
  alignas(64) std::byte data[kBytes];
};
static_assert(sizeof(Ring) == Ring::kBytes + 128);

// Payload of a frame with kFlagReference.
struct Reference {
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
  std::uint64_t offset;     // in the sender's arena: the bytes
  std::uint64_t give_back;  // in the sender's arena: where a result of the same length may be
                            // stored, or kNowhere
};
static_assert(sizeof(Reference) == 16);

class ShmRail {
 public:
  static constexpr std::size_t kInlineBytes = 8u << 10;  // longer payloads go by reference

  // Owns `doorbell_fd` (rings the peer) and `control_fd` (a socket whose end tells that the peer is
  // gone).
  ShmRail(const Arena& own, std::unique_ptr<PeerArena> peer, int doorbell_fd, int control_fd,
          std::uint64_t receive_ring, std::uint64_t send_ring);
  ~ShmRail();
  ShmRail(const ShmRail&) = delete;
  ShmRail& operator=(const ShmRail&) = delete;

  int control_fd() const { return control_fd_; }
  // False when the ring has no room; the peer will then ring our doorbell once it has.
  // `stands_for`: bytes that a reference lends, which a fault's rate counts.
  bool push(const wire::Header& header, const void* payload, std::size_t length,
            std::size_t stands_for = 0);
  // Memory loses nothing and damages nothing: of faults, delay, jitter, rate and down count.
  void inject(const std::optional<FaultState>& state);
  // When what a fault holds back wants its tick().
  std::int64_t due_ns() const;
  void tick(std::int64_t now_ns);
  bool holds_back() const { return !held_.empty(); }
  bool poll(Link& link, FrameSink& sink);
  bool pending() const { return head_ != receive_->tail.load(std::memory_order_acquire); }
  // Wakes the peer when it sleeps and something was pushed since the last call.
  void notify();
  // Set once the ring holds what no peer of ours would write.
  const Failure& failure() const { return failure_; }
  // True once the control socket has ended.
  bool peer_gone();
  // A push was refused and the peer has taken frames since: time to try again.
  bool room_again() const;
  // As room_again, and true only once for each refusal.
  bool take_room_again();

  std::byte* peer_memory(std::uint64_t offset, std::size_t bytes) const {
    return peer_->at(offset, bytes);
  }
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t wakeups = 0;

 private:
  std::unique_ptr<PeerArena> peer_;
  Doorbell* peer_doorbell_;
  int doorbell_fd_;
  int control_fd_;
  Ring* receive_;
  Ring* send_;
  // Where we are in either ring. What the peer could have written there is never read back.
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
  std::unique_ptr<Injector> injector_;
  std::deque<Held> held_;
};

// Lays out a ring in fresh arena memory; returns its offset.
std::uint64_t make_ring(Arena& arena);

}  // namespace slackline
