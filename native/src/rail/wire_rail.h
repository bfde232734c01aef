// One path to a peer over a wire: what a link asks of every kind. A rail moves whole frames, each
// once and unharmed, or fails; it may reorder them. All calls happen under the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "injector.h"
#include "rail.h"

namespace slackline {

enum class RailKind : std::uint8_t { kTcp, kUdp };

// Since the rail began.
struct RailCounters {
  std::uint64_t bytes_sent = 0;  // frames as they were given to the system, headers included
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t packets_sent = 0;     // datagrams; 0 on streams
  std::uint64_t packets_resent = 0;   // because they were taken for lost
  std::uint64_t packets_refused = 0;  // arrived damaged or from a stranger
  std::uint64_t system_calls = 0;
};

// What the peer's end has confirmed of what was sent.
struct Confirmation {
  bool in_flight = false;           // something sent is not confirmed yet
  std::uint64_t unconfirmed = 0;    // about how many bytes, queued ones included
  std::int64_t quiet_since_ns = 0;  // the last confirmation, or when the first of these was sent
  std::int64_t round_trip_ns = 0;   // smoothed; 0 while unknown
  int tries = 0;                    // how often in a row what is in flight was sent in vain
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
  // The peer is on another host: what it says takes a while.
  virtual bool far() const { return false; }
  std::uint32_t job() const { return job_; }
  // Whether the payload checksum in the frame's header is used; headers always have theirs.
  bool checksums() const { return checksums_; }

  // Room for one more frame: keeps the queue short, so that an urgent frame overtakes all but this
  // much. Control frames may exceed it.
  virtual bool room() const = 0;
  // Bytes that wait here, and are not with the system or on the wire yet.
  virtual std::size_t queued_bytes() const = 0;
  // `payload` stays valid until release() or repoint() of the frame's number, or the rail's end.
  // Unnumbered frames (sequence 0) have no payload. Nothing is sent before flush().
  virtual void enqueue(const wire::Header& header, const std::byte* payload,
                       std::uint32_t length) = 0;
  // The payload of the frame with this number has moved to `to`.
  virtual void repoint(std::uint32_t sequence, const std::byte* to) = 0;
  // The peer has the frame with this number, over whatever rail: its payload goes away now. What is
  // still to be sent of it here need not arrive.
  virtual void release(std::uint32_t sequence) = 0;
  virtual void flush(std::int64_t now_ns) = 0;
  // The socket refused what there is to send: flush() does nothing until writable().
  virtual bool blocked() const = 0;
  // The socket may take more again.
  virtual void writable() = 0;
  // When tick() wants to be called: for retransmission and pacing. kNever when nothing is due.
  virtual std::int64_t due_ns() const = 0;
  virtual void tick(std::int64_t now_ns) = 0;
  // Reads what is there and hands complete frames to `sink`; true when anything was read.
  virtual bool poll(Link& link, FrameSink& sink, std::int64_t now_ns) = 0;
  // The memory of `job` must not be written any more: a payload on its way there goes to a buffer
  // instead.
  virtual void forget(const Job* job, FrameSink& sink) = 0;
  // Gives back the buffers of payloads that will not be completed.
  virtual void abandon(FrameSink& sink) = 0;

  virtual Confirmation confirmation(std::int64_t now_ns) = 0;
  // Inflicts these faults on what is sent from now on; none ends that. What an old fault holds back
  // leaves when it would have, or at once if it was never to leave.
  virtual void inject(const std::optional<FaultState>& state) {
    injector_ = state ? std::make_unique<Injector>(*state) : nullptr;
  }

  // It is one of several now: what waits should wait here, where it can still take another rail.
  virtual void keep_back() {}
  // Ends the rail from this side.
  void give_up(std::string reason) { fail(Fault::kLink, std::move(reason)); }
  // The first failure ends the rail for good.
  const Failure& failure() const { return failure_; }
  const RailCounters& counters() const { return counters_; }

  bool armed_for_write = false;  // the engine's note of what epoll watches

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
