// Tests of the limits of the protocol of a UDP rail (a path to a peer): released frames, silence,
// foreign and malformed datagrams.
#include <array>

#include "udp_network.h"

namespace slackline::test {
namespace {

constexpr std::uint32_t kLong = 131'072;

// An end of a UDP rail; the test supplies its datagrams.
struct Alone {
  explicit Alone(std::uint64_t receive_window = 1u << 20)
      : link(network.link()), protocol({.job = kJobCode, .receive_window = receive_window}) {}
  Bytes data(std::uint32_t number, std::uint32_t frame, std::uint16_t unit, std::uint32_t total,
             std::uint32_t offset, const Bytes& body, std::uint32_t job = kJobCode) {
    UdpPacket packet;
    packet.header = {
        .unit = unit, .number = number, .frame = frame, .total = total, .offset = offset};
    packet.parts[1] = body;
    packet.seal(job);
    return flat(packet);
  }
  static Bytes flat(const UdpPacket& packet) {
    Bytes bytes(packet.bytes());
    std::memcpy(bytes.data(), &packet.header, sizeof packet.header);
    std::size_t at = sizeof packet.header;
    for (const auto& part : packet.parts) {
      std::copy(part.begin(), part.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
      at += part.size();
    }
    return bytes;
  }
  void receive(const Bytes& datagram) { protocol.receive(datagram, now, now, link, sink); }
  std::uint64_t refusals(const Bytes& datagram) {
    const std::uint64_t before = protocol.refused();
    receive(datagram);
    return protocol.refused() - before;
  }

  UdpNetwork network;
  Link& link;
  UdpProtocol protocol;
  Checker sink;
  std::int64_t now = kSecond;
};

// Return the bytes of a frame before they are cut into fragments.
Bytes frame_bytes(std::uint32_t sequence, std::uint32_t length) {
  const wire::Header header = data_header(sequence, length);
  Bytes bytes(sizeof header + length);
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, payload_of(sequence), length);
  return bytes;
}
Bytes piece(const Bytes& bytes, std::size_t from, std::size_t length) {
  return Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(from),
               bytes.begin() + static_cast<std::ptrdiff_t>(from + length));
}

TEST("a frame released on its way over UDP is not read again, and the peer lets go of its part") {
  UdpNetwork network;
  const std::size_t a = network.join();
  UdpSender& sender = network.end(a).protocol->sender();
  auto payload = std::make_unique<Bytes>(payload_of(7), payload_of(7) + kLong);
  sender.enqueue(data_header(7, kLong), payload->data(), kLong);
  network.run(network.now());  // the data of the first window is in flight
  network.end(a).out.down = true;
  network.run(network.now() + 2 * kMillisecond);
  CHECK(network.end(a + 1).protocol->receiver().held_bytes() > 0);
  sender.release(7);
  payload.reset();
  sender.enqueue(data_header(8, 100), payload_of(8), 100);
  network.end(a).out.down = false;
  CHECK(network.run(network.now() + kSecond, [&] { return !sender.in_flight(); }));
  CHECK_EQUAL(network.end(a + 1).protocol->receiver().held_bytes(), 0u);
  CHECK_EQUAL(network.end(a + 1).sink.buffers_out, 0);
  CHECK_EQUAL(network.end(a + 1).sink.seen.size(), 1u);
  CHECK(network.end(a + 1).sink.seen.contains(8));
  CHECK_EQUAL(sender.unconfirmed_bytes(), 0u);
}

TEST("a frame released before any of it left does not leave") {
  UdpNetwork network;
  const std::size_t a = network.join();
  UdpSender& sender = network.end(a).protocol->sender();
  sender.enqueue(data_header(1, kLong), payload_of(1), kLong);
  sender.enqueue(data_header(2, 0), nullptr, 0);
  sender.release(1);
  CHECK(network.run(network.now() + kSecond,
                    [&] { return network.end(a + 1).sink.seen.size() == 1; }));
  CHECK_EQUAL(sender.counters().packets, 1u);
  CHECK_EQUAL(sender.queued_bytes(), 0u);
}

TEST("a payload that moves while it is sent over UDP is read where it is") {
  UdpNetwork network;
  const std::size_t a = network.join({.loss = 0.1});
  UdpSender& sender = network.end(a).protocol->sender();
  auto payload = std::make_unique<Bytes>(payload_of(3), payload_of(3) + kLong);
  sender.enqueue(data_header(3, kLong), payload->data(), kLong);
  network.run(network.now());
  const Bytes moved(*payload);
  sender.repoint(3, moved.data());
  payload.reset();
  CHECK(network.run(network.now() + kSecond, [&] { return !sender.in_flight(); }));
  CHECK_EQUAL(network.end(a + 1).sink.seen.size(), 1u);
}

TEST("a payload on its way over UDP to memory that was taken back goes to a buffer") {
  UdpNetwork network;
  const std::size_t a = network.join();
  network.end(a).protocol->sender().enqueue(data_header(3, kLong), payload_of(3), kLong);
  Checker& sink = network.end(a + 1).sink;
  network.run(network.now() + kSecond, [&] { return !sink.places.empty(); });
  network.end(a + 1).protocol->receiver().forget(nullptr, sink);  // the checker names no request
  sink.places.clear();                                            // the memory is gone
  CHECK_EQUAL(sink.buffers_out, 1);
  CHECK(network.run(network.now() + kSecond, [&] { return sink.seen.size() == 1; }));
  CHECK_EQUAL(sink.landed, 0u);
  CHECK_EQUAL(sink.buffers_out, 0);
}

TEST("control frames overtake payloads on a UDP rail") {
  UdpNetwork network;
  const std::size_t a = network.join();
  UdpSender& sender = network.end(a).protocol->sender();
  for (std::uint32_t i = 1; i <= 3; ++i)
    sender.enqueue(data_header(i, kLong), payload_of(i), kLong);
  sender.enqueue(data_header(4, 0), nullptr, 0);
  Checker& sink = network.end(a + 1).sink;
  CHECK(network.run(network.now() + kSecond, [&] { return !sink.seen.empty(); }));
  CHECK(sink.seen.contains(4));
}

TEST(
    "a silent wire is tried at least every 50 ms and hardly more often, and is in use again at "
    "once") {
  UdpNetwork network;
  Bottleneck line;
  const std::size_t a = network.join();
  network.end(a).bottleneck = &line;
  network.feed(a, 1, 1000, [](std::uint32_t) { return kLong; });
  UdpNetwork::End& from = network.end(a);
  UdpSender& sender = from.protocol->sender();
  network.run(network.now() + 50 * kMillisecond);
  const std::size_t before = network.end(a + 1).sink.seen.size();
  CHECK(before > 0 && before < 1000);
  from.out.down = true;
  network.run(network.now() + 500 * kMillisecond);
  const std::uint64_t packets = from.packets;
  const std::int64_t down = network.now();
  network.run(down + 5 * kSecond);
  CHECK_EQUAL(from.packets - packets, 100u);
  CHECK(sender.in_flight());
  CHECK(network.now() - sender.quiet_since_ns() >= 5 * kSecond);
  CHECK(sender.tries() > 100);
  from.out.down = false;
  const std::int64_t up = network.now();
  CHECK(network.run(up + kSecond, [&] { return sender.quiet_since_ns() > up; }));
  CHECK(network.now() - up <= 51 * kMillisecond);
  CHECK_EQUAL(sender.tries(), 0);
  CHECK(
      network.run(up + 10 * kSecond, [&] { return network.end(a + 1).sink.seen.size() == 1000; }));
}

TEST("one seed gives one course of events on simulated wires") {
  const auto course = [](unsigned seed) {
    UdpNetwork network(seed);
    const std::size_t a = network.join({.loss = 0.1, .jitter_ns = kMillisecond});
    network.feed(a, 1, 20, [](std::uint32_t) { return kLong; });
    network.run(60 * kSecond, [&] { return network.end(a + 1).sink.seen.size() == 20; });
    return std::array<std::uint64_t, 3>{static_cast<std::uint64_t>(network.now()),
                                        network.end(a).packets, network.end(a + 1).packets};
  };
  CHECK(course(1) == course(1));
  CHECK(course(1) != course(2));
}

TEST(
    "packets of unknown senders and damaged ones are refused and counted, and nothing else "
    "happens") {
  Alone end;
  const Bytes frame = frame_bytes(1, 500);
  const std::uint32_t total = 564;
  CHECK_EQUAL(end.refusals(end.data(0, 0, 1448, total, 0, frame, kJobCode + 1)), 1u);
  for (std::size_t bit = 0; bit < 8 * (sizeof(UdpHeader) + frame.size()); bit += 37) {
    Bytes datagram = end.data(0, 0, 1448, total, 0, frame);
    datagram[bit / 8] ^= std::byte{1} << (bit % 8);
    CHECK_EQUAL(end.refusals(datagram), 1u);
  }
  for (std::size_t bytes = 0; bytes < sizeof(UdpHeader) + frame.size(); bytes += 29)
    CHECK_EQUAL(end.refusals(piece(end.data(0, 0, 1448, total, 0, frame), 0, bytes)), 1u);
  CHECK(end.sink.seen.empty());
  CHECK(end.protocol.due_ns() == UdpSender::kNever);
  CHECK_EQUAL(end.refusals(end.data(0, 0, 1448, total, 0, frame)), 0u);
  CHECK_EQUAL(end.sink.seen.size(), 1u);
}

TEST("packets that contradict themselves or another are refused") {
  Alone end;
  end.sink.lands = false;
  const Bytes frame = frame_bytes(1, 4000);
  const auto total = static_cast<std::uint32_t>(frame.size());
  const auto refused = [&](const Bytes& datagram) { return end.refusals(datagram) == 1; };
  CHECK(refused(end.data(0, 0, 100, total, 0, piece(frame, 0, 100))));  // the unit is too small
  CHECK(refused(end.data(0, 0, 9000, total, 0, frame)));                // the unit is too large
  CHECK(refused(end.data(0, 0, 1000, 63, 0, piece(frame, 0, 63))));     // shorter than a header
  CHECK(refused(end.data(0, 0, 1000, 64 + kMaxPayload + 1, 0, piece(frame, 0, 1000))));
  CHECK(refused(
      end.data(0, 0, 1000, total, 500, piece(frame, 500, 1000))));  // not a multiple of the unit
  CHECK(refused(end.data(0, 0, 1000, total, 5000, piece(frame, 0, 1000))));  // beyond the end
  CHECK(refused(end.data(0, 0, 1000, total, 1000, piece(frame, 1000, 999))));
  CHECK(refused(end.data(0, 0, 1000, total, 4000, piece(frame, 3064, 1000))));
  CHECK(refused(
      end.data(0, 0, 1000, total + 1, 0, piece(frame, 0, 1000))));  // contradicts the header inside
  CHECK(refused(end.data(0, kUdpOpenFrames, 1000, total, 0, piece(frame, 0, 1000))));
  CHECK(refused(end.data(0x8000'0000, 0, 1000, total, 0, piece(frame, 0, 1000))) == false);
  CHECK_EQUAL(end.protocol.receiver().held_bytes(), 0u);
  CHECK(!refused(end.data(0, 0, 1000, total, 1000, piece(frame, 1000, 1000))));
  CHECK(refused(end.data(1, 0, 1000, total + 8, 2000, piece(frame, 2000, 1000))));
  CHECK(refused(end.data(1, 0, 1024, total, 2048, piece(frame, 2048, 1024))));
  CHECK(!refused(end.data(1, 0, 1000, total, 0, piece(frame, 0, 1000))));
  CHECK(!refused(end.data(2, 0, 1000, total, 1000, Bytes(1000))));  // repeated, therefore ignored
  CHECK(!refused(end.data(3, 0, 1000, total, 2000, piece(frame, 2000, 1000))));
  CHECK(!refused(end.data(4, 0, 1000, total, 3000, piece(frame, 3000, 1000))));
  CHECK(end.sink.seen.empty());
  CHECK(!refused(end.data(5, 0, 1000, total, 4000, piece(frame, 4000, 64))));
  CHECK_EQUAL(end.sink.seen.size(), 1u);
  CHECK_EQUAL(end.sink.buffers_out, 0);
  CHECK(!refused(end.data(5, 0, 1000, total, 4000, piece(frame, 4000, 64))));  // a late copy
  CHECK_EQUAL(end.protocol.duplicates(), 2u);
}

// Receive the packets `first` to `last` of a frame that is cut into units of 1,000 bytes, and
// return the number of ACKs that leave meanwhile.
int acks_of(Alone& end, const Bytes& frame, std::uint32_t first, std::uint32_t last) {
  int acks = 0;
  for (std::uint32_t number = first; number <= last; ++number) {
    const std::uint32_t offset = 1000 * number;
    const auto total = static_cast<std::uint32_t>(frame.size());
    const std::size_t length = std::min<std::size_t>(1000, total - offset);
    end.receive(end.data(number, 0, 1000, total, offset, piece(frame, offset, length)));
    for (UdpPacket packet; end.protocol.next(packet, end.now); ++acks)
      CHECK(packet.header.kind == UdpKind::kAck);
  }
  return acks;
}

TEST("one ACK reports the packets of a frame that arrive together") {
  Alone end;
  const Bytes frame = frame_bytes(1, 4000);
  CHECK_EQUAL(acks_of(end, frame, 0, 3), 0);
  CHECK_EQUAL(end.protocol.due_ns(), end.now + 25'000);
  CHECK_EQUAL(acks_of(end, frame, 4, 4), 1);
  CHECK_EQUAL(end.sink.seen.size(), 1u);
  CHECK(end.protocol.due_ns() == UdpSender::kNever);
}

TEST("the packets of a frame that comes slowly are reported before its end") {
  Alone late, many;
  const Bytes frame = frame_bytes(1, 60'000);
  CHECK_EQUAL(acks_of(late, frame, 0, 3), 0);
  late.now += 25'000;
  CHECK_EQUAL(acks_of(late, frame, 4, 4), 1);
  CHECK_EQUAL(acks_of(many, frame, 0, 15), 0);
  CHECK_EQUAL(acks_of(many, frame, 16, 16), 1);
}

TEST("a gap between the packets of a frame is reported at once") {
  Alone end;
  const Bytes frame = frame_bytes(1, 60'000);
  CHECK_EQUAL(acks_of(end, frame, 0, 3), 0);
  CHECK_EQUAL(acks_of(end, frame, 5, 5), 1);
}

TEST("the ACK of a short frame leaves with data, not alone because data left before") {
  Alone end;
  UdpSender& sender = end.protocol.sender();
  const auto kinds = [&] {
    std::vector<UdpKind> found;
    for (UdpPacket packet; end.protocol.next(packet, end.now);) found.push_back(packet.header.kind);
    return found;
  };
  sender.enqueue(data_header(1, 100), payload_of(1), 100);
  CHECK(kinds() == std::vector{UdpKind::kData});
  end.receive(end.data(0, 0, 1448, 164, 0, frame_bytes(1, 100)));
  CHECK(kinds().empty());
  CHECK_EQUAL(end.protocol.due_ns(), end.now + 50'000);
  sender.enqueue(data_header(2, 100), payload_of(2), 100);
  CHECK((kinds() == std::vector{UdpKind::kData, UdpKind::kAck}));
}

TEST("what a peer may leave half sent over UDP is bounded") {
  Alone end;
  end.sink.lands = false;
  const std::uint32_t total = 1u << 20;
  for (std::uint32_t i = 0; i < 100; ++i)
    end.receive(end.data(i, i, 1024, total, 1024, Bytes(1024)));
  CHECK_EQUAL(end.protocol.receiver().held_bytes(), kUdpOpenBytes);
  CHECK_EQUAL(end.protocol.refused(), 100 - kUdpOpenBytes / total);
  CHECK_EQUAL(end.sink.buffers_out, static_cast<int>(kUdpOpenBytes / total));
  end.protocol.receiver().abandon(end.sink);
  CHECK_EQUAL(end.sink.buffers_out, 0);
}

TEST("an ACK of what was never sent is refused") {
  Alone end;
  UdpPacket ack;
  const Bytes map(1, std::byte{1});
  ack.header = {.kind = UdpKind::kAck, .unit = 1, .number = 0, .total = 1u << 20};
  ack.parts[1] = map;
  ack.seal(kJobCode);
  CHECK_EQUAL(end.refusals(Alone::flat(ack)), 1u);
}

TEST("a CLOSE ends the rail, or the process") {
  for (const UdpClose why : {UdpClose::kEnd, UdpClose::kRail}) {
    Alone end;
    UdpPacket packet;
    end.protocol.close(packet, why);
    CHECK(!end.protocol.closed());
    end.receive(Alone::flat(packet));
    CHECK(end.protocol.closed() == why);
  }
}

// Malformed datagrams with a correct checksum must neither crash the rail nor make it use memory
// without bound.
TEST("nonsense with the right checksum does a UDP rail no harm") {
  std::mt19937_64 dice(11);
  const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(dice() % n); };
  for (int round = 0; round < 20; ++round) {
    Alone end;
    end.sink.lands = round % 2 == 0;
    std::uint32_t sent = 0;
    for (int i = 0; i < 2000; ++i) {
      UdpPacket packet;
      const Bytes frame = frame_bytes(1 + below(3), below(4) * 1000);
      packet.header.kind = static_cast<UdpKind>(below(10) == 0 ? below(256) : 1 + below(3));
      packet.header.unit = static_cast<std::uint16_t>(below(3) == 0 ? below(65536) : 1000);
      packet.header.number = below(3) == 0 ? static_cast<std::uint32_t>(dice()) : below(100 + sent);
      packet.header.frame = below(20) == 0 ? static_cast<std::uint32_t>(dice()) : below(50);
      packet.header.total = below(3) == 0 ? static_cast<std::uint32_t>(dice() >> below(32))
                                          : static_cast<std::uint32_t>(frame.size());
      packet.header.offset = below(3) == 0 ? static_cast<std::uint32_t>(dice()) : 1000 * below(5);
      const std::size_t from = std::min<std::size_t>(packet.header.offset, frame.size());
      const std::size_t length = below(4) == 0 ? below(frame.size() - from + 1)
                                               : std::min<std::size_t>(1000, frame.size() - from);
      const Bytes body = piece(frame, from, length);
      packet.parts[1] = body;
      packet.seal(kJobCode);
      try {
        end.receive(Alone::flat(packet));
        // A malformed frame was completed, which the checker does not expect.
      } catch (const Failure&) {
      }
      end.now += below(1000) * kMicrosecond;
      if (below(10) == 0) end.protocol.sender().enqueue(data_header(1, 3000), payload_of(1), 3000);
      end.protocol.tick(end.now);
      while (end.protocol.next(packet, end.now)) ++sent;
      CHECK(end.protocol.receiver().held_bytes() <= kUdpOpenBytes + kMaxPayload);
    }
    end.protocol.receiver().abandon(end.sink);
  }
}

}  // namespace
}  // namespace slackline::test
