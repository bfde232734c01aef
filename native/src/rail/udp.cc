#include "udp.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "far.h"

namespace slackline {
namespace {

std::int64_t read_clock(clockid_t which) {
  timespec time{};
  ::clock_gettime(which, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

UdpRail::UdpRail(int fd, std::uint32_t job, std::size_t most_packet_bytes)
    : WireRail(job, false),
      most_packet_bytes_(std::clamp(most_packet_bytes, kUdpMinPacket, kUdpMaxPacket)),
      socket_(fd),
      protocol_(
          {job, std::min(most_packet_bytes_, socket_.packet_bytes()), socket_.receive_window(), 0}),
      packet_bytes_(std::min(most_packet_bytes_, socket_.packet_bytes())),
      far_(leaves_host(fd)) {
  socket_.own();
}

UdpRail::~UdpRail() {
  if (failure().fault == Fault::kPeer) return;
  std::size_t count = 0;
  or_end([&] {
    if (failure()) return;
    protocol_.sender().last_words();
    while (count < packets_.size() - kCloses && protocol_.next(packets_[count], last_ns_)) ++count;
  });
  for (std::size_t i = 0; i < kCloses; ++i)
    protocol_.close(packets_[count++], failure() ? UdpClose::kRail : UdpClose::kEnd);
  if (injector_ == nullptr || !injector_->decide(last_ns_, 0).drop)
    socket_.send({packets_.data(), count});
}

// Handle a socket error. Return true when the error ends the rail. Errors of a network interface
// that is down for a moment count as lost packets.
bool UdpRail::broken(int error, const char* doing, std::int64_t now_ns) {
  switch (error) {
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ENONET:
    case EADDRNOTAVAIL:  // the interface has lost its address
    case EPERM:          // a packet filter refused the packet
    case EACCES:
    case EPROTO:
    case ENOPROTOOPT:
    case EMSGSIZE:
      return false;
    case ECONNREFUSED:
      if (protocol_.taken() != taken_then_) refusals_ = 0;
      taken_then_ = protocol_.taken();
      if (refusals_++ == 0) first_refusal_ns_ = now_ns;
      if (refusals_ < kRefusals || now_ns - first_refusal_ns_ < kRefusedNs) return false;
      fail(Fault::kPeer, "nobody listens at the peer's port");
      return true;
    default:
      fail(Fault::kLink, std::string(doing) + " failed: " + std::strerror(error));
      return true;
  }
}

// Send packets. Return the number that the system has taken; packets lost by an error count too.
std::size_t UdpRail::transmit(std::span<const UdpPacket> packets, std::int64_t now_ns) {
  std::size_t done = 0;
  while (done < packets.size()) {
    const UdpSocket::Sent sent = socket_.send(packets.subspan(done));
    counters_.packets_sent += sent.packets;
    done += sent.packets;
    if (sent.error == 0) continue;
    if (sent.error == EAGAIN || sent.error == EWOULDBLOCK) {
      blocked_ = true;
      break;
    }
    if (sent.error == ENOBUFS || sent.error == ENOMEM) {
      retry_ns_ = now_ns + kRetryNs;
      refused_ = true;
      break;
    }
    if (broken(sent.error, "sending", now_ns)) break;
    // ECONNREFUSED concerns an earlier packet and is only reported now. Any other error means that
    // this packet is lost.
    if (sent.error != ECONNREFUSED) ++done;
  }
  return done;
}

// Apply injected faults to packets.
void UdpRail::apply_faults(std::span<const UdpPacket> packets, std::int64_t now_ns) {
  for (const UdpPacket& packet : packets) {
    const Injector::Decision decision = injector_->decide(now_ns, packet.bytes());
    if (decision.drop) continue;
    Held held{decision.release_ns, 0, std::vector<std::byte>(packet.bytes())};
    std::byte* to = held.bytes.data();
    std::memcpy(to, &packet.header, sizeof packet.header);
    to += sizeof packet.header;
    for (const auto& part : packet.parts) to = std::copy(part.begin(), part.end(), to);
    if (decision.corrupt) held.bytes[injector_->place(held.bytes.size())] ^= std::byte{0x10};
    for (int i = 0; i < decision.copies; ++i) {
      held.order = held_order_++;
      held_.push_back(held);
      std::ranges::push_heap(held_, later);
    }
  }
}

void UdpRail::release_due(std::int64_t now_ns) {
  while (!held_.empty() && held_.front().release_ns <= now_ns && !blocked_ && !failure()) {
    const std::vector<std::byte>& bytes = held_.front().bytes;
    UdpPacket packet;
    std::memcpy(static_cast<void*>(&packet.header), bytes.data(), sizeof packet.header);
    packet.parts[0] = std::span(bytes).subspan(sizeof packet.header);
    if (transmit({&packet, 1}, now_ns) == 0) return;
    std::ranges::pop_heap(held_, later);
    held_.pop_back();
  }
}

void UdpRail::send_due(std::int64_t now_ns) {
  last_ns_ = now_ns;
  if (failure() || blocked_ || now_ns < retry_ns_) return;
  refused_ = false;
  release_due(now_ns);
  while (!failure() && !blocked_ && now_ns >= retry_ns_) {
    std::size_t count = 0;
    while (count < packets_.size() && protocol_.next(packets_[count], now_ns)) ++count;
    if (count == 0) break;
    check_mtu(now_ns);
    const std::span<const UdpPacket> packets(packets_.data(), count);
    if (injector_ != nullptr) {
      apply_faults(packets, now_ns);
      release_due(now_ns);
      continue;
    }
    const std::size_t done = transmit(packets, now_ns);
    while (count > done) protocol_.take_back(packets_[--count]);
  }
  counters_.bytes_sent = protocol_.sender().counters().bytes;
  counters_.frames_sent = protocol_.sender().counters().frames;
  counters_.packets_resent = protocol_.sender().counters().resent;
  counters_.system_calls = socket_.system_calls();
}

void UdpRail::check_mtu(std::int64_t now_ns) {
  if (now_ns - mtu_checked_ns_ < kMtuCheckNs && mtu_checked_ns_ != 0) return;
  mtu_checked_ns_ = now_ns;
  const std::size_t bytes = std::min(most_packet_bytes_, socket_.packet_bytes());
  if (bytes == packet_bytes_) return;
  packet_bytes_ = bytes;
  protocol_.sender().resize(bytes);
}

std::int64_t UdpRail::due_ns() const {
  if (failure() || blocked_) return kNever;
  std::int64_t due = protocol_.due_ns();
  if (!held_.empty()) due = std::min(due, held_.front().release_ns);
  if (refused_) due = std::min(due, retry_ns_);
  return due == kNever ? kNever : std::max(due, retry_ns_);
}

void UdpRail::tick(std::int64_t now_ns) {
  if (failure()) return;
  or_end([&] { protocol_.tick(now_ns); });
}

bool UdpRail::poll(Link& link, FrameSink& sink, std::int64_t now_ns) {
  last_ns_ = now_ns;
  bool any = false;
  try {
    receive_arrived(link, sink, now_ns, any);
  } catch (const std::bad_alloc&) {
    fail(Fault::kLink, "out of memory");  // see or_end(); the sink may have failed as well
    throw;
  }
  counters_.bytes_received = protocol_.receiver().bytes();
  counters_.frames_received = protocol_.receiver().frames();
  counters_.packets_refused = protocol_.refused();
  counters_.system_calls = socket_.system_calls();
  or_end([&] {
    if (protocol_.closed() == UdpClose::kEnd) fail(Fault::kPeer, "the connection was closed");
    if (protocol_.closed() == UdpClose::kRail) fail(Fault::kLink, "the peer gave the rail up");
  });
  return any;
}

// Read the datagrams that have arrived. `any` is set when there is one.
void UdpRail::receive_arrived(Link& link, FrameSink& sink, std::int64_t now_ns, bool& any) {
  const std::int64_t to_ours = now_ns - read_clock(CLOCK_REALTIME);
  bool drained = false;
  for (int round = 0; round < 8 && !drained && !failure() && !(any && sink.lock_wanted());
       ++round) {
    int error = 0;
    const auto arrivals = socket_.receive(&error, &drained);
    if (error != 0 && error != EAGAIN && error != EWOULDBLOCK && error != EINTR) {
      broken(error, "receiving", now_ns);
      drained = false;  // the socket reports each error once; more data may follow
      continue;
    }
    for (const UdpSocket::Arrival& arrival : arrivals) {
      any = true;
      // Use the kernel's arrival time: the time a packet waited in the socket is not network delay.
      const std::int64_t came =
          arrival.time_ns == 0
              ? now_ns
              : std::clamp(arrival.time_ns + to_ours, now_ns - 1'000'000'000, now_ns + 1'000'000);
      const std::size_t unit = std::max<std::size_t>(arrival.unit, 1);
      std::size_t at = 0;
      do {
        const std::size_t bytes = std::min(unit, arrival.bytes.size() - at);
        protocol_.receive(arrival.bytes.subspan(at, bytes), came, now_ns, link, sink);
        at += bytes;
      } while (at < arrival.bytes.size());
    }
  }
}

Confirmation UdpRail::confirmation(std::int64_t) {
  const UdpSender& sender = protocol_.sender();
  Confirmation result;
  result.in_flight = sender.in_flight();
  result.unconfirmed = sender.unconfirmed_bytes();
  result.quiet_since_ns = sender.quiet_since_ns();
  result.round_trip_ns = sender.congestion().smoothed_ns();
  result.tries = sender.tries();
  return result;
}

}  // namespace slackline
