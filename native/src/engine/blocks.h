// A pool of long private memory blocks. The blocks are reused because faulting in fresh pages costs
// more than copying data into them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace slackline {

// A pool that keeps at most as many idle bytes as were ever in use at the same time, and frees the
// least recently used ones first. Thread-safe. A block holds a reference to its pool, so the pool
// lives until the last block is returned.
class Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  struct Return {
    std::shared_ptr<Blocks> home;
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const { home->give(memory, bytes); }
  };
  using Block = std::unique_ptr<std::byte[], Return>;

  // Return a block of at least `bytes` bytes. The block returns to the pool when it is destroyed.
  Block take(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 64));
    const std::lock_guard lock(mutex_);
    std::unique_ptr<std::byte[]> memory;
    const auto found = std::ranges::find(idle_.rbegin(), idle_.rend(), size, &Idle::bytes);
    if (found == idle_.rend()) {
      memory.reset(new std::byte[size]);
    } else {
      memory = std::move(found->memory);
      idle_.erase(std::prev(found.base()));
      idle_bytes_ -= size;
    }
    in_use_ += size;
    most_in_use_ = std::max(most_in_use_, in_use_);
    return Block(memory.release(), Return{shared_from_this(), size});
  }

  std::size_t idle_bytes() const {
    const std::lock_guard lock(mutex_);
    return idle_bytes_;
  }

 private:
  struct Idle {
    std::size_t bytes;
    std::unique_ptr<std::byte[]> memory;
  };

  // Called by the destructor of a block, so it must not throw.
  void give(std::byte* memory, std::size_t bytes) noexcept {
    std::unique_ptr<std::byte[]> given(memory);
    std::unique_lock lock(mutex_);
    in_use_ -= bytes;
    try {
      idle_.push_back(Idle{bytes, std::move(given)});
    } catch (const std::bad_alloc&) {
      return;  // without memory for the pool's table, the block goes back to the system
    }
    idle_bytes_ += bytes;
    while (idle_bytes_ > most_in_use_) {
      std::unique_ptr<std::byte[]> surplus = std::move(idle_.front().memory);
      idle_bytes_ -= idle_.front().bytes;
      idle_.pop_front();
      lock.unlock();  // the system takes its time to free a long block
      surplus.reset();
      lock.lock();
    }
  }

  mutable std::mutex mutex_;
  std::deque<Idle> idle_;  // most recently used last
  std::size_t idle_bytes_ = 0;
  std::size_t in_use_ = 0;
  std::size_t most_in_use_ = 0;
};

}  // namespace slackline
