// UDP rails (paths to a peer) over real sockets.
#pragma once

#include <memory>
#include <utility>

#include "../src/base/clock.h"
#include "../src/rail/udp.h"
#include "datagrams.h"
#include "frames.h"
#include "parts.h"
#include "udp_network.h"

namespace slackline::test {

// An end of a UDP rail, with the engine and link that it needs.
struct UdpEnd {
  explicit UdpEnd(int fd, std::size_t most_packet_bytes = kUdpMaxPacket)
      : link(parts.add("test")), rail(std::make_unique<UdpRail>(fd, kJobCode, most_packet_bytes)) {}
  ~UdpEnd() {
    if (rail) rail->abandon(sink);
  }
  // Send frames `next` to `last` as far as there is room, and read what has arrived.
  void work(std::int64_t now = now_ns()) {
    rail->poll(link, sink, now);
    if (rail->due_ns() <= now) rail->tick(now);
    while (next <= last && rail->room()) {
      const std::uint32_t bytes = length(next);
      rail->enqueue(data_header(next, bytes), payload_of(next), bytes);
      ++next;
    }
    rail->writable();
    rail->flush(now);
  }

  Parts parts;
  Link& link;
  Checker sink;
  std::unique_ptr<UdpRail> rail;
  std::uint32_t next = 1;
  std::uint32_t last = 0;
  std::function<std::uint32_t(std::uint32_t)> length;
};

}  // namespace slackline::test
