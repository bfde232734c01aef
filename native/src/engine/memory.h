// The memory of an engine: the registered arena, and pools for what frames in flight need.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "buffers.h"
#include "lent_memory.h"
#include "request.h"
#include "slackline/arena.h"
#include "slackline/engine.h"

namespace slackline {

// All calls are made under the engine's lock, but for those on the arena, which has its own.
class Memory {
 public:
  explicit Memory(const EngineOptions& options);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  // Buffers for payloads that arrive before their operation, and for copies of sent ones.
  Buffers& buffers() { return buffers_; }
  // Memory of ended operations that peers may still read or write.
  LentMemory& loans() { return loans_; }
  const LentMemory& loans() const { return loans_; }

  // Return newly allocated memory of the arena, or null if there is no room even after the return
  // of all loans that are over.
  std::byte* allocate(std::size_t bytes);

  // A staging slot is arena memory for one segment, which peers of this host read.
  std::size_t slot_bytes() const;
  int take_slot();  // -1 when the arena has no room
  std::byte* slot(int index) const { return slots_[static_cast<std::size_t>(index)]; }
  void give_slot(int index) noexcept { free_slots_.push_back(index); }
  // Remove a slot from the table and return its memory, which the caller frees.
  std::byte* remove_slot(int index) noexcept;
  std::size_t slots() const { return slots_.size() - vacant_slots_.size(); }
  std::size_t busy_slots() const { return slots() - free_slots_.size(); }

  PendingPayload* take_pending();
  // Return a payload's description, and its buffer if it has one. Needs no memory.
  void give_pending(PendingPayload* pending) noexcept;

  // Memory for the handling of a lack of memory, enough to tell the peers of many operations why
  // they failed.
  void open_reserve() noexcept { reserve_.reset(); }
  void renew_reserve() noexcept;

  static constexpr std::size_t kReserveBytes = 1u << 20;

 private:
  const EngineOptions& options_;
  Arena arena_;
  Buffers buffers_;
  LentMemory loans_{arena_};
  std::vector<std::byte*> slots_;
  std::vector<int> free_slots_;
  std::vector<int> vacant_slots_;  // indices of `slots_` without memory
  std::vector<PendingPayload*> idle_pending_;
  std::size_t pending_made_ = 0;
  std::unique_ptr<std::byte[]> reserve_;
};

}  // namespace slackline
