#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "../src/base/clock.h"
#include "../src/rail/stream.h"
#include "frames.h"

namespace slackline::test {
namespace {

// A stream rail that reads the bytes written by the test.
struct Reader {
  Reader() : engine(tiny()), links(loop), link(engine, links, 0, "test") {
    const auto [ours, theirs] = socket_pair();
    rail = std::make_unique<StreamRail>(ours, kJobCode, true);
    hand = std::make_unique<Hand>(theirs);
  }
  static EngineOptions tiny() {
    EngineOptions options;
    options.arena_bytes = 2u << 20;
    return options;
  }
  void poll_until_quiet() {
    while (rail->poll(link, sink, 0)) {
    }
  }
  // Write `bytes`, close the other end and read everything.
  Fault feed(const Bytes& bytes) {
    for (std::size_t done = 0; done < bytes.size() && !rail->failure();) {
      const std::size_t n = std::min<std::size_t>(32u << 10, bytes.size() - done);
      hand->write(Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(done),
                        bytes.begin() + static_cast<std::ptrdiff_t>(done + n)));
      done += n;
      poll_until_quiet();
    }
    hand->hang_up();
    poll_until_quiet();
    return rail->failure().fault;
  }

  Engine engine;
  EventLoop loop;
  Links links;
  Link link;
  Recorder sink;
  std::unique_ptr<StreamRail> rail;
  std::unique_ptr<Hand> hand;
};

// Return whether, within `limit_ms`, a socket has at least SO_RCVLOWAT bytes, the amount at which
// its reader is woken.
bool readable(int fd, int limit_ms = 1000) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, limit_ms) == 1;
}

Bytes data_frame(std::uint32_t sequence, std::size_t bytes) {
  wire::Header h = header_of(wire::FrameKind::kData);
  h.sequence = sequence;
  return seal(h, pattern(bytes, sequence));
}

