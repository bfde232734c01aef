// The interface of a rail over a wire: one path to a peer, as a link uses it. A rail delivers whole
// frames, each exactly once and undamaged, or fails; it may reorder them. All calls are made under
// the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "../base/injector.h"
#include "rail.h"

namespace slackline {

enum class RailKind : std::uint8_t { kTcp, kUdp };

// Counters since the rail was created.
struct RailCounters {
  std::uint64_t bytes_sent = 0;  // bytes of frames given to the system, headers included
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t packets_sent = 0;     // datagrams, or TCP segments with data, repetitions included
  std::uint64_t packets_resent = 0;   // packets resent because they were taken for lost
  std::uint64_t packets_refused = 0;  // datagrams that arrived damaged or from an unknown sender
  std::uint64_t system_calls = 0;

  RailCounters& operator+=(const RailCounters& more) {
    bytes_sent += more.bytes_sent;
    bytes_received += more.bytes_received;
    frames_sent += more.frames_sent;
    frames_received += more.frames_received;
    packets_sent += more.packets_sent;
    packets_resent += more.packets_resent;
    packets_refused += more.packets_refused;
    system_calls += more.system_calls;
    return *this;
  }
};

// The state of confirmations: how much of the sent data the peer's end has acknowledged.
struct Confirmation {
  bool in_flight = false;         // some sent data is not confirmed yet
  std::uint64_t unconfirmed = 0;  // approximate bytes, queued ones included
  // Time of the last confirmation, or of the first unconfirmed transmission.
  std::int64_t quiet_since_ns = 0;
  std::int64_t round_trip_ns = 0;  // smoothed; 0 while unknown
  // Consecutive unconfirmed transmissions of the data in flight.
  int tries = 0;
};

class WireRail {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  WireRail(std::uint32_t job, bool checksums) : job_(job), checksums_(checksums) {}
  virtual ~WireRail() = default;
  WireRail(const WireRail&) = delete;
  WireRail& operator=(const WireRail&) = delete;

  virtual RailKind kind() const = 0;
  virtual int fd() const = 0;  // for epoll: readable, and writable while blocked()
  // Return whether the peer is on another host, so that its replies take longer.
  virtual bool far() const { return false; }
  std::uint32_t job() const { return job_; }
  // Return whether frames carry a payload checksum. Headers always carry one.
  bool checksums() const { return checksums_; }

  // Return whether the queue has room for one more frame. The limit keeps the queue short, so that
  // an urgent frame waits behind little else. Control frames may exceed it.
  virtual bool room() const = 0;
  // Return the bytes that are queued in this rail and not yet given to the system.
  virtual std::size_t queued_bytes() const = 0;
  // Return the queued bytes that wait until the system takes them. Frames that an injected delay
  // holds count as under way, as they would be on a long path.
  virtual std::size_t waiting_bytes() const { return queued_bytes(); }
  // Return the number of frames that are queued in this rail and not yet begun.
  virtual std::size_t queued_frames() const = 0;
  // Queue a frame. `payload` must stay valid until release() or repoint() of the frame's number,
  // or until the rail ends. Unnumbered frames (sequence 0) have no payload. Nothing is sent before
  // flush().
  virtual void enqueue(const wire::Header& header, const std::byte* payload,
                       std::uint32_t length) = 0;
  // Return a number that stands for all frames that have been queued so far.
  virtual std::uint64_t enqueued() const = 0;
  // Return whether the frames that `number` stands for would reach the peer even if this process
  // ended now: the system has taken them and delivers them, or the peer's rail has confirmed them.
  virtual bool departed(std::uint64_t number) const = 0;
  // Return whether sending has failed while frames that the peer sent earlier may still be unread.
  // The rail fails once poll() has read them.
  virtual bool ending() const { return false; }
  // Replace the payload address of the frame with this number by `to`.
  virtual void repoint(std::uint32_t sequence, const std::byte* to) = 0;
  // Note that the peer has received the frame with this number, over any rail. The frame's payload
  // memory becomes invalid, and unsent parts of the frame need not be delivered.
  virtual void release(std::uint32_t sequence) = 0;
  virtual void flush(std::int64_t now_ns) = 0;
  // Return whether the socket refused data. flush() then does nothing until writable().
  virtual bool blocked() const = 0;
  // Note that the socket may accept data again.
  virtual void writable() = 0;
  // Return the time at which tick() should be called next, for retransmission or pacing; kNever
  // when nothing is due. Neither tick() nor poll() of a UDP rail sends: flush() does.
  virtual std::int64_t due_ns() const = 0;
  virtual void tick(std::int64_t now_ns) = 0;
  // Read available data and pass complete frames to `sink`. Return true when anything was read.
  virtual bool poll(Link& link, FrameSink& sink, std::int64_t now_ns) = 0;
  // Stop writing to the memory of `owner`: a payload that is being received there goes to a buffer
  // instead.
  virtual void forget(const Request* owner, FrameSink& sink) = 0;
  // Close the sockets in a forked child, whose parent goes on using its own descriptors of them.
  virtual void leave_to_parent() {}
  // Return the buffers of payloads that will not be completed to `sink`.
  virtual void abandon(FrameSink& sink) = 0;

  virtual Confirmation confirmation(std::int64_t now_ns) = 0;
  // Apply these faults to frames sent from now on; std::nullopt ends the faults. Frames that an
  // earlier fault delays leave at their planned time, or at once if they were never to leave.
  virtual void inject(const std::optional<FaultState>& state) {
    injector_ = state ? std::make_unique<Injector>(*state) : nullptr;
  }

  // Note that the link now has several rails. Waiting frames should then stay in this rail's
  // queue, from which they can still move to another rail.
  virtual void keep_back() {}
  // Note that the next frame belongs to an operation that a more urgent one may overtake. The rail
  // then gives the system less data ahead, since nothing can overtake data in a socket.
  virtual void expect_urgent() {}
  // Fail the rail from this side.
  void give_up(std::string reason) { fail(Fault::kLink, std::move(reason)); }
  // Return the first failure, which ends the rail for good.
  const Failure& failure() const { return failure_; }
  const RailCounters& counters() const { return counters_; }

  bool armed_for_write = false;  // whether epoll watches for writability

 protected:
  void fail(Fault fault, std::string message) {
    if (failure_) return;
    failure_.fault = fault;
    failure_.message = std::move(message);
  }
  RailCounters counters_;
  std::unique_ptr<Injector> injector_;

 private:
  std::uint32_t job_;
  bool checksums_;
  Failure failure_;
};

}  // namespace slackline
