// The lab's switch. A single thread moves frames between TAP devices as the fabric decides; other
// threads may set faults.
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fabric.h"
#include "tap.h"

namespace slackline::lab {

class Switch final : private Outlet {
 public:
  // Build a switch. `rate` is in bytes per second to each NIC; 0 is unlimited.
  Switch(int hosts, int nics, std::uint64_t rate);
  ~Switch() override;

  // Create a NIC in a host's network namespace. All NICs must be added, host by host, before
  // run().
  void add_nic(const std::string& namespace_path, const std::string& name);

  // Forward frames until stop() is called or a NIC's namespace has gone. Throws std::system_error.
  void run();

  // The following calls may come from any thread.
  void stop();
  void apply(const std::vector<PathFault>& paths, const std::vector<PortFault>& ports);
  std::vector<PathCounters> counters();
  // Return the number of frames that a host did not accept, because its queue was full or its
  // interface was down.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kFramesPerTurn = 64;

  void deliver(int host, int nic, ConstFrame frame) override;
  bool drain(std::size_t nic);
  std::size_t index(int host, int nic) const {
    return static_cast<std::size_t>(host) * fabric_.nics() + nic;
  }

  std::mutex mutex_;  // guards fabric_ and the settings of taps_
  Fabric fabric_;
  std::vector<Tap> taps_;
  std::vector<pollfd> polled_;
  std::unique_ptr<std::byte[]> buffer_;
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<bool> stopped_{false};
  int wake_fd_;
};

}  // namespace slackline::lab
