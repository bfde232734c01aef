// A rail (one path to a peer) over a connected UDP socket. This file handles the socket, its errors
// and the clock; UdpProtocol turns datagrams into whole frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "udp_protocol.h"
#include "udp_socket.h"
#include "wire_rail.h"

namespace slackline {

class UdpRail final : public WireRail {
 public:
  // Take ownership of `fd`, which must be connected, unless the constructor throws, and make it
  // non-blocking. `job` is the job code that every frame must carry. `most_packet_bytes` limits
  // datagrams to less than the path allows.
  UdpRail(int fd, std::uint32_t job, std::size_t most_packet_bytes = kUdpMaxPacket);
  // Tell the peer that this end closes, without a guarantee of delivery.
  ~UdpRail() override;

  RailKind kind() const override { return RailKind::kUdp; }
  int fd() const override { return socket_.fd(); }
  void leave_to_parent() override { socket_.leave_to_parent(); }
  bool room() const override {
    return protocol_.sender().queued_bytes() < kQueueBytes && !failure();
  }
  std::size_t queued_bytes() const override { return protocol_.sender().waiting_bytes(); }
  std::size_t queued_frames() const override { return protocol_.sender().waiting_frames(); }
  std::uint64_t enqueued() const override { return 0; }
  bool departed(std::uint64_t) const override {
    return !protocol_.sender().in_flight() && protocol_.sender().waiting_frames() == 0;
  }
  void enqueue(const wire::Header& header, const std::byte* payload,
               std::uint32_t length) override {
    or_end([&] { protocol_.sender().enqueue(header, payload, length); });
  }
  void repoint(std::uint32_t sequence, const std::byte* to) override {
    protocol_.sender().repoint(sequence, to);
  }
  void release(std::uint32_t sequence) override {
    or_end([&] { protocol_.sender().release(sequence); });
  }
  void flush(std::int64_t now_ns) override {
    or_end([&] { send_due(now_ns); });
  }
  bool blocked() const override { return blocked_; }
  void writable() override { blocked_ = false; }
  bool far() const override { return far_; }
  std::int64_t due_ns() const override;
  // Handle due timers. Call poll() first, because packets that have already arrived may make a
  // retransmission unnecessary.
  void tick(std::int64_t now_ns) override;
  bool poll(Link& link, FrameSink& sink, std::int64_t now_ns) override;
  void forget(const Request* owner, FrameSink& sink) override {
    or_end([&] { protocol_.receiver().forget(owner, sink); });
  }
  void abandon(FrameSink& sink) override { protocol_.receiver().abandon(sink); }
  Confirmation confirmation(std::int64_t now_ns) override;

  const UdpProtocol& protocol() const { return protocol_; }
  UdpSocket& socket() { return socket_; }

 private:
  static constexpr std::size_t kQueueBytes = 512u << 10;
  static constexpr std::size_t kCloses = 3;
  static constexpr std::int64_t kRetryNs = 1'000'000;  // when the system has no memory for a packet
  static constexpr std::int64_t kMtuCheckNs = 1'000'000'000;
  // ICMP reports that no process listens at the peer's port. A single report may be forged or older
  // than the peer, so the rail fails only after this many reports over at least this time.
  static constexpr int kRefusals = 5;
  static constexpr std::int64_t kRefusedNs = 100'000'000;

  // A datagram that an injected fault delays.
  struct Held {
    std::int64_t release_ns;
    std::uint64_t order;
    std::vector<std::byte> bytes;
  };
  static bool later(const Held& a, const Held& b) {
    return std::pair(a.release_ns, a.order) > std::pair(b.release_ns, b.order);
  }

  // Do a part of the work. Without memory for it the protocol's state is not known any more, so the
  // rail ends: its frames go over another rail, or the link ends.
  template <class Work>
  void or_end(const Work& work) noexcept {
    try {
      work();
    } catch (const std::bad_alloc&) {
      fail(Fault::kLink, "out of memory");  // fits into a string without memory
    }
  }
  void send_due(std::int64_t now_ns);
  void receive_arrived(Link& link, FrameSink& sink, std::int64_t now_ns, bool& any);
  std::size_t transmit(std::span<const UdpPacket> packets, std::int64_t now_ns);
  void apply_faults(std::span<const UdpPacket> packets, std::int64_t now_ns);
  // Send the datagrams whose injected delay has passed.
  void release_due(std::int64_t now_ns);
  bool broken(int error, const char* doing, std::int64_t now_ns);
  void check_mtu(std::int64_t now_ns);

  const std::size_t most_packet_bytes_;
  UdpSocket socket_;
  UdpProtocol protocol_;
  std::array<UdpPacket, UdpSocket::kBatch> packets_;
  std::size_t packet_bytes_;
  bool blocked_ = false;
  const bool far_;
  std::vector<Held> held_;  // a heap, earliest departure on top
  std::uint64_t held_order_ = 0;
  std::int64_t retry_ns_ = 0;
  bool refused_ = false;  // the system had no memory for the last packet
  std::int64_t mtu_checked_ns_ = 0;
  std::int64_t last_ns_ = 0;
  int refusals_ = 0;  // consecutive ones, without a packet of the peer between them
  std::int64_t first_refusal_ns_ = 0;
  std::uint64_t taken_then_ = 0;
};

}  // namespace slackline
