// The transport of frames from host to host: ports in series, queues before them, and faults.
//
//   queue of the host    NIC sends       switch       NIC of the target receives
//   |------ wait ------|--- size/rate ---|- latency -|--- size/rate ---|- latency -| arrived
//
// The switch forwards the head of a frame while the tail is still being sent, as far as the
// fabric's `forwards_after_bytes` allows. A queue is ordered by priority, lower first, and then by
// time. With `ahead_bytes` of a host, the host has one such queue for each target, and a NIC takes
// frames for a target as long as fewer bytes for this target wait at the NIC or are being sent:
//
//   queue of target 1 ---+
//   queue of target 2 ---+--- queue of the NIC, in the order taken --- NIC sends
//
// The queue of the NIC stands for the sockets and their rails: no frame overtakes another one
// there.
//
// A port is a token bucket: `burst_bytes` may pass ahead of its rate r. The bytes that have passed
// are owed until a time O; `size` more bytes that come at t pass by
//
//   O' = max(O, t) + size / r,   end = max(t, O' - burst / r)
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "clock.h"
#include "fabric.h"
#include "pool.h"

namespace slackline::sim {

class Execution;

// A NIC of a host and the host that it sends to. NIC i of a host sends to NIC i of the other host.
struct Path {
  std::uint32_t source, target, nic;
  bool operator==(const Path&) const = default;
};

struct PathHash {
  std::size_t operator()(const Path& path) const {
    const std::uint64_t hosts = static_cast<std::uint64_t>(path.source) << 32 | path.target;
    return static_cast<std::size_t>((hosts * 0x9E3779B97F4A7C15u) ^ path.nic);
  }
};

// The fate of some packets of one frame at the switch.
struct Lot {
  std::uint64_t lost = 0;      // packets that do not arrive
  std::uint64_t doubled = 0;   // packets that arrive twice
  Time late = 0;               // delay of all packets, which also delays the packets behind them
  Time overtaken = 0;          // delay of packets that others overtake
  std::uint64_t rate_bps = 0;  // rate of the path if a fault limits it, else 0
};

// The effects of faults on a path until the next change.
struct PathState {
  bool down = false;  // no packet passes
  bool plain = true;  // no fault affects packets
  Time delay = 0;     // the delay in this direction
};

// The interface through which the simulated wires ask for the network's present faults.
class Faults {
 public:
  virtual ~Faults() = default;
  virtual PathState state(const Path& path) = 0;
  virtual Lot draw(const Path& path, std::uint64_t packets) = 0;
};

// A frame in flight: a payload that a step of one member sends to a step of another member.
struct Frame {
  Execution* execution;
  std::uint64_t payload_bytes;
  std::int64_t priority;
  std::uint64_t packets;           // number of packets that have not arrived yet
  std::uint32_t source, target;    // hosts
  std::uint32_t sender, receiver;  // members of the execution
  std::uint32_t sent_step;         // the sender's step
  std::uint32_t strand, step;      // the receiver's strand and step
  std::uint32_t segment;
  std::int32_t value;
  bool crosses_network;
  std::uint8_t ends;  // how many of the two members have not finished with the frame yet
};

// The interface by which a machine is notified of frames that were sent or have arrived.
class FrameEnds {
 public:
  virtual ~FrameEnds() = default;
  virtual void frame_sent(std::uint32_t frame) = 0;
  virtual void frame_arrived(std::uint32_t frame) = 0;
};

class Wires {
 public:
  // `faults` is null for a network that never has faults.
  Wires(Clock& clock, const Fabric& fabric, Faults* faults, FrameEnds& ends);

  Pool<Frame> frames;

  // Queue a frame at its host, or copy the frame if the receiver is on the same host.
  void send(std::uint32_t frame);
  // Set the rate of a port from now on.
  void set_rate(std::uint32_t host, std::uint32_t nic, std::uint64_t rate_bps);
  // Ask for the state of every path again. Drop the frames in flight on paths that are now down,
  // and send on paths that are now up.
  void change();
  void act(const Event& event);
  // Return the source and the target of every frame that waits in a queue, host by host.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> waiting() const;

  std::vector<std::uint64_t> sent_bytes, received_bytes;  // by host
  std::uint64_t sent_frames = 0;
  std::uint64_t resent_packets = 0;

