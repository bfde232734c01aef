// The ways to a peer, as a link uses them: wires, or memory that both processes map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../base/injector.h"
#include "event_loop.h"
#include "rail_status.h"
#include "request.h"
#include "slackline/failure.h"
#include "slackline/wire.h"

namespace slackline {

// The side of a port that sends. All calls are made under the engine's lock.
class SendingPort {
 public:
  // kNoRoom: the item may be sent once the port has room. kBlocked: the item needs a grant of the
  // peer, or a slot.
  enum class Outcome : std::uint8_t { kSent, kNoRoom, kBlocked };

  virtual ~SendingPort() = default;
  // Send a segment with this header and these data. The item's send ends, at once or later, when
  // its memory is no longer in use.
  virtual Outcome send(const SendItem& item, wire::Header& header, const std::byte* data,
                       std::size_t bytes) = 0;
  // Send a control frame. Return false, and do nothing, if it has to wait.
  virtual bool control(wire::Header header, const std::string& text) = 0;
  // Try to make room after kNoRoom. Return whether there is some now.
  virtual bool make_room() = 0;
  // Send what is queued.
  virtual void push() = 0;
  // Send what is queued, and let it be noticed: peers are woken, and sends end whose data need no
  // memory of this rank any more.
  virtual void flush() = 0;
  // Return whether nothing is left to send and, on a wire, nothing is left to be acknowledged.
  virtual bool idle() const = 0;
  // Remove all references to a failed request: its data must not be sent and its memory must not be
  // read or written any more.
  virtual void forget(const Request& request) = 0;
  // Complete all sends whose memory was kept for the peer, because the peer needs nothing more.
  virtual void finish_sends() = 0;
};

// The side of a port that receives. All calls are made under the engine's lock.
class ReceivingPort {
 public:
  virtual ~ReceivingPort() = default;
  // Note that a frame begins to arrive, whose acknowledgement counts at once. Return whether the
  // frame is new.
  virtual bool begins(const wire::Header& header) = 0;
  // Note the arrival of a frame. Return whether it is to be handled: it is new, and the peer keeps
  // to the protocol.
  virtual bool admit(const wire::Header& header) = 0;
  // Note that the frame has been handled. With `more_comes` the same peer will certainly send more.
  virtual void handled(bool more_comes) = 0;
  // Handle a frame that concerns this port alone.
  virtual void note(const wire::Header& header) = 0;
  // Return whether all frames before the one with this number have arrived.
  virtual bool all_before(std::uint32_t sequence) const = 0;
  // Count a payload that has arrived, and later its consumption. Payloads that were sent before a
  // grant, which the flags of their frames tell, have a limit over a wire.
  virtual void arrived_early(std::uint16_t flags, std::uint64_t bytes) = 0;
  virtual void consumed_early(std::uint16_t flags, std::uint64_t bytes) = 0;
  // Stop writing payloads that are still arriving to the memory of a request that has ended.
  virtual void stop_writing(const Request& request) = 0;
};

// The lending of memory between this rank and a peer on the same host, in both directions.
class Lender {
 public:
  // A place in the sequence of frames to the peer.
  struct Mark {
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};
    std::uint64_t frames = kNever;  // those before the place, counted from the first
    std::uint64_t position = 0;     // of the place in the ring; 0 while it is not known
  };

  virtual ~Lender() = default;
  // Return the address of the peer's memory at this offset of its arena, or null if the bytes are
  // outside.
  virtual std::byte* peer_memory(std::uint64_t offset, std::size_t bytes) const = 0;
  // Return the number of frames to the peer so far.
  virtual std::uint64_t frames() const = 0;
  // Return whether the peer has handled all frames before the mark. Complete the mark, which may
  // have been made before its frames were in the ring.
  virtual bool handled(Mark& mark) const = 0;
  // Return whether the peer's process has ended, so that it uses no memory any more.
  virtual bool gone() const = 0;
  // Unmap the memory of a peer that has gone. Return the offset of the ring into which it wrote.
  virtual std::uint64_t unmap() = 0;
};

class Port : public SendingPort, public ReceivingPort {
 public:
  using Counts = std::map<std::string, std::uint64_t>;

  // The rules that a kind of port sets for the operations of its link.
  struct Rules {
    bool grants;                // after some bytes a sender waits for grants
    bool ungranted;             // data may come before its operation without a mark of its frames
    std::uint32_t most_unread;  // segments of an operation that the peer may have left unread
  };

  virtual const Rules& rules() const = 0;
  // Return the part that lends memory, or null.
  virtual Lender* lender() { return nullptr; }
  // Return whether a port that had a path to the peer has none at present.
  virtual bool without_path() const = 0;
  // Read what has come and handle what is due. Without `all`, sockets are left to the event loop.
  virtual bool serve(bool all) = 0;
  // Handle an event of one of the port's sockets.
  virtual bool serve(const LoopEvent& event) = 0;
  // Read all that the peer has sent, since the peer has ended.
  virtual void drain() = 0;
  // Return whether reap() may have something to do.
  virtual bool broken() const = 0;
  // Remove what has failed. Return whether the whole port has ended just now: its link is then
  // down, and has the failure. The link is down also if there is no memory for the rest.
  virtual bool reap() = 0;
  // Look at the state of the paths. `probing` says that operations are open.
  virtual void watch(bool probing) = 0;
  // Return the time of the next watch() or serve() that must not be missed; kNever if there is
  // none.
  virtual std::int64_t due_ns(bool probing) const = 0;
  // Prepare for a sleep. Return false if something waits that would not end it.
  virtual bool ready_to_sleep() = 0;
  // End the port, but keep what the peer may still use. Nothing is sent any more, acknowledgements
  // included.
  virtual void cut(const std::string& reason) = 0;
  // Do the same for good, because the peer violates the protocol.
  virtual void condemn(const std::string& reason) = 0;
  // Do the same for good, in a way that the peer sees, where there is no memory. Takes no memory.
  virtual void end_without_memory() noexcept = 0;
  // End the port because the peer's process is known to be gone.
  virtual void close() = 0;
  // Return the state of every rail in use, and of those that have ended.
  virtual std::vector<RailStatus> rails() const = 0;
  virtual std::vector<RailStatus> ended_rails() const = 0;
  virtual void count(Counts& counts) const = 0;
  // Return a description of the peer's state for the message of an operation that waits for it.
  virtual std::string condition() const = 0;
  // Apply faults to a rail, or to all with a negative index.
  virtual void inject(int rail, const std::optional<FaultState>& state) = 0;
  // Close the descriptors of all rails in a forked child.
  virtual void leave_to_parent() = 0;
};

}  // namespace slackline
