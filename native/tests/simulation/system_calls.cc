// The system calls of the engine, in a simulation. The linker replaces each call of `name` by
// `__wrap_name` (native/tests.cmake), so that the engine runs here as it is. Calls on descriptors
// that are not simulated, such as those of an arena's memory, go to the system.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <string>
#include <utility>

#include "system.h"

using slackline::simulation::Connection;
using slackline::simulation::Direction;
using slackline::simulation::Fiber;
using slackline::simulation::File;
using slackline::simulation::kMicrosecond;
using slackline::simulation::kNever;
using slackline::simulation::System;

namespace {

constexpr std::int64_t kCallNs = 500;
constexpr std::int64_t kClockNs = 20;
constexpr std::size_t kPacketBytes = 1448;
// How often a thread is preempted in a call that does not wait, in percent.
constexpr int kPreemptedInCall = 4;
constexpr int kPreemptedAtClock = 2;

// Return the simulated file behind a descriptor, or null: the call then goes to the system. A call
// takes a moment.
File* simulated(int fd) {
  System* system = System::current();
  if (system == nullptr || fd < System::kFirstDescriptor) return nullptr;
  system->pass(kCallNs);
  system->preempt(kPreemptedInCall);
  return system->file(fd);
}

bool of_simulation(int fd) {
  return System::current() != nullptr && fd >= System::kFirstDescriptor;
}

ssize_t refuse(int error) {
  errno = error;
  return -1;
}

// Return whether the system refuses a call without a reason.
bool refuses_by_chance(System& system) {
  const int chance = system.manners().refusals;
  return chance > 0 && system.noise().percent(chance);
}

std::size_t some_of(std::size_t bytes, bool cut) {
  System& system = *System::current();
  if (!cut || bytes < 2 || !system.noise().percent(50)) return bytes;
  return static_cast<std::size_t>(system.noise().spread(1, static_cast<std::int64_t>(bytes)));
}

ssize_t receive(File& file, const iovec* parts, int count) {
  System& system = *System::current();
  Connection& connection = *file.connection;
  Direction& in = connection.to[file.end];
  const std::int64_t now = system.now_ns();
  std::size_t arrived = in.arrived(now);
  if (arrived == 0) {
    if (connection.error != 0) return refuse(connection.error);
    return in.end_ns <= now ? 0 : refuse(EAGAIN);
  }
  if (refuses_by_chance(system)) return refuse(EINTR);
  std::size_t asked = 0;
  for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
  std::size_t left = some_of(std::min(asked, arrived), system.manners().short_reads);
  const std::size_t got = left;
  for (int i = 0; i < count && left > 0; ++i) {
    auto* to = static_cast<std::byte*>(parts[i].iov_base);
    std::size_t room = parts[i].iov_len;
    while (room > 0 && left > 0) {
      Direction::Piece& piece = in.pieces.front();
      const std::size_t n = std::min({room, left, piece.bytes.size() - piece.read});
      std::memcpy(to, piece.bytes.data() + piece.read, n);
      piece.read += n;
      to += n;
      room -= n;
      left -= n;
      if (piece.read == piece.bytes.size()) in.pieces.pop_front();
    }
  }
  in.bytes -= got;
  return static_cast<ssize_t>(got);
}

ssize_t transmit(File& file, const msghdr& message) {
  System& system = *System::current();
  Connection& connection = *file.connection;
  if (connection.error != 0) return refuse(connection.error);
  Direction& out = connection.to[1 - file.end];
  if (connection.refuses[1 - file.end]) return refuse(EHOSTUNREACH);
  if (out.end_ns != kNever) return refuse(EPIPE);
  if (!connection.open[1 - file.end]) {
    connection.reset(system.now_ns());
    return refuse(ECONNRESET);
  }
  if (out.bytes >= out.room || refuses_by_chance(system)) return refuse(EAGAIN);
  std::size_t asked = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) asked += message.msg_iov[i].iov_len;
  std::size_t left = some_of(std::min(asked, out.room - out.bytes), system.manners().short_writes);
  std::vector<std::byte> data;
  data.reserve(left);
  for (std::size_t i = 0; i < message.msg_iovlen && left > 0; ++i) {
    const auto* from = static_cast<const std::byte*>(message.msg_iov[i].iov_base);
    const std::size_t n = std::min(left, message.msg_iov[i].iov_len);
    data.insert(data.end(), from, from + n);
    left -= n;
  }
  const auto sent = static_cast<ssize_t>(data.size());
  out.put(data, system.now_ns());
  return sent;
}