 private:
  // Packets of a frame that travel together: all packets, or the lost packets that are sent again.
  struct Piece {
    std::uint64_t packets, wire_bytes, doubled;
    std::uint64_t taken_bytes;  // that a NIC took ahead
    std::uint32_t frame, nic;
    std::uint32_t target;  // host
    std::uint32_t events;  // references to the piece by pending events and by a queue
    bool again, lost;
  };
  struct Waiting {
    std::int64_t priority;
    std::uint64_t number;
    std::uint32_t piece;
    static bool follows(const Waiting& a, const Waiting& b) {
      return a.priority != b.priority ? a.priority > b.priority : a.number > b.number;
    }
  };

  // The frames from one host to another, on a host with `ahead_bytes`.
  struct Lane {
    std::vector<Waiting> queue;        // a heap
    std::vector<std::uint64_t> ahead;  // by NIC: bytes that wait there or are being sent
  };

  std::uint32_t piece_of(std::uint32_t frame, std::uint64_t packets, std::uint64_t wire_bytes,
                         bool again);
  void schedule(Time time, EventKind kind, std::uint32_t piece, std::int64_t argument = 0);
  void drop(std::uint32_t piece);
  Path path(const Piece& piece) const;
  std::size_t port(std::uint32_t host, std::uint32_t nic) const { return host * nics_ + nic; }
  void copy(std::uint32_t frame);
  void queue(std::uint32_t piece);
  bool has_idle(std::uint32_t host) const;
  void start(std::uint32_t host);
  void take_ahead(std::uint32_t host, std::uint32_t target);
  std::uint32_t least_ahead(std::uint32_t host, std::uint32_t target, const Lane& lane);
  void send_ahead(std::uint32_t host, std::uint32_t nic);
  void go_under_way(std::uint32_t piece);
  void transmit(std::uint32_t piece);
  void left(std::uint32_t piece);
  void at_switch(std::uint32_t piece, Time tail);
  void at_port(std::uint32_t piece, Time tail);
  void arrived(std::uint32_t piece);
  void lose(std::uint32_t piece, std::uint64_t lost, Time tail);
  void forget_under_way(std::uint32_t piece);
  const PathState& state(const Path& path);
  // Return the time by which bytes that a port owes until `owed` have passed: a burst earlier.
  Time ahead(Time owed, std::uint32_t host, std::uint64_t rate_bps) const {
    const std::uint64_t burst = fabric_.hosts[host].burst_bytes;
    return std::max(clock_.now(), owed - (burst == 0 ? 0 : transmission(burst, rate_bps)));
  }
  std::uint64_t head_bytes(const Piece& piece) const {
    return std::min(fabric_.forwards_after_bytes, piece.wire_bytes);
  }

  Clock& clock_;
  const Fabric& fabric_;
  Faults* faults_;
  FrameEnds& ends_;
  std::uint32_t nics_;
  Pool<Piece> pieces_;
  std::vector<std::vector<Waiting>> queues_;          // heaps, by host
  std::vector<std::map<std::uint32_t, Lane>> lanes_;  // by host and target, with `ahead_bytes` only
  std::vector<std::deque<std::uint32_t>> taken_;      // by port: pieces that the NIC took ahead
  std::vector<std::uint32_t> by_rate_;                // the NICs of each host, the fastest first
  std::vector<char> idle_;                            // by port
  std::vector<std::uint64_t> rates_bps_;              // by port, lowered by faults
  std::vector<Time> sends_until_;        // by port: the time until which bytes are owed
  std::vector<Time> receives_until_;     // by port, likewise
  std::vector<Time> memory_until_;       // by host
  std::vector<std::uint32_t> snapshot_;  // the NICs that were idle when `start` began
  std::vector<Waiting> blocked_;
  std::uint64_t queued_ = 0;
  // With faults only: paths in the order of their first use, and the times at which they are free.
  std::vector<std::pair<Path, std::vector<std::uint32_t>>> under_way_;
  std::unordered_map<Path, std::size_t, PathHash> under_way_of_;
  std::unordered_map<Path, PathState, PathHash> states_;
  std::unordered_map<Path, Time, PathHash> latest_, limited_until_;
};

}  // namespace slackline::sim
