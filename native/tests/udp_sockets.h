// UDP rails over sockets of the loopback interface.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <memory>
#include <utility>

#include "../src/engine/clock.h"
#include "../src/rail/udp.h"
#include "frames.h"
#include "udp_network.h"

namespace slackline::test {

inline int udp_socket(sockaddr_in* bound) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  *bound = sockaddr_in{};
  bound->sin_family = AF_INET;
  bound->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof *bound;
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(bound), size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(bound), &size) != 0)
    fail("a UDP socket on the loopback interface");
  return fd;
}

inline void udp_connect(int fd, const sockaddr_in& to) {
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) fail("connect");
}

// Two sockets, each connected to the other.
inline std::pair<int, int> udp_pair() {
  sockaddr_in a, b;
  const int x = udp_socket(&a);
  const int y = udp_socket(&b);
  udp_connect(x, b);
  udp_connect(y, a);
  return {x, y};
}

// An end of a rail with all that it needs.
struct UdpEnd {
  explicit UdpEnd(int fd, std::size_t most_packet_bytes = kUdpMaxPacket)
      : engine(tiny()),
        link(engine, 0, "test"),
        rail(std::make_unique<UdpRail>(fd, kJobCode, most_packet_bytes)) {}
  ~UdpEnd() {
    if (rail) rail->abandon(sink);
  }
  static EngineOptions tiny() {
    EngineOptions options;
    options.arena_bytes = 2u << 20;
    return options;
  }
  // Sends frames from `next` to `last` as there is room, and reads.
  void work(std::int64_t now = now_ns()) {
    rail->poll(link, sink, now);
    if (rail->due_ns() <= now) rail->tick(now);
    while (next <= last && rail->room()) {
      const std::uint32_t bytes = length(next);
      rail->enqueue(data_header(next, bytes), payload_of(next), bytes);
      ++next;
    }
    rail->flush(now);
  }

  Engine engine;
  Link link;
  Checker sink;
  std::unique_ptr<UdpRail> rail;
  std::uint32_t next = 1;
  std::uint32_t last = 0;
  std::function<std::uint32_t(std::uint32_t)> length;
};

}  // namespace slackline::test
