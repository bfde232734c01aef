#include "slackline/arena.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "../base/descriptor.h"
#include "../base/wait.h"

namespace slackline {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr std::size_t kLong = std::size_t{4}
                              << 20;  // freed blocks of this size may return their pages

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::byte* map(int fd, std::size_t capacity) {
  void* base = ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "mmap of the arena");
  // The flag is only advice. The kernel refuses the flag if shared memory is kept in small pages.
  ::madvise(base, capacity, MADV_HUGEPAGE);
  return static_cast<std::byte*>(base);
}

}  // namespace

Arena::Arena(std::size_t capacity, std::size_t kept_bytes)
    : capacity_(round_up(capacity, kHugePage)), most_kept_(kept_bytes) {
  free_.try_emplace(0, Block{capacity_});
  fd_ = ::memfd_create("slackline-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create of the arena");
  if (::ftruncate(fd_, static_cast<off_t>(capacity_)) != 0) {
    const int error = errno;
    ::close(fd_);
    throw std::system_error(error, std::generic_category(), "ftruncate of the arena");
  }
  // Seal the size: a peer that reads a mapped page beyond the end of the file would receive SIGBUS.
  if (::fcntl(fd_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    const int error = errno;
    ::close(fd_);
    throw std::system_error(error, std::generic_category(), "sealing the size of the arena");
  }
  try {
    base_ = map(fd_, capacity_);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

Arena::~Arena() {
  ::munmap(base_, capacity_);
  close_once(fd_);
}

void Arena::leave_to_parent() { close_once(fd_); }

std::size_t Arena::rounded(std::size_t bytes) {
  return round_up(bytes == 0 ? 1 : bytes, bytes >= kPage ? kPage : kCacheLine);
}

std::byte* Arena::allocate(std::size_t bytes) {
  if (bytes > capacity_) return nullptr;
  const std::size_t unit = bytes >= kHugePage ? kHugePage : bytes >= kPage ? kPage : kCacheLine;
  std::unique_lock lock(mutex_);
  for (;;) {
    std::byte* memory = take_room(rounded(bytes), unit);
    if (memory != nullptr || returning_ == 0) return memory;
    wait_on(returned_, lock);  // a range whose pages are being returned is not free meanwhile
  }
}

std::byte* Arena::take_room(std::size_t length, std::size_t unit) {
  for (const auto& [start, range] : free_) {
    const std::uint64_t end = start + range.length;
    const std::uint64_t aligned = round_up(start, unit);
    if (aligned + length > end) continue;
    if (kept_bytes_ > 0) take_kept(aligned, aligned + length);
    used_.insert(cut_free(aligned, length));
    used_bytes_ += length;
    return base_ + aligned;
  }
  return nullptr;
}

bool Arena::free(std::byte* address) {
  std::unique_lock lock(mutex_);
  const auto it = used_.find(offset_of(address));
  if (it == used_.end() || it->second.freed) return false;
  if (it->second.holds > 0)
    it->second.freed = true;
  else
    end_block(lock, it);
  return true;
}

std::byte* Arena::withhold(const void* address) {
  if (!contains(address, 1)) return nullptr;
  const std::lock_guard lock(mutex_);
  auto it = used_.upper_bound(offset_of(address));
  if (it == used_.begin()) return nullptr;
  --it;
  if (offset_of(address) >= it->first + it->second.length) return nullptr;
  ++it->second.holds;
  return base_ + it->first;
}

void Arena::release(std::byte* block) {
  std::unique_lock lock(mutex_);
  const auto it = used_.find(offset_of(block));
  if (--it->second.holds == 0 && it->second.freed) end_block(lock, it);
}

std::size_t Arena::freed_and_withheld(const std::byte* block) const {
  const std::lock_guard lock(mutex_);
  const auto it = used_.find(offset_of(block));
  return it != used_.end() && it->second.freed ? it->second.length : 0;
}

// Make a block free. Free ranges whose pages exceed the limit of kept pages return them to the
// kernel; such a range counts as neither free nor used meanwhile. A destructor may call this
// function, so it needs no memory.
void Arena::end_block(std::unique_lock<std::mutex>& lock, Table::iterator block) noexcept {
  Table::node_type range = used_.extract(block);
  const std::uint64_t start = range.key();
  const std::uint64_t length = range.mapped().length;
  range.mapped() = Block{length};
  used_bytes_ -= length;
  add_free(std::move(range));
  if (length < kLong) return;
  Table surplus;
  try {
    kept_.emplace_back(start, length);
    kept_bytes_ += length;
    while (kept_bytes_ > most_kept_) {
      const auto [oldest, bytes] = kept_.front();
      surplus.insert(cut_free(oldest, bytes));
      kept_.pop_front();
      kept_bytes_ -= bytes;
    }
  } catch (const std::bad_alloc&) {
    // Without memory for the tables the pages stay for a while: until the next block is freed.
  }
  if (!surplus.empty()) give_back(lock, std::move(surplus));
}

// Return the pages of ranges to the kernel, which may take a tenth of a second for a gigabyte, and
// make the ranges free.
void Arena::give_back(std::unique_lock<std::mutex>& lock, Table surplus) noexcept {
  ++returning_;
  lock.unlock();
  for (const auto& [start, range] : surplus)
    ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start),
                static_cast<off_t>(range.length));
  lock.lock();
  --returning_;
  while (!surplus.empty()) add_free(surplus.extract(surplus.begin()));
  returned_.notify_all();
}

void Arena::add_free(Table::node_type range) noexcept {
  std::uint64_t& length = range.mapped().length;
  auto next = free_.lower_bound(range.key());
  if (next != free_.end() && next->first == range.key() + length) {
    length += next->second.length;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.length == range.key()) {
      previous->second.length += length;
      return;
    }
  }
  free_.insert(std::move(range));
}

