// A pool of objects in one vector. An object is identified by its index, and the index of a
// released object is used again.
#pragma once

#include <cstdint>
#include <vector>

namespace slackline::sim {

template <typename T>
class Pool {
 public:
  std::uint32_t add(const T& object) {
    if (free_.empty()) {
      objects_.push_back(object);
      return static_cast<std::uint32_t>(objects_.size() - 1);
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    objects_[index] = object;
    return index;
  }
  void release(std::uint32_t index) { free_.push_back(index); }
  // References are valid until the next `add`.
  T& operator[](std::uint32_t index) { return objects_[index]; }
  const T& operator[](std::uint32_t index) const { return objects_[index]; }

 private:
  std::vector<T> objects_;
  std::vector<std::uint32_t> free_;
};

}  // namespace slackline::sim
