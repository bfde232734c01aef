// Choices that the bytes of a fuzzer's input determine: numbers, alternatives, parts of the input.
// After the last byte every choice is the first alternative, so an input may be truncated anywhere.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../tests/frames.h"
#include "../tests/parts.h"

namespace slackline::fuzz {

using test::Bytes;

class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : next_(data), left_(size) {}

  bool used_up() const { return left_ == 0; }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::size_t got = std::min(bytes, left_);
    std::memcpy(&value, next_, got);
    next_ += got;
    left_ -= got;
    return value;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(number(1)); }
  // Return a number from 0 to n - 1.
  std::size_t below(std::size_t n) {
    return static_cast<std::size_t>(number(n <= 256 ? 1 : n <= 65536 ? 2 : 4) % n);
  }
  template <class T, std::size_t n>
  T one_of(const std::array<T, n>& values) {
    return values[below(n)];
  }
  Bytes piece(std::size_t bytes) {
    const std::size_t got = std::min(bytes, left_);
    Bytes out(got);
    if (got > 0) std::memcpy(out.data(), next_, got);
    next_ += got;
    left_ -= got;
    return out;
  }

 private:
  const std::uint8_t* next_;
  std::size_t left_;
};

// A builder of fuzzer inputs: the built input makes Choices return the given choices.
class Script {
 public:
  Script& number(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i)
      bytes_.push_back(static_cast<std::byte>(value >> 8 * i));
    return *this;
  }
  Script& byte(std::uint64_t value) { return number(value, 1); }
  Script& piece(const Bytes& bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// Return a link that a rail can pass to its sink.
inline Link& some_link() {
  static test::Parts parts(1u << 20);
  static Link& link = parts.add("fuzzer");
  return link;
}

}  // namespace slackline::fuzz
