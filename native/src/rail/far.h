// Whether a socket's peer is another host.
#pragma once

namespace slackline {

// False for sockets that are not connected, or not IPv4 or IPv6.
bool leaves_host(int fd);

}  // namespace slackline
