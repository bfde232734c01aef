#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "../src/base/clock.h"
#include "../src/rail/stream.h"
#include "frames.h"
#include "parts.h"

namespace slackline::test {
namespace {

// A stream rail that reads the bytes written by the test.
struct Reader {
  Reader() : link(parts.add("test")) {
    const auto [ours, theirs] = socket_pair();
    rail = std::make_unique<StreamRail>(ours, kJobCode, true);
    hand = std::make_unique<Hand>(theirs);
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

  Parts parts;
  Link& link;
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

TEST("a path with an injected delay takes more frames while others are under way") {
  const auto [ours, theirs] = tcp_pair();
  StreamRail rail(ours, kJobCode, false);
  const Bytes payload(128 << 10);
  const auto enqueue = [&] {
    rail.enqueue(header_of(wire::FrameKind::kAck), payload.data(), payload.size());
    rail.flush(now_ns());
  };
  FaultState late;
  late.delay_ns = 3600 * kSecond;
  rail.inject(late);
  for (int i = 0; i < 100; ++i) {
    CHECK(rail.room());
    enqueue();
  }
  CHECK_EQUAL(rail.queued_bytes(), 100 * (sizeof(wire::Header) + payload.size()));
  CHECK_EQUAL(rail.waiting_bytes(), 0u);

  late.rate = 1;  // of the next frame not even the header is sent while the test runs
  rail.inject(late);
  int taken = 0;
  while (rail.room()) {
    enqueue();
    ++taken;
  }
  CHECK_EQUAL(taken, 4);
  CHECK_EQUAL(rail.waiting_bytes(), 4 * (sizeof(wire::Header) + payload.size()));
  ::close(theirs);
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
  CHECK(writer.ending() && !writer.failure());  // the peer's last frames may still be unread
  CHECK(!writer.room());
  Reader reader;
  writer.poll(reader.link, reader.sink, 0);
  CHECK(writer.failure() && !writer.ending());
}

}  // namespace
}  // namespace slackline::test
