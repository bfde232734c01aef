// What the network interface behind a socket takes in one piece.
#pragma once

#include <cstddef>

namespace slackline {

// The largest packet, headers included, that the interface of the socket's own address lets the
// kernel cut as late as that (IFLA_GSO_MAX_SIZE): a longer one is cut at once, and every datagram
// of it crosses the whole stack. 65536 where it cannot be told.
std::size_t largest_uncut_packet(int fd);

}  // namespace slackline
