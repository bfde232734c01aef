#include "slackline/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace slackline {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kReturnToSystem =
    std::size_t{4} << 20;  // freed blocks from this size on give their pages back

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::byte* map(int fd, std::size_t capacity) {
  void* base = ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "mmap of the arena");
  ::madvise(
      base, capacity,
      MADV_HUGEPAGE);  // advice only: refused where the kernel keeps shared memory in small pages
  return static_cast<std::byte*>(base);
}

}  // namespace

Arena::Arena(std::size_t capacity) : capacity_(round_up(capacity, kHugePage)) {
  fd_ = ::memfd_create("slackline-arena", MFD_CLOEXEC);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create of the arena");
  if (::ftruncate(fd_, static_cast<off_t>(capacity_)) != 0) {
    const int error = errno;
    ::close(fd_);
    throw std::system_error(error, std::generic_category(), "ftruncate of the arena");
  }
  base_ = map(fd_, capacity_);
  free_[0] = capacity_;
}

Arena::~Arena() {
  ::munmap(base_, capacity_);
  ::close(fd_);
}

std::byte* Arena::allocate(std::size_t bytes) {
  if (bytes > capacity_) return nullptr;
  const std::size_t unit = bytes >= kHugePage ? kHugePage : bytes >= kPage ? kPage : kLine;
  const std::size_t length = round_up(bytes == 0 ? 1 : bytes, unit >= kPage ? kPage : kLine);
  const std::lock_guard lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const std::uint64_t start = it->first;
    const std::uint64_t end = start + it->second;
    const std::uint64_t aligned = round_up(start, unit);
    if (aligned + length > end) continue;
    free_.erase(it);
    if (aligned > start) free_[start] = aligned - start;
    if (aligned + length < end) free_[aligned + length] = end - aligned - length;
    used_[aligned] = length;
    used_bytes_ += length;
    return base_ + aligned;
  }
  return nullptr;
}

bool Arena::free(std::byte* address) {
  const std::lock_guard lock(mutex_);
  const auto it = used_.find(offset_of(address));
  if (it == used_.end()) return false;
  std::uint64_t start = it->first;
  std::uint64_t length = it->second;
  used_.erase(it);
  used_bytes_ -= length;
  if (length >= kReturnToSystem) {
    ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start),
                static_cast<off_t>(length));
  }
  auto next = free_.lower_bound(start);
  if (next != free_.end() && next->first == start + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      start = previous->first;
      length += previous->second;
      free_.erase(previous);
    }
  }
  free_[start] = length;
  return true;
}

std::size_t Arena::used() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

PeerArena::PeerArena(int fd, std::size_t capacity)
    : base_(map(fd, capacity)), capacity_(capacity) {}

PeerArena::~PeerArena() { ::munmap(base_, capacity_); }

}  // namespace slackline
