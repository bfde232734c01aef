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
#include <utility>
#include <vector>

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
    in_use_ += size;
    most_in_use_ = std::max(most_in_use_, in_use_);
    const auto found = std::ranges::find(idle_.rbegin(), idle_.rend(), size, &Idle::bytes);
    if (found == idle_.rend()) return Block(new std::byte[size], Return{shared_from_this(), size});
    std::unique_ptr<std::byte[]> memory = std::move(found->memory);
    idle_.erase(std::prev(found.base()));
    idle_bytes_ -= size;
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

  void give(std::byte* memory, std::size_t bytes) {
    std::vector<Idle> freed;  // freed after the lock is released
    const std::lock_guard lock(mutex_);
    in_use_ -= bytes;
    idle_bytes_ += bytes;
    idle_.push_back(Idle{bytes, std::unique_ptr<std::byte[]>(memory)});
    while (idle_bytes_ > most_in_use_) {
      idle_bytes_ -= idle_.front().bytes;
      freed.push_back(std::move(idle_.front()));
      idle_.pop_front();
    }
  }

  mutable std::mutex mutex_;
  std::deque<Idle> idle_;  // most recently used last
  std::size_t idle_bytes_ = 0;
  std::size_t in_use_ = 0;
  std::size_t most_in_use_ = 0;
};

}  // namespace slackline
