#include "memory.h"

#include <algorithm>
#include <new>
#include <utility>

namespace slackline {

Memory::Memory(const EngineOptions& options)
    : options_(options),
      arena_(options.arena_bytes),
      buffers_(options.wire_segment_bytes),
      reserve_(new std::byte[kReserveBytes]) {}

Memory::~Memory() {
  for (PendingPayload* pending : idle_pending_) delete pending;
}

std::byte* Memory::allocate(std::size_t bytes) {
  std::byte* memory = arena_.allocate(bytes);
  if (memory != nullptr || loans_.empty()) return memory;
  loans_.collect();
  return arena_.allocate(bytes);
}

std::size_t Memory::slot_bytes() const {
  return std::max(options_.memory_segment_bytes, options_.wire_segment_bytes);
}

int Memory::take_slot() {
  if (!free_slots_.empty()) {
    const int index = free_slots_.back();
    free_slots_.pop_back();
    return index;
  }
  // With room in the tables for all slots, a slot needs no memory at its end.
  const std::size_t count = slots_.size() + 1;
  if (slots_.capacity() < count) slots_.reserve(2 * count);
  for (std::vector<int>* each : {&free_slots_, &vacant_slots_}) {
    if (each->capacity() < count) each->reserve(slots_.capacity());
  }
  std::byte* memory = allocate(slot_bytes());
  if (memory == nullptr) return -1;
  if (!vacant_slots_.empty()) {
    const int index = vacant_slots_.back();
    vacant_slots_.pop_back();
    slots_[static_cast<std::size_t>(index)] = memory;
    return index;
  }
  slots_.push_back(memory);
  return static_cast<int>(slots_.size()) - 1;
}

std::byte* Memory::remove_slot(int index) noexcept {
  vacant_slots_.push_back(index);
  return std::exchange(slots_[static_cast<std::size_t>(index)], nullptr);
}

PendingPayload* Memory::take_pending() {
  if (idle_pending_.empty()) {
    idle_pending_.reserve(++pending_made_);  // so that each can be returned without memory
    idle_pending_.push_back(new PendingPayload);
  }
  PendingPayload* pending = idle_pending_.back();
  idle_pending_.pop_back();
  *pending = PendingPayload{};
  return pending;
}

void Memory::give_pending(PendingPayload* pending) noexcept {
  if (pending->owned != nullptr) buffers_.give(std::exchange(pending->owned, nullptr));
  idle_pending_.push_back(pending);  // has room for each
}

void Memory::renew_reserve() noexcept {
  reserve_.reset(new (std::nothrow) std::byte[kReserveBytes]);
}

}  // namespace slackline
