// A query for the largest packet that the network interface behind a socket accepts uncut.
#pragma once

#include <cstddef>

namespace slackline {

// Return the size, headers included, of the largest packet that the kernel segments only at the
// interface of the socket's address (IFLA_GSO_MAX_SIZE). The kernel cuts a longer packet early, and
// each of its datagrams then crosses the whole network stack. Return 65536 when the limit cannot
// be determined.
std::size_t largest_uncut_packet(int fd);

}  // namespace slackline