// Send one packet. Return false, with an error, if the system refuses it.
bool send_packet(File& file, const msghdr& message) {
  System& system = *System::current();
  Connection& connection = *file.connection;
  const int to = 1 - file.end;
  if (std::exchange(connection.refused[file.end], false)) {
    refuse(ECONNREFUSED);  // told once, about an earlier packet
    return false;
  }
  if (connection.refuses[to]) {
    refuse(EHOSTUNREACH);
    return false;
  }
  if (!connection.open[to]) {
    connection.refused[file.end] = true;
    return true;
  }
  if (refuses_by_chance(system)) {
    refuse(system.noise().percent(50) ? ENOBUFS : EAGAIN);
    return false;
  }
  std::vector<std::byte> packet;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    const auto* from = static_cast<const std::byte*>(message.msg_iov[i].iov_base);
    packet.insert(packet.end(), from, from + message.msg_iov[i].iov_len);
  }
  const auto& weather = connection.weather[to];
  auto& noise = system.noise();
  if (weather.loss > 0 && noise.percent(weather.loss)) return true;
  if (weather.damaged > 0 && noise.percent(weather.damaged) && !packet.empty())
    noise.one_of(packet) ^= static_cast<std::byte>(1 << noise.between(0, 7));
  const bool doubled = weather.doubled > 0 && noise.percent(weather.doubled);
  for (int copy = doubled ? 2 : 1; copy > 0; --copy)
    connection.to[to].put_packet(packet, system.now_ns(), noise.between(0, weather.jitter_ns));
  return true;
}

// Take the packet that has arrived first. Return false if none has.
bool receive_packet(File& file, mmsghdr& message) {
  System& system = *System::current();
  Direction& in = file.connection->to[file.end];
  if (in.pieces.empty() || in.pieces.front().arrival_ns > system.now_ns()) return false;
  const Direction::Piece packet = std::move(in.pieces.front());
  in.pieces.pop_front();
  in.bytes -= packet.bytes.size();
  const iovec& part = message.msg_hdr.msg_iov[0];
  const std::size_t bytes = std::min(part.iov_len, packet.bytes.size());
  if (bytes > 0) std::memcpy(part.iov_base, packet.bytes.data(), bytes);
  message.msg_len = static_cast<unsigned>(bytes);
  message.msg_hdr.msg_controllen = 0;
  return true;
}

int poll_events(File& file, epoll_event* events, int room, std::int64_t until_ns) {
  System& system = *System::current();
  const auto ready_ns = [&system, &file] {
    std::int64_t soonest = kNever;
    for (const auto& [fd, watch] : file.watched) {
      const File* watched = system.file(fd);
      if (watched != nullptr) soonest = std::min(soonest, system.ready_ns(*watched, watch.events));
    }
    return soonest;
  };
  if (until_ns > system.now_ns() && Fiber::current() != nullptr) system.wait(ready_ns, until_ns);
  int found = 0;
  for (const auto& [fd, watch] : file.watched) {
    const File* watched = system.file(fd);
    if (watched == nullptr || found == room) continue;
    const std::uint32_t ready = system.ready_events(*watched, watch.events);
    if (ready == 0) continue;
    events[found].events = ready;
    events[found++].data.u64 = watch.data;
  }
  return found;
}

sockaddr_in address_of(int process) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(0x0A000001u + static_cast<std::uint32_t>(process));
  return address;
}

