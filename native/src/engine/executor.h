// The work on the segments of operations: their steps, and the payloads that arrive for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../rail/rail.h"
#include "builder.h"
#include "clock.h"
#include "credits.h"
#include "endings.h"
#include "inbox.h"
#include "links.h"
#include "memory.h"
#include "operations.h"
#include "reports.h"

namespace slackline {

// All calls are made under the engine's lock.
class Executor {
 public:
  struct Uses {
    const EngineOptions& options;
    Clock& clock;
    Memory& memory;
    Links& links;
    Operations& operations;
    Inbox& inbox;
    Reports& reports;
    Endings& endings;
    Bell& bell;
  };

  explicit Executor(const Uses& uses);

  Builder& builder() { return builder_; }
  const Credits& credits() const { return credits_; }
  // Return the number of bytes that reductions have read.
  std::uint64_t bytes_reduced() const { return bytes_reduced_; }

  // Begin the work on an operation, in this thread or, if it is long and no caller waits for it, in
  // the driving one. Operations with unknown shares and barriers wait until they may start.
  void begin(const std::shared_ptr<Request>& request, bool now);
  // Start the operations that were queued. Return whether there was one.
  bool start_queued();
  void start(const std::shared_ptr<Request>& request);
  // Queue the operations that wait for these shares, or fail them if the shares were declined.
  void share(const Shares& shares);

  // Return the open operation that a frame of the rank `source` belongs to, or null. A receive from
  // any source takes the first message that begins to arrive, by data or by a request for a grant.
  std::shared_ptr<Request> find(const Key& key, const Link& link, int source);
  std::shared_ptr<Request> find_started(const Key& key) const { return uses_.operations.find(key); }
  // Return the memory where a long payload that arrives may be stored at once, or null.
  std::byte* place_for(const Link& link, const wire::Header& header, Request** owner) const;
  // Take a payload of the request. `*owned` is the payload's buffer, if it has one, and becomes
  // null when the buffer has another owner.
  void payload(Request& request, Link& link, const wire::Header& header, const Payload& payload,
               std::byte** owned);
  // A peer grants the request a number of bytes, or asks for a grant.
  void granted(Request& request, Link& link, const wire::Header& header);
  // A peer has read a segment in this rank's memory.
  void released(Request& request, const Link& link, const wire::Header& header);

  // Note that a send has copied its data, so that a waiting REDUCE_ALL may overwrite the original.
  void copied(Request& request, std::uint32_t chunk, std::uint32_t segment);
  // Note that the memory of one sent segment is no longer in use.
  void sent(Request& request);
  // Return whether a REDUCE_ALL has stored the segment's result in the peer's memory already.
  static bool answered(const Request& request, std::uint32_t chunk, std::uint32_t segment,
                       int peer);
  // Clear the mark that answered() returns, once the peer has been notified of the result.
  void forget_answer(Request& request, std::uint32_t chunk, std::uint32_t segment, int peer);

  // Execute the steps of a segment until one has to wait.
  void advance(Request& request, std::uint32_t chunk, std::uint32_t segment);
  // End the request with success if no segment and no send of it is left.
  void maybe_end(Request& request);
  // Remove and return the payload of a peer that waits for its step, or null.
  static PendingPayload* take_pending(Segment& segment, int peer);
  // Return the memory of a payload that is in no segment any more.
  void discard(PendingPayload* pending) noexcept { uses_.memory.give_pending(pending); }
  // Return the memory of a payload that has been used, and tell the peer.
  void drop_pending(Request& request, Chunk& chunk, std::uint32_t segment, PendingPayload* pending);

 private:
  void start_any_source(const std::shared_ptr<Request>& request);
  void bind(const std::shared_ptr<Request>& request, int peer);
  bool refused(Request& request);
  bool may_outlive_loss(const Request& request) const;
  void take_unexpected(Request& request);
  bool fits(const Request& request, const Link& link, const wire::Header& header) const;
  bool has_payload(const PeerFlow& flow, const Segment& segment, Link& link,
                   const wire::Header& header, std::size_t announced, std::size_t length) const;
  static bool follow(Link& link, const Payload& payload, PendingPayload& pending);
  void keep_lent(const Segment& segment, const PendingPayload* pending, const Payload& payload,
                 std::size_t bytes);
  bool pass(Request& request, std::uint32_t chunk, std::uint32_t segment, const Step& step);
  void add(const Request& request, const Chunk& chunk, std::uint32_t segment,
           const PendingPayload& pending, const Step& step);
  void consume(Request& request, Chunk& chunk, std::uint32_t segment, PendingPayload* pending,
               const Step& step);
  void reduce_all(Request& request, std::uint32_t chunk, std::uint32_t segment);

  const Uses uses_;
  Builder builder_;
  const Credits credits_;
  std::vector<const void*> reduce_sources_;  // sources and targets of the current reduction
  std::vector<void*> reduce_targets_;
  std::uint64_t bytes_reduced_ = 0;
};

}  // namespace slackline