// Remove a range, which lies within one free range, from the free ranges, and return it. If there
// is no memory for the table, throw std::bad_alloc and change nothing.
Arena::Table::node_type Arena::cut_free(std::uint64_t start, std::uint64_t length) {
  const auto whole = std::prev(free_.upper_bound(start));
  const std::uint64_t before = start - whole->first;
  const std::uint64_t after = whole->second.length - before - length;
  Table fresh;
  if (before > 0) fresh.try_emplace(start, Block{length});
  if (after > 0) fresh.try_emplace(start + length, Block{after});
  Table::node_type range;
  if (before > 0) {
    whole->second.length = before;
    range = fresh.extract(start);
  } else {
    range = free_.extract(whole);
    range.mapped().length = length;
  }
  if (after > 0) free_.insert(fresh.extract(start + length));
  return range;
}

// Remove an allocated range from the free ranges that keep their pages. The parts before and after
// the allocated range still keep their pages.
void Arena::take_kept(std::uint64_t start, std::uint64_t end) {
  std::deque<std::pair<std::uint64_t, std::uint64_t>> left;
  std::size_t left_bytes = 0;
  const auto add = [&](std::uint64_t from, std::uint64_t to) {
    if (from >= to) return;
    left.emplace_back(from, to - from);
    left_bytes += to - from;
  };
  for (const auto& [offset, length] : kept_) {
    add(offset, std::min(start, offset + length));
    add(std::max(end, offset), offset + length);
  }
  kept_ = std::move(left);
  kept_bytes_ = left_bytes;
}

std::size_t Arena::used() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

PeerArena::PeerArena(int fd, std::size_t capacity) : capacity_(capacity) {
  struct stat found = {};
  if (::fstat(fd, &found) != 0)
    throw std::system_error(errno, std::generic_category(), "fstat of a peer's arena");
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (size < capacity)
    throw std::invalid_argument("a peer's arena must have the " + std::to_string(capacity) +
                                " bytes that the peer says, not " + std::to_string(size));
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    throw std::invalid_argument("a peer's arena must be a memfd that cannot shrink");
  // The first access to a huge page that the machine does not have raises SIGBUS.
  struct statfs system = {};
  if (::fstatfs(fd, &system) != 0)
    throw std::system_error(errno, std::generic_category(), "fstatfs of a peer's arena");
  if (system.f_type == HUGETLBFS_MAGIC)
    throw std::invalid_argument("a peer's arena must not be made of reserved huge pages");
  try {
    base_ = map(fd, capacity);
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(),
                            "mmap of a peer's arena of " + std::to_string(capacity) + " bytes");
  }
}

PeerArena::~PeerArena() { ::munmap(base_, capacity_); }

}  // namespace slackline