int give_address(int process, sockaddr* address, socklen_t* size) {
  const sockaddr_in found = address_of(process);
  std::memcpy(address, &found, std::min<std::size_t>(*size, sizeof found));
  *size = sizeof found;
  return 0;
}

bool simulates() { return System::current() != nullptr; }

}  // namespace

extern "C" {

ssize_t __real_sendmsg(int, const msghdr*, int);
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  if (!of_simulation(fd)) return __real_sendmsg(fd, message, flags);
  File* file = simulated(fd);
  return file == nullptr ? refuse(EBADF) : transmit(*file, *message);
}

int __real_sendmmsg(int, mmsghdr*, unsigned, int);
int __wrap_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (!of_simulation(fd)) return __real_sendmmsg(fd, messages, count, flags);
  File* file = simulated(fd);
  if (file == nullptr) return static_cast<int>(refuse(EBADF));
  unsigned sent = 0;
  while (sent < count && send_packet(*file, messages[sent].msg_hdr)) ++sent;
  return sent > 0 || count == 0 ? static_cast<int>(sent) : -1;
}

int __real_recvmmsg(int, mmsghdr*, unsigned, int, timespec*);
int __wrap_recvmmsg(int fd, mmsghdr* messages, unsigned room, int flags, timespec* timeout) {
  if (!of_simulation(fd)) return __real_recvmmsg(fd, messages, room, flags, timeout);
  File* file = simulated(fd);
  if (file == nullptr) return static_cast<int>(refuse(EBADF));
  unsigned received = 0;
  while (received < room && receive_packet(*file, messages[received])) ++received;
  if (received > 0) return static_cast<int>(received);
  const bool refused = std::exchange(file->connection->refused[file->end], false);
  return static_cast<int>(refuse(refused ? ECONNREFUSED : EAGAIN));
}

ssize_t __real_recv(int, void*, std::size_t, int);
ssize_t __wrap_recv(int fd, void* buffer, std::size_t bytes, int flags) {
  if (!of_simulation(fd)) return __real_recv(fd, buffer, bytes, flags);
  const iovec part{buffer, bytes};
  File* file = simulated(fd);
  return file == nullptr ? refuse(EBADF) : receive(*file, &part, 1);
}

ssize_t __real_readv(int, const iovec*, int);
ssize_t __wrap_readv(int fd, const iovec* parts, int count) {
  if (!of_simulation(fd)) return __real_readv(fd, parts, count);
  File* file = simulated(fd);
  return file == nullptr ? refuse(EBADF) : receive(*file, parts, count);
}

ssize_t __real_read(int, void*, std::size_t);
ssize_t __wrap_read(int fd, void* buffer, std::size_t bytes) {
  if (!of_simulation(fd)) return __real_read(fd, buffer, bytes);
  File* file = simulated(fd);
  if (file == nullptr) return refuse(EBADF);
  if (*file->count == 0) return refuse(EAGAIN);
  std::memcpy(buffer, file->count.get(), sizeof *file->count);
  *file->count = 0;
  return sizeof *file->count;
}

ssize_t __real_write(int, const void*, std::size_t);
ssize_t __wrap_write(int fd, const void* buffer, std::size_t bytes) {
  if (!of_simulation(fd)) return __real_write(fd, buffer, bytes);
  File* file = simulated(fd);
  if (file == nullptr) return refuse(EBADF);
  std::uint64_t more = 0;
  std::memcpy(&more, buffer, sizeof more);
  *file->count += more;
  return sizeof more;
}

int __real_setsockopt(int, int, int, const void*, socklen_t);
int __wrap_setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  if (!of_simulation(fd)) return __real_setsockopt(fd, level, name, value, size);
  File* file = simulated(fd);
  if (file == nullptr) return static_cast<int>(refuse(EBADF));
  int number = 0;
  std::memcpy(&number, value, std::min<std::size_t>(size, sizeof number));
  if (level == SOL_SOCKET && name == SO_RCVLOWAT)
    file->least = static_cast<std::size_t>(std::max(number, 1));
  return 0;
}

