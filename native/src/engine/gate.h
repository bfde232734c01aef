// Words of memory that the engine writes when operations end: a stream of an accelerator waits for
// the word, and no thread of the host must run before the stream goes on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace slackline {

// A gate of several operations, which opens when the last one has ended. All calls are made under
// the engine's lock.
class Gate {
 public:
  // Open the gate, when `operations` have ended, by writing `value` to `word`.
  Gate(std::uint32_t& word, std::uint32_t value, std::size_t operations)
      : word_(word), value_(value), left_(operations) {}

  // Note the end of an operation that has succeeded. After a failure the gate stays closed, since
  // its owner writes the results that the stream shall find before it opens the gate itself.
  void ended() noexcept {
    if (--left_ == 0) std::atomic_ref(word_).store(value_, std::memory_order_release);
  }

 private:
  std::uint32_t& word_;
  const std::uint32_t value_;
  std::size_t left_;
};

}  // namespace slackline
