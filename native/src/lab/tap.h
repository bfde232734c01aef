// A NIC of a host: a TAP device in the host's network namespace, held by the switch.
#pragma once

#include <cstdint>
#include <string>

#include "packet.h"

namespace slackline::lab {

// Gone from its namespace when it is destroyed, or with its process.
class Tap {
 public:
  // Makes the device `name` in the namespace with this path, with offload. The calling thread is in
  // that namespace meanwhile. Throws std::system_error.
  Tap(const std::string& namespace_path, const std::string& name);
  ~Tap();
  Tap(Tap&& other) noexcept;
  Tap& operator=(Tap&&) = delete;

  int fd() const { return fd_; }

  // The next frame that the host has sent, in `buffer`: its length; 0 when there is none; -1 when
  // the namespace has gone, and the device with it.
  std::int64_t read(Frame buffer);
  // False when the host takes none.
  bool write(ConstFrame frame);

  // Whether the host may hand over super-frames and leave checksums to the device.
  void offload(bool on);
  // Whether the cable is plugged in, as the host sees it.
  void carrier(bool on);

 private:
  int fd_;
  bool offload_ = true;
  bool carrier_ = true;
};

}  // namespace slackline::lab
