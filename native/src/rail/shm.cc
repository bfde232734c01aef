#include "shm.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "../base/clock.h"
#include "../base/descriptor.h"

namespace slackline {
namespace {

constexpr std::size_t kLine = 64;
std::size_t entry_bytes(std::size_t payload) {
  return sizeof(wire::Header) + (payload + kLine - 1) / kLine * kLine;
}

Ring* ring_at(std::byte* memory) { return std::launder(reinterpret_cast<Ring*>(memory)); }

// Return the ring at this offset of a peer's arena. The offset comes from the peer.
Ring* ring_of(const PeerArena& peer, std::uint64_t offset) {
  std::byte* memory = peer.at(offset, sizeof(Ring));
  if (memory == nullptr) throw std::invalid_argument("a peer's ring lies outside its arena");
  if (offset % kLine != 0) throw std::invalid_argument("a peer's ring begins within a line");
  return ring_at(memory);
}

// Check that a write to a descriptor of a peer neither blocks nor raises a signal.
void require_doorbell(int fd) {
  constexpr std::string_view kEventfd = "anon_inode:[eventfd]";
  std::array<char, 64> name{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(path.c_str(), name.data(), name.size());
  if (length < 0 || std::string_view(name.data(), static_cast<std::size_t>(length)) != kEventfd ||
      (::fcntl(fd, F_GETFL) & O_NONBLOCK) == 0)
    throw std::invalid_argument("a peer's doorbell must be an eventfd that does not block");
}

}  // namespace

std::uint64_t make_ring(Arena& arena) {
  std::byte* memory = arena.allocate(sizeof(Ring));
  if (memory == nullptr) throw std::runtime_error("the arena has no room for a ring");
  Ring* ring = new (memory) Ring;
  ring->tail.store(0, std::memory_order_relaxed);
  ring->head.store(0, std::memory_order_relaxed);
  ring->producer_waits.store(0, std::memory_order_release);
  return arena.offset_of(memory);
}

ShmRail::ShmRail(const Arena& own, std::shared_ptr<PeerArena> peer, int doorbell_fd, int control_fd,
                 std::uint64_t receive_ring, std::uint64_t send_ring)
    : peer_(std::move(peer)),
      peer_doorbell_(std::launder(reinterpret_cast<Doorbell*>(peer_->at(0, sizeof(Doorbell))))),
      doorbell_fd_(doorbell_fd),
      control_fd_(control_fd),
      receive_(ring_at(own.at(receive_ring))),
      send_(ring_of(*peer_, send_ring)),
      head_(receive_->head.load()),
      tail_(send_->tail.load()) {
  require_doorbell(doorbell_fd);
  if (head_ % kLine != 0 || tail_ % kLine != 0)
    throw std::invalid_argument("a peer's ring has entries that begin within a line");
}

ShmRail::~ShmRail() { leave_to_parent(); }

void ShmRail::leave_to_parent() {
  close_once(doorbell_fd_);
  close_once(control_fd_);
}

bool ShmRail::push(const wire::Header& header, const void* payload, std::size_t length,
                   std::size_t stands_for) {
  if (injector_ == nullptr && held_.empty()) return push_now(header, payload, length);
  std::int64_t release = 0;
  if (injector_ != nullptr) {
    release = injector_->decide(now_ns(), sizeof header + length + stands_for).release_ns;
    if (injector_->state().down) release = kNever;
  }
  const auto* bytes = static_cast<const std::byte*>(payload);
  held_.push_back(Held{header, {bytes, bytes + length}, release});
  return true;
}

void ShmRail::inject(const std::optional<FaultState>& state) {
  injector_ = state ? std::make_unique<Injector>(*state) : nullptr;
  for (Held& held : held_) {
    if (held.release_ns == kNever) held.release_ns = 0;
  }
}

std::int64_t ShmRail::due_ns() const {
  return held_.empty() || stalled_ ? kNever : held_.front().release_ns;
}

void ShmRail::tick(std::int64_t now_ns) {
  while (!held_.empty() && held_.front().release_ns <= now_ns) {
    const Held& held = held_.front();
    if (!push_now(held.header, held.payload.data(), held.payload.size())) return;
    held_.pop_front();
  }
}

bool ShmRail::push_now(const wire::Header& header, const void* payload, std::size_t length) {
  const std::size_t need = entry_bytes(length);
  std::uint64_t tail = tail_;
  std::size_t at = tail % Ring::kBytes;
  const std::size_t skip =
      at + need > Ring::kBytes ? Ring::kBytes - at : 0;  // entries do not wrap around
  if (tail + skip + need - cached_head_ > Ring::kBytes) {
    cached_head_ = send_->head.load(std::memory_order_acquire);
    if (tail + skip + need - cached_head_ > Ring::kBytes) {
      send_->producer_waits.store(1, std::memory_order_seq_cst);
      cached_head_ = send_->head.load(std::memory_order_seq_cst);
      if (tail + skip + need - cached_head_ > Ring::kBytes) {
        stalled_ = true;
        return false;
      }
      send_->producer_waits.store(0, std::memory_order_relaxed);
    }
  }
  if (skip > 0) {
    wire::Header filler{};  // magic 0: the reader skips to the start of the ring
    std::memcpy(send_->data + at, &filler, sizeof filler);
    tail += skip;
    at = 0;
  }
  std::memcpy(send_->data + at, &header, sizeof header);
  if (length > 0) std::memcpy(send_->data + at + sizeof header, payload, length);
  tail_ = tail + need;
  send_->tail.store(tail_, std::memory_order_release);
  ++frames_sent;
  pushed_ = true;
  return true;
}

void ShmRail::notify() {
  if (!pushed_) return;
  pushed_ = false;
  store_before_load();
  if (peer_doorbell_->sleeping.load(std::memory_order_relaxed) == 0) return;
  if (peer_doorbell_->sleeping.exchange(0, std::memory_order_seq_cst) == 0) return;
  const std::uint64_t one = 1;
  ++wakeups;
  while (::write(doorbell_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

bool ShmRail::poll(Link& link, FrameSink& sink) {
  bool any = false;
  for (int frames = 0; frames < 64 && !failure_ && !(any && sink.lock_wanted()); ++frames) {
    const std::uint64_t ahead = receive_->tail.load(std::memory_order_acquire) - head_;
    if (ahead == 0) break;
    if (ahead > Ring::kBytes || ahead % kLine != 0) {
      failure_.fault = Fault::kFrame;
      failure_.message = "the ring's write position is impossible: the ring is corrupted";
      break;
    }
    const std::size_t at = head_ % Ring::kBytes;
    wire::Header header;
    std::memcpy(&header, receive_->data + at, sizeof header);
    const bool filler = header.magic == 0;
    const std::size_t here = Ring::kBytes - at;
    const std::size_t whole = filler ? here : entry_bytes(header.length);
    const bool frame = header.magic == wire::kMagic && header.length <= kInlineBytes;
    if (!(filler || frame) || whole > here || whole > ahead) {
      failure_.fault = Fault::kFrame;
      failure_.message = "the ring has an entry that is no frame: the ring is corrupted";
      break;
    }
    any = true;
    if (!frame) {
      move_past(whole);
      continue;
    }
    // Lend the payload to the sink directly from the ring, and release the entry afterwards.
    ++frames_received;
    try {
      sink.arrive(link, header,
                  Payload{receive_->data + at + sizeof header, nullptr, header.length});
    } catch (...) {
      move_past(whole);  // no frame is handled twice, whatever ends its handling
      throw;
    }
    move_past(whole);
  }
  return any;
}

void ShmRail::move_past(std::size_t bytes) {
  head_ += bytes;
  receive_->head.store(head_, std::memory_order_seq_cst);
  if (receive_->producer_waits.load(std::memory_order_seq_cst) != 0 &&
      receive_->producer_waits.exchange(0) != 0) {
    // The producer may sleep until there is room, so the next notify() wakes it.
    pushed_ = true;
  }
}

bool ShmRail::room_again() const {
  return stalled_ && send_->producer_waits.load(std::memory_order_seq_cst) == 0;
}

bool ShmRail::take_room_again() {
  if (!room_again()) return false;
  stalled_ = false;
  return true;
}

void ShmRail::give_up(const char* reason) {
  if (failure_) return;
  failure_.fault = Fault::kLink;
  failure_.message = reason;
  // The socket still shows the end of the peer, which may use memory of this process until then.
  ::shutdown(control_fd_, SHUT_WR);
}

bool ShmRail::peer_gone() const {
  std::byte scratch[64];
  const ssize_t n = ::recv(control_fd_, scratch, sizeof scratch, MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace slackline
