// An end of a UDP rail without its socket: packets go in and come out, and the caller supplies the
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "udp_arrivals.h"
#include "udp_packet.h"
#include "udp_receiver.h"
#include "udp_sender.h"

namespace slackline {

class UdpProtocol {
 public:
  struct Options {
    std::uint32_t job = 0;
    std::size_t packet_bytes = 1472;          // the longest datagram to send
    std::uint64_t receive_window = 1u << 20;  // bytes that may be in flight to us
    std::uint64_t first_number = 0;           // of packets and frames, the same at both ends
  };
  explicit UdpProtocol(const Options& options)
      : job_(options.job),
        window_(options.receive_window),
        arrivals_(options.packet_bytes, options.first_number),
        receiver_(options.job, options.first_number),
        sender_(options.packet_bytes, options.first_number) {}

  UdpSender& sender() { return sender_; }
  const UdpSender& sender() const { return sender_; }
  UdpReceiver& receiver() { return receiver_; }
  const UdpReceiver& receiver() const { return receiver_; }

  // Return the next datagram that may be sent now, if any, and count it as sent. The datagram's
  // memory is valid until the next call of anything but next() and take_back().
  bool next(UdpPacket& packet, std::int64_t now_ns);
  // Take back a packet that the socket refused. The packet must be the latest that has not been
  // taken back yet.
  void take_back(const UdpPacket& packet);
  // Process a datagram that arrived at `arrival_ns`.
  void receive(std::span<const std::byte> datagram, std::int64_t arrival_ns, std::int64_t now_ns,
               Link& link, FrameSink& sink);
  void tick(std::int64_t now_ns) { sender_.tick(now_ns); }
  std::int64_t due_ns() const { return std::min(sender_.due_ns(), arrivals_.due_ns()); }
  // Fill in a datagram that tells the peer that this end closes, and why.
  void close(UdpPacket& packet, UdpClose why) const;

  const std::optional<UdpClose>& closed() const { return closed_; }  // by the peer
  std::uint64_t taken() const { return taken_; }                     // valid datagrams
  std::uint64_t refused() const { return refused_; }  // damaged, foreign or contradictory ones
  std::uint64_t duplicates() const { return duplicates_; }

 private:
  bool take(const UdpHeader& header, std::span<const std::byte> body, std::int64_t arrival_ns,
            std::int64_t now_ns, Link& link, FrameSink& sink);

  const std::uint32_t job_;
  const std::uint64_t window_;
  UdpArrivals arrivals_;
  UdpReceiver receiver_;
  UdpSender sender_;
  bool spoke_ = false;  // in this burst, since its last ACK: an ACK may travel along
  std::optional<UdpClose> closed_;
  std::uint64_t taken_ = 0;
  std::uint64_t refused_ = 0;
  std::uint64_t duplicates_ = 0;
};

}  // namespace slackline