int __real_getsockopt(int, int, int, void*, socklen_t*);
int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  if (!of_simulation(fd)) return __real_getsockopt(fd, level, name, value, size);
  File* file = simulated(fd);
  if (file == nullptr) return static_cast<int>(refuse(EBADF));
  if (level == SOL_SOCKET && name == SO_RCVBUF) {
    const int twice = static_cast<int>(2 * file->connection->to[file->end].room);
    std::memcpy(value, &twice, sizeof twice);
    return 0;
  }
  if (level != IPPROTO_TCP || name != TCP_INFO) return static_cast<int>(refuse(ENOPROTOOPT));
  const std::int64_t now = System::current()->now_ns();
  Direction& out = file->connection->to[1 - file->end];
  out.confirm(now);
  tcp_info info{};
  info.tcpi_unacked =
      static_cast<std::uint32_t>((out.sent - out.confirmed + kPacketBytes - 1) / kPacketBytes);
  info.tcpi_bytes_acked = out.confirmed;
  info.tcpi_last_ack_recv = static_cast<std::uint32_t>((now - out.last_confirmed_ns) / 1'000'000);
  info.tcpi_rtt = static_cast<std::uint32_t>(2 * out.delay_ns / kMicrosecond);
  info.tcpi_min_rtt = info.tcpi_rtt;
  info.tcpi_delivery_rate = static_cast<std::uint64_t>(out.bytes_per_ns * 1e9);
  std::memcpy(value, &info, std::min<std::size_t>(*size, sizeof info));
  return 0;
}

int __real_ioctl(int, unsigned long, ...);
int __wrap_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  if (!of_simulation(fd)) return __real_ioctl(fd, request, argument);
  File* file = simulated(fd);
  if (file == nullptr) return static_cast<int>(refuse(EBADF));
  if (request != SIOCOUTQ) return static_cast<int>(refuse(EINVAL));
  Direction& out = file->connection->to[1 - file->end];
  out.confirm(System::current()->now_ns());
  *static_cast<int*>(argument) = static_cast<int>(out.sent - out.confirmed);
  return 0;
}

int __real_fcntl(int, int, ...);
int __wrap_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  if (!of_simulation(fd)) return __real_fcntl(fd, command, argument);
  return command == F_GETFL ? O_NONBLOCK : 0;
}

int __real_close(int);
int __wrap_close(int fd) {
  if (!of_simulation(fd)) return __real_close(fd);
  if (simulated(fd) == nullptr) return static_cast<int>(refuse(EBADF));
  System::current()->close(fd);
  return 0;
}

int __real_shutdown(int, int);
int __wrap_shutdown(int fd, int how) {
  if (!of_simulation(fd)) return __real_shutdown(fd, how);
  if (simulated(fd) == nullptr) return static_cast<int>(refuse(EBADF));
  System::current()->shut_down(fd, how == SHUT_WR);
  return 0;
}

int __real_eventfd(unsigned, int);
int __wrap_eventfd(unsigned count, int flags) {
  System* system = System::current();
  if (system == nullptr) return __real_eventfd(count, flags);
  File file{File::Kind::kEvent,
            system->process(),
            nullptr,
            0,
            1,
            std::make_shared<std::uint64_t>(count),
            {}};
  return system->add(std::move(file));
}

int __real_epoll_create1(int);
int __wrap_epoll_create1(int flags) {
  System* system = System::current();
  if (system == nullptr) return __real_epoll_create1(flags);
  File file{File::Kind::kPoll, system->process(), nullptr, 0, 1, nullptr, {}};
  return system->add(std::move(file));
}

