// Private memory for payloads: data that arrives before its destination is known, and copies that
// are kept until the peer acknowledges them. Buffers are reused by size class, so the hot path
// never allocates from the system.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace slackline {

// A pool of payload buffers. The pool is not thread-safe: it is used only under the engine's lock.
class Buffers {
 public:
  explicit Buffers(std::size_t segment_bytes)
      : sizes_{4096, 64u << 10, std::max<std::size_t>(segment_bytes, 64u << 10)} {
    for (auto& idle : idle_) idle.reserve(kIdle);  // so that give() needs no memory
  }
  ~Buffers() {
    for (auto& idle : idle_) {
      for (std::byte* buffer : idle) discard(buffer);
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Return a buffer of at least `bytes` bytes, aligned to 64 bytes. give() returns it to the pool.
  std::byte* take(std::size_t bytes) {
    for (std::size_t c = 0; c < kClasses; ++c) {
      if (bytes > sizes_[c]) continue;
      if (idle_[c].empty()) return fresh(sizes_[c], static_cast<std::uint32_t>(c));
      std::byte* buffer = idle_[c].back();
      idle_[c].pop_back();
      return buffer;
    }
    return fresh(bytes, kClasses);
  }

  void give(std::byte* buffer) noexcept {
    const std::uint32_t c = *reinterpret_cast<const std::uint32_t*>(buffer - kPrefix);
    if (c < kClasses && idle_[c].size() < kIdle) {
      idle_[c].push_back(buffer);
    } else {
      discard(buffer);
    }
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr std::size_t kPrefix = 64;  // stores the size class and keeps the alignment
  static constexpr std::uint32_t kClasses = 3;
  static constexpr std::size_t kIdle = 64;  // idle buffers kept for each size class

  static std::byte* fresh(std::size_t bytes, std::uint32_t c) {
    auto* block = static_cast<std::byte*>(::operator new(kPrefix + bytes, kAlignment));
    *reinterpret_cast<std::uint32_t*>(block) = c;
    return block + kPrefix;
  }
  static void discard(std::byte* buffer) noexcept {
    ::operator delete(buffer - kPrefix, kAlignment);
  }

  const std::array<std::size_t, kClasses> sizes_;
  std::array<std::vector<std::byte*>, kClasses> idle_;
};

}  // namespace slackline
