// The lab's switch without its ports: frames and times go in, frames and times come out. The fabric
// reads no clock.
//
//   host's NIC ──▶ path (from, to, NIC): rate, loss, delay ──▶ port (to, NIC): rate ──▶ host's NIC
//
// A path keeps its frames in order, also when its delay shrinks, unless a fault asks for
// reordering. A rate limit is a FIFO queue that frames leave one after the other. A frame that
// finds the queue full is dropped.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "../base/injector.h"
#include "packet.h"

namespace slackline::lab {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// A queue that frames leave at a limited rate.
class Pipe {
 public:
  // Set the rate in bytes per second; 0 is unlimited. Frames already in the queue keep their
  // times.
  void set_rate(std::uint64_t rate) { rate_ = rate; }
  // Return the time at which the last bit of a frame that arrives now leaves the queue, or nothing
  // when the queue is full.
  std::optional<std::int64_t> pass(std::int64_t now_ns, std::size_t bytes);

 private:
  static constexpr std::int64_t kRoomNs = 33'000'000;
  static constexpr std::uint64_t kRoomBytes = 1u << 20;  // the larger of the two limits applies

  std::uint64_t rate_ = 0;
  std::int64_t free_ns_ = 0;
};

struct PathCounters {
  int from = 0, to = 0, nic = 0;
  std::uint64_t frames = 0;  // frames that entered this path
  std::uint64_t bytes = 0;   // bytes of those frames as on a wire
  std::uint64_t lost = 0, duplicated = 0, reordered = 0, corrupted = 0;
  std::uint64_t unplugged = 0;   // dropped while the path or one of its ports was down
  std::uint64_t overflowed = 0;  // dropped because the queue of a rate limit was full
};

struct PathFault {
  int from, to, nic;
  FaultState state;
};

struct PortFault {
  int host, nic;
  std::uint64_t rate;  // bytes per second; 0: the fabric's own rate
  bool down;
};

// The receiver of frames at the moment they leave the switch. The fabric owns the frames.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void deliver(int host, int nic, ConstFrame frame) = 0;
};

class Fabric {
 public:
  // Build a fabric without faults. `rate` is in bytes per second from each port to its host; 0 is
  // unlimited.
  Fabric(int hosts, int nics, std::uint64_t rate, Outlet& outlet);

  // Replace all current faults by these. A path whose fault is unchanged continues its random
  // sequence; any other starts from its seed.
  void apply(const std::vector<PathFault>& paths, const std::vector<PortFault>& ports);

  // Accept a frame that host `from` has sent. The call may change the frame's bytes but restores
  // them before it returns.
  void arrive(std::int64_t now_ns, int from, int nic, Frame frame);

  // Return the time at which release() should be called next.
  std::int64_t due_ns() const { return waiting_.empty() ? kNever : waiting_.front().at_ns; }
  void release(std::int64_t now_ns);

  // Return whether the host of this port must send single packets with complete checksums, so that
  // a fault can hit one packet. Otherwise the host may leave segmentation and checksums to the
  // device.
  bool single(int host, int nic) const { return ports_[port(host, nic)].single; }
  bool down(int host, int nic) const { return ports_[port(host, nic)].down; }
  int hosts() const { return hosts_; }
  int nics() const { return nics_; }
  std::vector<PathCounters> counters() const;

 private:
  struct Path {
    PathCounters counters;
    FaultState state;
    std::optional<Injector> injector;
    Pipe pipe;
    std::int64_t last_ns = 0;  // departure of the last frame that was not reordered
  };
  struct Port {
    Pipe pipe;
    bool down = false;
    bool single = false;
  };
  struct Waiting {
    std::int64_t at_ns;
    std::uint64_t number;  // of two frames due at the same time the lower number leaves first
    Path* path;
    bool passed_port;
    std::unique_ptr<std::byte[]> bytes;
    std::size_t length;
    bool operator<(const Waiting& other) const {  // std heaps keep the greatest element in front
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };

  std::size_t port(int host, int nic) const {
    return static_cast<std::size_t>(nic) * hosts_ + host;
  }
  Path& path(int from, int to, int nic);
  void forward(std::int64_t now_ns, Path& path, Frame frame);
  // `owned` is the frame's memory if the fabric already has a copy.
  void at_port(std::int64_t now_ns, Path& path, ConstFrame frame,
               std::unique_ptr<std::byte[]> owned);
  void deliver(Path& path, ConstFrame frame);
  void wait(std::int64_t at_ns, Path& path, bool passed_port, ConstFrame frame,
            std::unique_ptr<std::byte[]> owned);

  const int hosts_;
  const int nics_;
  const std::uint64_t rate_;
  Outlet& outlet_;
  std::vector<Port> ports_;
  std::vector<std::unique_ptr<Path>> paths_;  // created at first use
  std::vector<Waiting> waiting_;              // a heap
  std::uint64_t number_ = 0;
};

}  // namespace slackline::lab
