// UDP sockets on the loopback interface.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "check.h"

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

// Return two sockets that are connected to each other.
inline std::pair<int, int> udp_pair() {
  sockaddr_in a, b;
  const int x = udp_socket(&a);
  const int y = udp_socket(&b);
  udp_connect(x, b);
  udp_connect(y, a);
  return {x, y};
}

}  // namespace slackline::test
