#include "tap.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace slackline::lab {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags)) {
    if (fd_ < 0) fail(path);
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A scope during which the calling thread is in another network namespace.
class Visit {
 public:
  explicit Visit(const std::string& path)
      : home_("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC) {
    const Descriptor there(path, O_RDONLY | O_CLOEXEC);
    if (::setns(there.fd(), CLONE_NEWNET) < 0) fail("entering " + path);
  }
  ~Visit() {
    if (::setns(home_.fd(), CLONE_NEWNET) < 0) std::terminate();  // no safe way to continue exists
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Descriptor home_;
};

constexpr unsigned kOffload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;

}  // namespace

Tap::Tap(const std::string& namespace_path, const std::string& name) {
  const Visit visit(
      namespace_path);  // a device is created in the namespace where its descriptor is opened
  Descriptor device("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  if (::ioctl(device.fd(), TUNSETIFF, &request) < 0) fail("making " + name);
  if (::ioctl(device.fd(), TUNSETOFFLOAD, kOffload) < 0) fail("offload of " + name);
  fd_ = device.release();
}

Tap::~Tap() {
  if (fd_ >= 0) ::close(fd_);
}

Tap::Tap(Tap&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), offload_(other.offload_), carrier_(other.carrier_) {}

std::int64_t Tap::read(Frame buffer) {
  while (true) {
    const ssize_t got = ::read(fd_, buffer.data(), buffer.size());
    if (got >= 0) return got;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EIO) return 0;  // EIO: the interface is down
    if (errno == EBADFD) return -1;
    fail("reading from a NIC");
  }
}

bool Tap::write(ConstFrame frame) {
  return ::write(fd_, frame.data(), frame.size()) == static_cast<ssize_t>(frame.size());
}

void Tap::offload(bool on) {
  if (on == offload_) return;
  if (::ioctl(fd_, TUNSETOFFLOAD, on ? kOffload : 0u) < 0) fail("offload of a NIC");
  offload_ = on;
}

void Tap::carrier(bool on) {
  if (on == carrier_) return;
  int plugged = on ? 1 : 0;
  if (::ioctl(fd_, TUNSETCARRIER, &plugged) < 0) fail("the carrier of a NIC");
  carrier_ = on;
}

}  // namespace slackline::lab
