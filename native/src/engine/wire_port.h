// A port to a peer over wires: one or more rails, on which frames are delivered exactly once.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "channel.h"
#include "eager.h"
#include "link.h"
#include "port.h"

namespace slackline {

// All calls are made under the engine's lock.
class WirePort final : public Port {
 public:
  WirePort(const Link::Uses& uses, Link& link, const LinkOptions& options)
      : uses_(uses),
        link_(link),
        reconnect_(options.reconnect),
        channel_(uses, link, options.first_sequence) {}

  const Channel& channel() const { return channel_; }
  LinkRail* rail(int index) { return channel_.rails().find(index); }
  // Add a rail. An existing rail with the same index is replaced.
  void add_rail(int index, std::string name, std::unique_ptr<WireRail> wire);

  // --- Port ---
  const Rules& rules() const override;
  bool without_path() const override { return channel_.rails().empty(); }
  bool serve(bool all) override;
  bool serve(const LoopEvent& event) override;
  void drain() override;
  bool broken() const override;
  bool reap() override;
  void watch(bool probing) override;
  std::int64_t due_ns(bool probing) const override;
  bool ready_to_sleep() override;
  void cut(const std::string& reason) override;
  void condemn(const std::string& reason) override { channel_.condemn(reason); }
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
  bool make_room() override;
  void push() override;
  void flush() override;
  bool idle() const override { return channel_.retained().empty(); }
  void forget(const Request& request) override;
  void finish_sends() override { channel_.finish_sends(); }

  // --- ReceivingPort ---
  bool begins(const wire::Header& header) override;
  bool admit(const wire::Header& header) override;
  void handled(bool more_comes) override;
  void note(const wire::Header& header) override;
  bool all_before(std::uint32_t sequence) const override;
  void arrived_early(std::uint16_t flags, std::uint64_t bytes) override;
  void consumed_early(std::uint16_t flags, std::uint64_t bytes) override;
  void stop_writing(const Request& request) override;

 private:
  LinkRail* any_rail() { return channel_.rails().any(uses_.clock.now()); }
  bool poll(LinkRail& rail);
  void lose(std::size_t place);
  void let_go(LinkRail& rail);
  void suspect(LinkRail& rail, const std::string& why);
  void restore(LinkRail& rail);
  void probe(LinkRail& rail);
  void on_probe(const wire::Header& header);
  RailStatus status_of(const LinkRail& rail) const;
  void note_end(RailStatus ended);

  const Link::Uses uses_;
  Link& link_;
  const bool reconnect_;  // the link outlives its rails
  Channel channel_;
  EagerBytes eager_;
  std::int64_t no_rail_since_ns_ = 0;  // when the last rail was lost
  std::map<int, RailStatus> ended_;    // rails of the same index count as one
};

// Return the port of a link if it has wires, else null.
inline WirePort* wires_of(Link& link) { return dynamic_cast<WirePort*>(&link.port()); }
inline const WirePort* wires_of(const Link& link) {
  return dynamic_cast<const WirePort*>(&link.port());
}

}  // namespace slackline
