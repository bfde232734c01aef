// The switch without its ports: frames and times go in, frames and times come out. Knows no clock.
//
//   host's NIC ──▶ path (from, to, NIC): rate, fate, delay ──▶ port (to, NIC): rate ──▶ host's NIC
//
// A path keeps its frames in order, also when its delay shrinks, unless it is asked to reorder. A
// rate is a FIFO that frames pass one after the other; what finds it full is dropped.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "../rail/injector.h"
#include "packet.h"

namespace slackline::lab {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Something that frames pass at a rate.
class Pipe {
 public:
  // Bytes a second, 0: at once. What it holds already keeps its times.
  void set_rate(std::uint64_t rate) { rate_ = rate; }
  // When the last bit of a frame that comes now has passed; nothing when there is no room for it.
  std::optional<std::int64_t> pass(std::int64_t now_ns, std::size_t bytes);

 private:
  static constexpr std::int64_t kRoomNs = 33'000'000;
  static constexpr std::uint64_t kRoomBytes = 1u << 20;  // room for the more of the two

  std::uint64_t rate_ = 0;
  std::int64_t free_ns_ = 0;
};

struct PathCounters {
  int from = 0, to = 0, nic = 0;
  std::uint64_t frames = 0;  // that came to this path
  std::uint64_t bytes = 0;   // of those, as a wire would carry them
  std::uint64_t lost = 0, duplicated = 0, reordered = 0, corrupted = 0;
  std::uint64_t unplugged = 0;   // dropped while the path or one of its ports was down
  std::uint64_t overflowed = 0;  // dropped where a rate had no room
};

struct PathFault {
  int from, to, nic;
  FaultState state;
};

struct PortFault {
  int host, nic;
  std::uint64_t rate;  // bytes a second, 0: the fabric's own
  bool down;
};

// Takes frames at the moment at which they leave the switch. They are the fabric's.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void deliver(int host, int nic, ConstFrame frame) = 0;
};

class Fabric {
 public:
  // `rate`: bytes a second from each port to its host, 0: unlimited.
  Fabric(int hosts, int nics, std::uint64_t rate, Outlet& outlet);

  // From now on these faults and no others are there. A path whose fault stays the same goes on
  // drawing where it was; any other starts at its seed.
  void apply(const std::vector<PathFault>& paths, const std::vector<PortFault>& ports);

  // A frame of `from` has arrived. It is changed only where the call itself changes it back.
  void arrive(std::int64_t now_ns, int from, int nic, Frame frame);

  // When `release` has something to do.
  std::int64_t due_ns() const { return waiting_.empty() ? kNever : waiting_.front().at_ns; }
  void release(std::int64_t now_ns);

  // Whether packets of this port must be single, whole and checked, so that a fault can hit one.
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
    std::int64_t last_ns = 0;  // when the last frame that keeps its place leaves
  };
  struct Port {
    Pipe pipe;
    bool down = false;
    bool single = false;
  };
  struct Waiting {
    std::int64_t at_ns;
    std::uint64_t number;  // of two at the same time the first comes first
    Path* path;
    bool passed_port;
    std::unique_ptr<std::byte[]> bytes;
    std::size_t length;
    bool operator<(const Waiting& other) const {  // a heap has its greatest in front
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };

  std::size_t port(int host, int nic) const {
    return static_cast<std::size_t>(nic) * hosts_ + host;
  }
  Path& path(int from, int to, int nic);
  void forward(std::int64_t now_ns, Path& path, Frame frame);
  // `owned` is the frame's memory where the fabric has it already.
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
  std::vector<std::unique_ptr<Path>> paths_;  // made when they are first used
  std::vector<Waiting> waiting_;              // a heap
  std::uint64_t number_ = 0;
};

}  // namespace slackline::lab