int __real_epoll_ctl(int, int, int, epoll_event*);
int __wrap_epoll_ctl(int poll, int operation, int fd, epoll_event* event) {
  if (!of_simulation(poll)) return __real_epoll_ctl(poll, operation, fd, event);
  File* file = simulated(poll);
  if (file == nullptr) return static_cast<int>(refuse(EBADF));
  const bool there = file->watched.contains(fd);
  if (operation == EPOLL_CTL_ADD && there) return static_cast<int>(refuse(EEXIST));
  if (operation != EPOLL_CTL_ADD && !there) return static_cast<int>(refuse(ENOENT));
  if (operation == EPOLL_CTL_DEL)
    file->watched.erase(fd);
  else
    file->watched[fd] = {event->events, event->data.u64};
  return 0;
}

int __real_epoll_wait(int, epoll_event*, int, int);
int __wrap_epoll_wait(int poll, epoll_event* events, int room, int milliseconds) {
  if (!of_simulation(poll)) return __real_epoll_wait(poll, events, room, milliseconds);
  File* file = simulated(poll);
  if (file == nullptr) return static_cast<int>(refuse(EBADF));
  const std::int64_t now = System::current()->now_ns();
  const std::int64_t until =
      milliseconds < 0 ? kNever : now + milliseconds * std::int64_t{1'000'000};
  return poll_events(*file, events, room, until);
}

// The only call is epoll_pwait2, which a system before Linux 5.11 refuses.
long __real_syscall(long, ...);
long __wrap_syscall(long number, ...) {
  if (simulates()) return refuse(ENOSYS);
  va_list arguments;
  va_start(arguments, number);
  long given[6];
  for (long& each : given) each = va_arg(arguments, long);
  va_end(arguments);
  return __real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

ssize_t __real_readlink(const char*, char*, std::size_t);
ssize_t __wrap_readlink(const char* path, char* buffer, std::size_t room) {
  if (!simulates()) return __real_readlink(path, buffer, room);
  constexpr char kEventfd[] = "anon_inode:[eventfd]";
  const std::size_t bytes = std::min(room, sizeof kEventfd - 1);
  std::memcpy(buffer, kEventfd, bytes);
  return static_cast<ssize_t>(bytes);
}

int __real_getsockname(int, sockaddr*, socklen_t*);
int __wrap_getsockname(int fd, sockaddr* address, socklen_t* size) {
  if (!of_simulation(fd)) return __real_getsockname(fd, address, size);
  File* file = simulated(fd);
  if (file == nullptr || file->connection == nullptr) return static_cast<int>(refuse(EBADF));
  return give_address(file->connection->process[file->end], address, size);
}

int __real_getpeername(int, sockaddr*, socklen_t*);
int __wrap_getpeername(int fd, sockaddr* address, socklen_t* size) {
  if (!of_simulation(fd)) return __real_getpeername(fd, address, size);
  File* file = simulated(fd);
  if (file == nullptr || file->connection == nullptr) return static_cast<int>(refuse(EBADF));
  return give_address(file->connection->process[1 - file->end], address, size);
}

int __real_clock_gettime(clockid_t, timespec*);
int __wrap_clock_gettime(clockid_t clock, timespec* time) {
  System* system = System::current();
  if (system == nullptr) return __real_clock_gettime(clock, time);
  system->pass(kClockNs);
  system->preempt(kPreemptedAtClock);
  time->tv_sec = system->clock_ns() / 1'000'000'000;
  time->tv_nsec = system->clock_ns() % 1'000'000'000;
  return 0;
}

int __real_getifaddrs(ifaddrs**);
int __wrap_getifaddrs(ifaddrs** all) {
  return simulates() ? static_cast<int>(refuse(ENOSYS)) : __real_getifaddrs(all);
}

// std::chrono::steady_clock::now()
std::chrono::steady_clock::time_point __real__ZNSt6chrono3_V212steady_clock3nowEv();
std::chrono::steady_clock::time_point __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  System* system = System::current();
  if (system == nullptr) return __real__ZNSt6chrono3_V212steady_clock3nowEv();
  system->pass(kClockNs);
  system->preempt(kPreemptedAtClock);
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(system->clock_ns()));
}

}  // extern "C"
