// Exactly-once delivery of frames over wires.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "link.h"
#include "rail_set.h"
#include "rail_status.h"
#include "request.h"

namespace slackline {

// The frames of a link over one or more rails. Each frame carries a sequence number and is kept
// until the peer acknowledges it. When a rail fails, its undelivered frames are sent again over the
// other rails, and the peer drops duplicates. All calls are made under the engine's lock.
class Channel {
 public:
  // The operation whose memory a frame refers to, which the channel only holds.
  using Lease = std::shared_ptr<Request>;
  // Payloads up to this size are copied, so that the operation need not wait for the
  // acknowledgement.
  static constexpr std::uint32_t kCopiedBytes = 32u << 10;

  struct Counters {
    std::uint64_t frames_resent = 0;
    std::uint64_t duplicates_dropped = 0;
    std::uint64_t rails_lost = 0;
    std::uint64_t rails_suspected = 0;
    std::uint64_t rails_restored = 0;
    std::uint64_t payload_bytes = 0;
  };
  struct Retained {
    wire::Header header;
    const std::byte* payload;
    std::byte* owned;
    std::uint32_t length;
    Lease lease;  // set while the payload is memory of the operation
    // The rail that carries the frame; null when that rail is gone and no other was up. Invariant:
    // while any rail is up, the rail of every frame is up.
    const LinkRail* rail;
  };
  // The numbers of frames in both directions.
  struct Numbers {
    std::uint32_t next;             // of the next frame to the peer
    std::uint32_t expected;         // all frames of the peer before this one have arrived
    std::set<std::uint32_t> early;  // frames after it that have arrived
  };
  // The frames that have arrived and that this rank has not acknowledged yet.
  struct Unacknowledged {
    std::uint32_t frames = 0;
    std::uint64_t bytes = 0;
    bool owed = false;  // the peer keeps memory until it is told
    bool now = false;
  };

  Channel(const Link::Uses& uses, Link& link, std::uint32_t first_sequence);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  RailSet& rails() { return rails_; }
  const RailSet& rails() const { return rails_; }
  const std::deque<Retained>& retained() const { return retained_; }
  const Numbers& numbers() const { return numbers_; }
  const Unacknowledged& unacknowledged() const { return unacknowledged_; }
  Counters& counters() { return counters_; }
  const Counters& counters() const { return counters_; }

  // Put a numbered frame on a rail. `payload` is memory of `lease`, which is given back when the
  // peer has received the frame.
  void lend(LinkRail& rail, wire::Header& header, const std::byte* payload, std::uint32_t length,
            Lease lease);
  // Put a frame with a copy of a payload on a rail. A `sender` whose data it is is told when the
  // frame would reach the peer even if this process ended now.
  void copy(LinkRail& rail, wire::Header& header, const std::byte* payload, std::uint32_t length,
            Lease sender);
  // Send a frame without a number: an answer that only this rail is about.
  void send_unnumbered(LinkRail& rail, wire::Header header);
  // Return whether as many frames wait for an acknowledgement as may.
  bool full() const;

  // Cut the link for good, because the peer violates the protocol.
  void condemn(const std::string& reason);
  // Return why the link was cut for good; empty if it was not.
  const std::string& condemned() const { return condemned_; }
  // Return whether the peer may send this frame: it has a number, by which duplicates are detected,
  // unless it is an acknowledgement or a probe, and does not run too far ahead of missing ones.
  bool may_come(const wire::Header& header);

  // Note the arrival of an acknowledgement of all frames before `next_expected`.
  void acknowledged(std::uint32_t next_expected);
  // Return whether the frame has not arrived before.
  bool is_new(std::uint32_t sequence) const;
  // Record the arrival of a frame. Return true when the frame is new, false for a duplicate.
  bool admit(std::uint32_t sequence);
  // Note the arrival of a payload.
  void note_payload(std::uint32_t bytes);
  // An acknowledgement that is owed is not delayed any more.
  void acknowledge_owed() { unacknowledged_.now = unacknowledged_.now || unacknowledged_.owed; }
  // Return whether an acknowledgement must be sent now.
  bool must_acknowledge() const;

  // End the sends whose frames have departed.
  void note_departures();
  // Let nothing refer to memory of the request any more. Throws std::bad_alloc.
  void forget(const Request& request);
  // End all sends, because the peer needs nothing more.
  void finish_sends();

  // Send each undelivered frame whose rail is gone or suspect over the rails that are up. While no
  // rail is up, such frames stay where they are or, if their rail is gone, without a rail. Every
  // event after which a rail is up and such a frame may exist must therefore call this function:
  // the loss, the suspicion, the addition and the return of a rail.
  void place_frames();
  // Note that a rail sends nothing any more.
  void abandon(const LinkRail& rail);
  // Let the sends whose frames the rail carries end only when the peer has acknowledged the frames.
  void await_acknowledgement(const LinkRail& rail);
  bool carries(const LinkRail& rail) const;

 private:
  // A send whose payload was copied. It ends when its frame has departed (see WireRail::departed),
  // so that a process may end right after its last operation without a loss for the peer.
  struct Departing {
    std::uint32_t sequence;
    Lease sender;
    // Null once the rail failed or fell silent: the send then ends with the acknowledgement.
    const LinkRail* rail;
    std::uint64_t place;
  };

  void put(LinkRail& rail, wire::Header& header, const std::byte* payload, std::byte* owned,
           std::uint32_t length, Lease lease);
  void resend(Retained& frame, LinkRail& rail);
  void limit_answers(const LinkRail& rail);
  template <class Gone>
  void end_sends(const Gone& gone);

  const Link::Uses uses_;
  Link& link_;
  RailSet rails_;
  Numbers numbers_;
  Unacknowledged unacknowledged_;
  Counters counters_;
  std::deque<Retained> retained_;
  std::vector<Departing> departing_;
  std::vector<Lease> ended_sends_;  // empty; its memory is used again
  std::string condemned_;
};

}  // namespace slackline
