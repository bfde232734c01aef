// Private memory in long blocks that are used again: the pages of a fresh one cost more than what
// is copied into it.
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

// Keeps as much idle as has been in use at once, of what was used last. Thread-safe; blocks may
// outlive whoever took them.
class Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  struct Return {
    std::shared_ptr<Blocks> home;
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const { home->give(memory, bytes); }
  };
  using Block = std::unique_ptr<std::byte[], Return>;

  // At least `bytes` long.
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
    std::vector<Idle> freed;  // without the lock
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
  std::deque<Idle> idle_;  // the last one was used last
  std::size_t idle_bytes_ = 0;
  std::size_t in_use_ = 0;
  std::size_t most_in_use_ = 0;
};

}  // namespace slackline
