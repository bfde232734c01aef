// Detection of sockets whose peer is on another host.
#pragma once

namespace slackline {

// Return whether the peer's address differs from the socket's own and is not loopback. Return
// false for a socket that is not connected or is neither IPv4 nor IPv6.
bool leaves_host(int fd);

}  // namespace slackline
