// Registered memory: a memfd that peers on the same host map into their own address space.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace slackline {

// The registered memory of one engine. An Arena owns the file descriptor and the mapping. The
// memory has no name in any file system, so nothing is left behind when the process dies. The
// kernel provides pages when they are first touched, so `capacity` is a limit and not a
// reservation. A freed block of 4 MiB or more returns its pages to the kernel. Only the most
// recently freed `kept_bytes` keep their pages, because a program that allocates the same sizes
// repeatedly would otherwise fault the pages in again each time.
class Arena {
 public:
  explicit Arena(std::size_t capacity, std::size_t kept_bytes = std::size_t{512} << 20);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Return an aligned block of at least `bytes` bytes, or null when the arena has no room.
  // Thread-safe.
  std::byte* allocate(std::size_t bytes);
  // Return the number of bytes of an arena that a block of `bytes` bytes occupies.
  static std::size_t rounded(std::size_t bytes);
  // Free the block that starts at `address`. Return false when `address` is not the start of a
  // block. A withheld block becomes free later, when it is released. Thread-safe. Pages are
  // returned to the kernel without the lock, so that other threads need not wait for it.
  bool free(std::byte* address);
  // Withhold the block that contains `address`: its memory is not allocated again before as many
  // calls of release() as of withhold(). Return the start of the block, or null if no block
  // contains the address. Thread-safe.
  std::byte* withhold(const void* address);
  // Undo one withhold() of the block that starts at `block`. Thread-safe.
  void release(std::byte* block);

  bool contains(const void* address, std::size_t bytes) const {
    const auto* p = static_cast<const std::byte*>(address);
    return p >= base_ && p < base_ + capacity_ &&
           bytes <= static_cast<std::size_t>(base_ + capacity_ - p);
  }
  std::uint64_t offset_of(const void* address) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - base_);
  }
  std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  std::size_t capacity() const { return capacity_; }
  // Return the bytes of all blocks that are not free. Withheld blocks that were freed count too.
  std::size_t used() const;
  // Return the bytes of the block that starts at `block` if it was freed and is withheld, else 0.
  std::size_t freed_and_withheld(const std::byte* block) const;
  int fd() const { return fd_; }
  // Close the descriptor in a forked child; the memory stays mapped there.
  void leave_to_parent();

 private:
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  // A free range, or an allocated block.
  struct Block {
    std::uint64_t length = 0;
    std::size_t holds = 0;  // calls of withhold() without their release()
    bool freed = false;     // free() was called while the block was withheld
  };
  // Blocks or free ranges by their offset. Both have the same type, so that a freed block can move
  // from one table to the other without an allocation.
  using Table = std::map<std::uint64_t, Block>;

  mutable std::mutex mutex_;
  std::condition_variable returned_;  // signals that `returning_` has decreased
  int returning_ = 0;                 // threads that return pages of free ranges to the kernel
  Table free_;                        // coalesced
  Table used_;
  std::size_t used_bytes_ = 0;

  std::byte* take_room(std::size_t length, std::size_t unit);
  void end_block(std::unique_lock<std::mutex>& lock, Table::iterator block) noexcept;
  void add_free(Table::node_type range) noexcept;
  Table::node_type cut_free(std::uint64_t start, std::uint64_t length);
  void take_kept(std::uint64_t start, std::uint64_t end);
  void give_back(std::unique_lock<std::mutex>& lock, Table surplus) noexcept;

  const std::size_t most_kept_;
  // Free ranges as (offset, length), oldest first, whose pages have not been returned to the
  // kernel.
  std::deque<std::pair<std::uint64_t, std::uint64_t>> kept_;
  std::size_t kept_bytes_ = 0;
};

// The arena of a peer on the same host, mapped into this process. A PeerArena owns the mapping but
// not the file descriptor.
class PeerArena {
 public:
  // Map the arena behind `fd`. Throws std::invalid_argument unless the file has `capacity` bytes
  // and is sealed against shrinking, and std::system_error if this process cannot map it, for
  // example because its address space is limited.
  PeerArena(int fd, std::size_t capacity);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  // Return the local address of a range in the peer's arena, or null when the range does not lie
  // within the arena. Offsets come from the peer, so each one is checked.
  std::byte* at(std::uint64_t offset, std::size_t bytes) const {
    return offset <= capacity_ && bytes <= capacity_ - offset ? base_ + offset : nullptr;
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace slackline
