// The frames that arrive, on their way to the part of the engine that they concern.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "../rail/rail.h"
#include "clock.h"
#include "driver.h"
#include "executor.h"
#include "groups.h"
#include "inbox.h"
#include "links.h"
#include "membership.h"
#include "memory.h"

namespace slackline {

// The sink of all rails: it has each new frame of a link handled exactly once. All calls are made
// under the engine's lock.
class Arrivals final : public FrameSink {
 public:
  struct Uses {
    Clock& clock;
    Memory& memory;
    Links& links;
    Membership& membership;
    Inbox& inbox;
    Executor& executor;
    Groups& groups;
    const Driver& driver;
  };

  explicit Arrivals(const Uses& uses) : uses_(uses) {}

  std::byte* direct_placement(Link& link, const wire::Header& header, Request** owner) override;
  void arrive(Link& link, const wire::Header& header, const Payload& payload) override;
  std::byte* take_buffer(std::size_t bytes) override { return uses_.memory.buffers().take(bytes); }
  void give_buffer(std::byte* buffer) override { uses_.memory.buffers().give(buffer); }
  bool lock_wanted() const override { return uses_.driver.lock_wanted(); }

 private:
  void handle(Link& link, const wire::Header& header, const Payload& payload, std::byte** owned);
  bool on_data(Link& link, const wire::Header& header, const Payload& payload, std::byte** owned);
  void keep_or_drop(Link& link, const wire::Header& header, const Payload& payload);
  void on_grant(Link& link, const wire::Header& header);
  void on_release(Link& link, const wire::Header& header, const Payload& payload);
  void early(const Key& key);

  const Uses uses_;
};

}  // namespace slackline
