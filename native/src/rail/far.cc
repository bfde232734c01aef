#include "far.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

namespace slackline {

bool leaves_host(int fd) {
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t here_size = sizeof here;
  socklen_t there_size = sizeof there;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0)
    return false;  // not connected any more: its first use will report that
  if (here.ss_family != there.ss_family) return false;
  if (here.ss_family == AF_INET) {
    const auto host = [](const sockaddr_storage& address) {
      return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
    };
    return host(there) >> 24 != 127 && host(there) != host(here);
  }
  if (here.ss_family != AF_INET6) return false;
  const in6_addr& ours = reinterpret_cast<const sockaddr_in6&>(here).sin6_addr;
  const in6_addr& theirs = reinterpret_cast<const sockaddr_in6&>(there).sin6_addr;
  return !IN6_IS_ADDR_LOOPBACK(&theirs) && std::memcmp(&ours, &theirs, sizeof ours) != 0;
}

}  // namespace slackline
