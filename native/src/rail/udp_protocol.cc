#include "udp_protocol.h"

#include <utility>

namespace slackline {

bool UdpProtocol::next(UdpPacket& packet, std::int64_t now_ns) {
  if (!arrivals_.urgent(now_ns)) {
    if (sender_.next(packet, now_ns)) {
      spoke_ = true;
      packet.seal(job_);
      return true;
    }
    if (!std::exchange(spoke_, false) || !arrivals_.pending()) return false;
  }
  spoke_ = false;
  arrivals_.acknowledge(packet, window_, now_ns);
  packet.seal(job_);
  return true;
}

void UdpProtocol::take_back(const UdpPacket& packet) {
  if (packet.header.kind == UdpKind::kAck) {
    arrivals_.again();
  } else {
    sender_.take_back();
  }
}

void UdpProtocol::close(UdpPacket& packet, UdpClose why) const {
  packet = UdpPacket{};
  packet.header.kind = UdpKind::kClose;
  packet.header.number = static_cast<std::uint32_t>(why);
  packet.seal(job_);
}

void UdpProtocol::receive(std::span<const std::byte> datagram, std::int64_t arrival_ns,
                          std::int64_t now_ns, Link& link, FrameSink& sink) {
  UdpHeader header;
  if (udp_open(datagram, job_, &header) &&
      take(header, datagram.subspan(sizeof header), arrival_ns, now_ns, link, sink)) {
    ++taken_;
  } else {
    ++refused_;
  }
}

bool UdpProtocol::take(const UdpHeader& header, std::span<const std::byte> body,
                       std::int64_t arrival_ns, std::int64_t now_ns, Link& link, FrameSink& sink) {
  switch (header.kind) {
    case UdpKind::kAck:
      return sender_.acknowledge(header, body, arrival_ns, now_ns);
    case UdpKind::kClose:
      if (!body.empty() || header.number > static_cast<std::uint32_t>(UdpClose::kRail))
        return false;
      closed_ = static_cast<UdpClose>(header.number);
      return true;
    case UdpKind::kData:
    case UdpKind::kSkip: {
      const std::uint64_t number = arrivals_.expand(header.number);
      if (!arrivals_.is_new(number)) {
        ++duplicates_;
        return true;
      }
      const std::uint64_t frames = receiver_.frames();
      const bool skip = header.kind == UdpKind::kSkip;
      if (skip ? !body.empty() || !receiver_.skip(header, sink)
               : !receiver_.take(header, body, link, sink))
        return false;
      arrivals_.add(number, sizeof header + body.size(), arrival_ns,
                    skip || receiver_.frames() != frames);
      return true;
    }
  }
  return false;
}

}  // namespace slackline
