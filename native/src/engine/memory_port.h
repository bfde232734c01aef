// A port to a peer on the same host: rings of frames, and segments that the peer reads in place.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../rail/shm.h"
#include "link.h"
#include "port.h"

namespace slackline {

// Frames are neither numbered nor kept, because memory loses nothing. All calls are made under the
// engine's lock.
class MemoryPort final : public Port, public Lender {
 public:
  MemoryPort(const Link::Uses& uses, Link& link) : uses_(uses), link_(link) {}

  // Use these rings from now on.
  void connect(std::unique_ptr<ShmRail> rail);

  // --- Port ---
  const Rules& rules() const override;
  Lender* lender() override { return rail_ == nullptr ? nullptr : this; }
  bool without_path() const override { return false; }
  bool serve(bool all) override;
  bool serve(const LoopEvent&) override { return false; }
  void drain() override;
  bool broken() const override { return rail_ != nullptr && rail_->failure(); }
  bool reap() override;
  void watch(bool) override {}
  std::int64_t due_ns(bool probing) const override;
  bool ready_to_sleep() override;
  void cut(const std::string&) override {}
  void condemn(const std::string&) override {}
  void end_without_memory() noexcept override;
  void close() override;
  std::vector<RailStatus> rails() const override;
  std::vector<RailStatus> ended_rails() const override;
  void count(Counts& counts) const override;
  std::string condition() const override;
  void inject(int rail, const std::optional<FaultState>& state) override;
  void leave_to_parent() override;

  // --- SendingPort ---
  Outcome send(const SendItem& item, wire::Header& header, const std::byte* data,
               std::size_t bytes) override;
  bool control(wire::Header header, const std::string& text) override;
  bool make_room() override { return false; }
  void push() override {}
  void flush() override;
  bool idle() const override { return rail_ == nullptr || !rail_->holds_back(); }
  void forget(const Request&) override {}
  void finish_sends() override {}

  // --- ReceivingPort ---
  bool begins(const wire::Header&) override { return true; }
  bool admit(const wire::Header&) override { return true; }
  void handled(bool) override {}
  void note(const wire::Header&) override {}
  bool all_before(std::uint32_t) const override { return true; }
  void arrived_early(std::uint16_t, std::uint64_t) override {}
  void consumed_early(std::uint16_t, std::uint64_t) override {}
  void stop_writing(const Request&) override {}

  // --- Lender ---
  std::byte* peer_memory(std::uint64_t offset, std::size_t bytes) const override {
    return rail_->peer_memory(offset, bytes);
  }
  std::uint64_t frames() const override { return rail_->frames_pushed(); }
  bool handled(Mark& mark) const override;
  bool gone() const override { return rail_->peer_gone(); }
  std::uint64_t unmap() override;

 private:
  struct Counters {
    std::uint64_t reference_bytes = 0;  // bytes that the peer read in place
    std::uint64_t staged_bytes = 0;     // bytes copied into slots
    std::uint64_t inline_bytes = 0;
    std::uint64_t wakeups = 0;  // of a rail that has been removed
  };

  Outcome send_answer(const SendItem& item, wire::Header& header);
  Outcome send_inline(const SendItem& item, wire::Header& header, const std::byte* data,
                      std::size_t bytes);
  Outcome send_reference(const SendItem& item, wire::Header& header, const std::byte* data,
                         std::size_t bytes);
  // Refer to data in registered memory.
  Reference in_place(const SendItem& item, const std::byte* data, std::size_t bytes) const;
  Outcome stage(const SendItem& item, const std::byte* data, std::size_t bytes,
                Reference& reference);
  RailStatus status() const;

  const Link::Uses uses_;
  Link& link_;
  std::unique_ptr<ShmRail> rail_;  // null until the link is made, and once it was unmapped
  Counters counters_;
  std::optional<RailStatus> ended_;
};

}  // namespace slackline