TEST("a stream gives the frames that went in, in order, whatever their sizes") {
  Reader reader;
  const auto [out, in] = socket_pair();
  StreamRail writer(out, kJobCode, true);
  Reader other;
  StreamRail rail(in, kJobCode, true);
  const std::vector<std::size_t> sizes = {0,     1,     63,      64,      4096,    16384, 16385,
                                          65536, 70000, 163'840, 200'000, 262'144, 5,     0};
  std::vector<Bytes> payloads;
  for (std::size_t i = 0; i < 3 * sizes.size(); ++i)
    payloads.push_back(pattern(sizes[i % sizes.size()], static_cast<unsigned>(i)));
  std::size_t next = 0;
  while (reader.sink.frames.size() < payloads.size() && !rail.failure() && !writer.failure()) {
    while (next < payloads.size() && writer.room()) {
      const Bytes& payload = payloads[next];
      wire::Header h = header_of(wire::FrameKind::kData);
      h.sequence = static_cast<std::uint32_t>(++next);
      Bytes sealed = seal(h, payload);
      std::memcpy(&h, sealed.data(), sizeof h);
      if (next % 2 == 0) {  // the frame was acknowledged over another rail before it was begun here
        const Bytes passing(100'000);
        writer.enqueue(h, passing.data(), 100'000);
        writer.release(h.sequence);
      }
      writer.enqueue(h, payload.data(), h.length);
    }
    writer.writable();
    writer.flush(0);
    rail.poll(reader.link, reader.sink, 0);
  }
  CHECK_EQUAL(reader.sink.frames.size(), payloads.size());
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    CHECK_EQUAL(reader.sink.frames[i].header.sequence, i + 1);
    CHECK(reader.sink.frames[i].payload == payloads[i]);
  }
  CHECK_EQUAL(reader.sink.buffers_out, 0);
  CHECK(!rail.failure());
}

TEST("a long payload is stored where its owner wants it") {
  Reader reader;
  Bytes placed(100'000);
  reader.sink.placement = placed.data();
  CHECK(reader.feed(data_frame(1, 100'000)) == Fault::kPeer);
  CHECK_EQUAL(reader.sink.frames.size(), 1u);
  CHECK(placed == pattern(100'000, 1));
}

TEST("who leaves something in the socket is told of it, whatever he had waited for") {
  Reader reader;
  const auto [ours, theirs] = tcp_pair();
  reader.rail = std::make_unique<StreamRail>(ours, kJobCode, true, true);
  Hand hand(theirs);
  const Bytes frame = data_frame(1, 200'000);
  hand.write(Bytes(frame.begin(), frame.begin() + 50'000));
  CHECK(readable(ours));
  reader.poll_until_quiet();  // from here on the rail waits for a larger part of the payload
  hand.write(Bytes(frame.begin() + 50'000, frame.end()));
  hand.write(data_frame(2, 100));
  hand.write(data_frame(3, 8'000));
  reader.sink.others_wait = true;  // so that the rail reads only once each time
  while (reader.sink.frames.size() < 3) {
    CHECK(readable(ours));
    CHECK(reader.rail->poll(reader.link, reader.sink, 0));
  }
  CHECK(!readable(ours, 0));
}

TEST("a socket may hold 4 ms of its rate unsent, from 128 KiB to 2 MiB") {
  CHECK_EQUAL(StreamRail::unsent_at(0), 128 << 10);
  CHECK_EQUAL(StreamRail::unsent_at(25'000'000), 128 << 10);  // 200 Mbit/s
  CHECK_EQUAL(StreamRail::unsent_at(125'000'000), 500'000);   // 1 Gbit/s
  CHECK_EQUAL(StreamRail::unsent_at(10'000'000'000), 2 << 20);
}

TEST("a slow socket may hold 1 ms of its rate unsent where urgent frames are expected") {
  CHECK_EQUAL(StreamRail::unsent_at(0, true), 16 << 10);
  CHECK_EQUAL(StreamRail::unsent_at(25'000'000, true), 25'000);    // 200 Mbit/s
  CHECK_EQUAL(StreamRail::unsent_at(62'500'000, true), 62'500);    // 500 Mbit/s
  CHECK_EQUAL(StreamRail::unsent_at(125'000'000, true), 500'000);  // 1 Gbit/s, as without them
  CHECK_EQUAL(StreamRail::unsent_at(10'000'000'000, true), 2 << 20);
}

TEST("a rail of unknown rate gives the socket little ahead while urgent frames are expected") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  const Bytes payload(20'000);
  wire::Header h = header_of(wire::FrameKind::kData);
  h.length = 20'000;
  CHECK_EQUAL(rail.unsent_limit(), 128 << 10);
  rail.enqueue(h, payload.data(), h.length);
  CHECK(rail.room());
  rail.expect_urgent();
  CHECK_EQUAL(rail.unsent_limit(), 16 << 10);
  CHECK(!rail.room());
  ::close(theirs);
}

TEST("a rail to a process of the same host expects no urgent frames") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, false);
  const Bytes payload(20'000);
  wire::Header h = header_of(wire::FrameKind::kData);
  h.length = 20'000;
  rail.expect_urgent();
  rail.enqueue(h, payload.data(), h.length);
  CHECK(rail.room());
  ::close(theirs);
}

TEST("the limit on unsent bytes follows the rate that TCP has seen") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  CHECK_EQUAL(rail.unsent_limit(), 128 << 10);
  const Bytes payload(100'000);
  Bytes read(1u << 20);
  std::int64_t now = 0;
  int most = 0;
  for (std::uint32_t number = 1; number < 2000; ++number) {
    wire::Header h = header_of(wire::FrameKind::kData);
    h.sequence = number;
    h.length = 100'000;
    rail.enqueue(h, payload.data(), h.length);
    rail.flush(now += 1'000'000);
    while (rail.blocked()) {
      CHECK(::recv(theirs, read.data(), read.size(), 0) > 0);
      rail.writable();
      rail.flush(now += 1'000'000);
    }
    most = std::max(most, rail.unsent_limit());
  }
  int limit = 0;
  socklen_t size = sizeof limit;
  CHECK(::getsockopt(ours, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &size) == 0);
  CHECK_EQUAL(limit, rail.unsent_limit());
  CHECK(most > 128 << 10);  // a loopback interface is faster than 200 Mbit/s
  ::close(theirs);
}

TEST("a rail whose socket is never full looks at its rate, too") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  rail.expect_urgent();
  CHECK_EQUAL(rail.unsent_limit(), 16 << 10);
  const Bytes payload(100);
  wire::Header h = header_of(wire::FrameKind::kData);
  h.length = 100;
  for (int second = 1; second <= 2; ++second) {  // the second look finds no urgent frame since
    rail.enqueue(h, payload.data(), h.length);
    rail.flush(second * 1'000'000'000ll);
    CHECK(!rail.blocked());
  }
  CHECK(rail.unsent_limit() >= 128 << 10);
  ::close(theirs);
}

TEST("a rail is silent since its bytes are in flight, not since a look while it was idle") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  CHECK(!rail.confirmation(1 * kSecond).in_flight);
  FaultState late;
  late.delay_ns = 3600 * kSecond;  // the frame stays in flight
  rail.inject(late);
  rail.enqueue(header_of(wire::FrameKind::kAck), nullptr, 0);
  rail.flush(now_ns());
  const Confirmation first = rail.confirmation(5 * kSecond);
  CHECK(first.in_flight);
  CHECK_EQUAL(first.quiet_since_ns, 5 * kSecond);
  CHECK_EQUAL(rail.confirmation(6 * kSecond).quiet_since_ns, 5 * kSecond);
  ::close(theirs);
}

TEST("a send buffer is 1/280 s of the rate where twice the bytes in flight fit") {
  CHECK_EQUAL(StreamRail::buffer_at(0, 100), 0);  // not known yet
  CHECK_EQUAL(StreamRail::buffer_at(25'000'000, 100), 256 << 10);  // 200 Mbit/s
  CHECK_EQUAL(StreamRail::buffer_at(100'000'000, 100), 357'142);
  CHECK_EQUAL(StreamRail::buffer_at(125'000'000, 100), 446'428);  // 1 Gbit/s
  CHECK_EQUAL(StreamRail::buffer_at(1'250'000'000, 100), 448 << 10);
  CHECK_EQUAL(StreamRail::buffer_at(125'000'000, 1'785), 446'428);  // 223,125 bytes in flight
  CHECK_EQUAL(StreamRail::buffer_at(125'000'000, 1'786), 0);
  CHECK_EQUAL(StreamRail::buffer_at(125'000'000, ~0u), 0);  // no round trip has been measured
}

TEST("the send buffer has its limit on one host at once, to another host by rate and round trip") {
  const auto asked = [](int fd, int option) {
    int value = -1;
    socklen_t size = sizeof value;
    CHECK(::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0);
    return value;
  };
  const auto [near_fd, near_peer] = tcp_pair();
  const StreamRail near_rail(near_fd, kJobCode, false, false);
  CHECK_EQUAL(asked(near_fd, SO_SNDBUF), 256 << 10);
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false, true);
  CHECK_EQUAL(asked(ours, SO_BUF_LOCK), 0);
  rail.limit_buffer(100'000'000, 100);
  CHECK_EQUAL(asked(ours, SO_SNDBUF), 357'142);
  CHECK(asked(ours, SO_BUF_LOCK) != 0);
  rail.limit_buffer(110'000'000, 100);  // no change of a quarter
  CHECK_EQUAL(asked(ours, SO_SNDBUF), 357'142);
  rail.limit_buffer(60'000'000, 100);
  CHECK_EQUAL(asked(ours, SO_SNDBUF), 256 << 10);
  rail.limit_buffer(60'000'000, 10'000);
  CHECK_EQUAL(asked(ours, SO_BUF_LOCK), 0);
  ::close(near_peer);
  ::close(theirs);
}

TEST("a rate is the median of five samples, and a repeated sample is none") {
  MedianRate rate;
  CHECK_EQUAL(rate.value(), 0u);
  rate.note(0);
  CHECK_EQUAL(rate.value(), 0u);
  rate.note(30);
  CHECK_EQUAL(rate.value(), 30u);
  for (int i = 0; i < 9; ++i) rate.note(1'600);  // a burst that the kernel repeats
  CHECK_EQUAL(rate.value(), 30u);
  rate.note(29);
  CHECK_EQUAL(rate.value(), 30u);
  for (const std::uint64_t sample : {31u, 28u}) rate.note(sample);
  CHECK_EQUAL(rate.value(), 30u);  // of 30, 1600, 29, 31, 28
  for (const std::uint64_t sample : {120u, 121u, 122u}) rate.note(sample);
  CHECK_EQUAL(rate.value(), 120u);  // of 31, 28, 120, 121, 122
}

TEST("a payload on its way to memory that was taken back goes to a buffer") {
  Reader reader;
  Bytes placed(100'000);
  reader.sink.placement = placed.data();
  const Bytes frame = data_frame(1, 100'000);
  reader.hand->write(Bytes(frame.begin(), frame.begin() + 40'000));
  reader.poll_until_quiet();
  reader.rail->forget(nullptr, reader.sink);  // the recorder names no request
  std::fill(placed.begin(), placed.end(), std::byte{0});
  CHECK(reader.feed(Bytes(frame.begin() + 40'000, frame.end())) == Fault::kPeer);
  CHECK_EQUAL(reader.sink.frames.size(), 1u);
  CHECK(reader.sink.frames[0].payload == pattern(100'000, 1));
  CHECK(std::ranges::all_of(placed, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(
    "a stream that ends between frames lost its peer, one that ends within a frame is a frame "
    "error") {
  const Bytes frame = data_frame(1, 40'000);
  Reader whole;
  CHECK(whole.feed(frame) == Fault::kPeer);
  CHECK_EQUAL(whole.sink.frames.size(), 1u);
  for (const std::size_t length : {1ul, 63ul, 64ul, 65ul, 20'000ul, frame.size() - 1}) {
    Reader cut;
    CHECK(cut.feed(Bytes(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(length))) ==
          Fault::kFrame);
    CHECK(cut.sink.frames.empty());
    cut.rail->abandon(cut.sink);
    CHECK_EQUAL(cut.sink.buffers_out, 0);
  }
}

TEST("a change of any byte of a frame is a frame error") {
  for (const std::size_t bytes : {0ul, 5ul, 300ul}) {
    const Bytes frame = data_frame(1, bytes);
    for (std::size_t i = 0; i < frame.size(); ++i) {
      Bytes changed = frame;
      changed[i] ^= std::byte{0x10};
      Reader reader;
      const Fault fault = reader.feed(changed);
      CHECK(fault == Fault::kFrame);
      CHECK(reader.sink.frames.empty());
    }
  }
}

TEST("a change within a long payload is a frame error, and the buffer is given back") {
  Bytes frame = data_frame(1, 50'000);
  frame[30'000] ^= std::byte{1};
  Reader reader;
  CHECK(reader.feed(frame) == Fault::kFrame);
  CHECK(reader.sink.frames.empty());
  CHECK_EQUAL(reader.sink.buffers_out, 0);
}

TEST("a frame of another job, of another version or too long is a frame error") {
  const auto fault_of = [](auto change) {
    wire::Header h = header_of(wire::FrameKind::kData);
    change(h);
    Reader reader;
    Bytes frame(sizeof h);
    h.header_checksum = crc32c(0, &h, sizeof h - sizeof h.header_checksum);
    std::memcpy(frame.data(), &h, sizeof h);
    return reader.feed(frame);
  };
  CHECK(fault_of([](wire::Header&) {}) == Fault::kPeer);
  CHECK(fault_of([](wire::Header& h) { h.job ^= 1; }) == Fault::kFrame);
  CHECK(fault_of([](wire::Header& h) { ++h.version; }) == Fault::kFrame);
  CHECK(fault_of([](wire::Header& h) { h.length = kMaxPayload + 1; }) == Fault::kFrame);
  CHECK(fault_of([](wire::Header& h) { h.length = ~0u; }) == Fault::kFrame);
}

TEST("seeded random bytes are a frame error and nothing worse") {
  for (unsigned seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    Bytes noise(64 + random() % 2000);
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    Reader reader;
    CHECK(reader.feed(noise) == Fault::kFrame);
    CHECK(reader.sink.frames.empty());
  }
}

TEST("seeded damage to a stream of good frames never lets a wrong frame through") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Bytes stream;
    std::vector<Bytes> payloads;
    for (std::uint32_t i = 1; i <= 6; ++i) {
      const std::size_t bytes = random() % 3 == 0 ? random() % 60'000 : random() % 600;
      payloads.push_back(pattern(bytes, i));
      const Bytes frame = data_frame(i, bytes);
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    switch (random() % 4) {
      case 0:  // truncated
        stream.resize(random() % stream.size());
        break;
      case 1:  // a few flipped bits
        for (unsigned n = 1 + random() % 4; n > 0; --n)
          stream[random() % stream.size()] ^= static_cast<std::byte>(1u << random() % 8);
        break;
      case 2: {  // a missing piece
        const auto at = static_cast<std::ptrdiff_t>(random() % stream.size());
        const auto rest = static_cast<std::size_t>(std::ssize(stream) - at);
        stream.erase(stream.begin() + at,
                     stream.begin() + at + static_cast<std::ptrdiff_t>(random() % rest));
        break;
      }
      default: {  // a repeated piece
        const std::size_t at = random() % stream.size();
        const Bytes piece(stream.begin() + static_cast<std::ptrdiff_t>(at), stream.end());
        stream.insert(stream.begin() + static_cast<std::ptrdiff_t>(random() % stream.size()),
                      piece.begin(), piece.end());
      }
    }
    Reader reader;
    const Fault fault = reader.feed(stream);
    CHECK(fault == Fault::kFrame || fault == Fault::kPeer);
    for (const Frame& frame : reader.sink.frames)
      CHECK(frame.payload == payloads.at(frame.header.sequence - 1));
    reader.rail->abandon(reader.sink);
    CHECK_EQUAL(reader.sink.buffers_out, 0);
  }
}

TEST("writing to a peer that is gone is a link failure, not a signal") {
  const auto [out, in] = socket_pair();
  StreamRail writer(out, kJobCode, true);
  ::close(in);
  writer.enqueue(header_of(wire::FrameKind::kAck), nullptr, 0);
  writer.flush(0);
  CHECK(writer.failure().fault == Fault::kLink);
  CHECK(!writer.room());
}

}  // namespace
}  // namespace slackline::test
