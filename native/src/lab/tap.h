// A host's NIC in the lab: a TAP device in the host's network namespace, whose descriptor the
// switch holds.
#pragma once

#include <cstdint>
#include <string>

#include "packet.h"

namespace slackline::lab {

// A TAP device. The device disappears from its namespace when this object is destroyed or the
// process ends.
class Tap {
 public:
  // Create the device `name`, with offload, in the network namespace at this path. The calling
  // thread is in that namespace during the call. Throws std::system_error.
  Tap(const std::string& namespace_path, const std::string& name);
  ~Tap();
  Tap(Tap&& other) noexcept;
  Tap& operator=(Tap&&) = delete;

  int fd() const { return fd_; }

  // Read the next frame that the host has sent into `buffer`. Return its length, 0 when there is
  // none, or -1 when the namespace has gone and the device with it.
  std::int64_t read(Frame buffer);
  // Give a frame to the host. Return false when the host does not accept it.
  bool write(ConstFrame frame);

  // Set whether the host may send super-frames and leave checksums to the device.
  void offload(bool on);
  // Set whether the host sees a plugged-in cable.
  void carrier(bool on);

 private:
  int fd_;
  bool offload_ = true;
  bool carrier_ = true;
};

}  // namespace slackline::lab
