// Tests of the rails of a link (its paths to the peer): probes, reconnection, and the messages of
// operations when no rail is left.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "../src/base/clock.h"
#include "frames.h"

namespace slackline::test {
namespace {

wire::Header probe_of(int rail, std::uint64_t sent) {
  wire::Header h = header_of(wire::FrameKind::kProbe);
  h.chunk = static_cast<std::uint16_t>(rail);
  h.offset = sent;
  return h;
}

Frame expect_probe(Hand& hand) {
  for (;;) {
    std::optional<Frame> frame = hand.read_any();
    if (!frame) fail("no probe came");
    if (frame->header.kind == static_cast<std::uint8_t>(wire::FrameKind::kProbe))
      return std::move(*frame);
  }
}

Bytes words() { return pattern(100'000, 3); }

TEST("a probe is answered on the rail that it names, with the times of both ends") {
  Played p(2);
  p.hand(1).write(seal(probe_of(1, 12'345)));
  const Frame answer = expect_probe(p.hand(1));
  CHECK_EQUAL(answer.header.flags & wire::kFlagAnswer, wire::kFlagAnswer);
  CHECK_EQUAL(answer.header.chunk, 1);
  CHECK_EQUAL(answer.header.offset, 12'345u);
  CHECK(answer.header.total > 0 && answer.header.total <= answer.header.tag);
  p.hand(1).write(seal(probe_of(7, 1)));  // a rail that does not exist
  p.hand(1).write(seal(probe_of(1, 99)));
  CHECK_EQUAL(expect_probe(p.hand(1)).header.offset, 99u);
}

TEST("while an operation is open each rail is probed, and the answers are kept") {
  Played p(1);
  Bytes got(1000);
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  const Frame asked = expect_probe(p.hand());
  CHECK_EQUAL(asked.header.flags, 0);
  wire::Header answer = asked.header;
  answer.flags = wire::kFlagAnswer;
  answer.total = 5;
  answer.tag = 6;
  p.hand().write(seal(answer));
  const Bytes message = pattern(1000, 1);
  wire::Header h = message_header(1, 1, 0, 0, message.size());
  h.sequence = 1;
  p.hand().write(seal(h, message));
  finish(p.engine, request);
  const std::vector<RailStatus> rails = p.engine.connections().rails();
  CHECK_EQUAL(rails.size(), 1u);
  CHECK_EQUAL(rails[0].probe_count, 1u);
  CHECK_EQUAL(rails[0].probes.back().sent, static_cast<std::int64_t>(asked.header.offset));
  CHECK_EQUAL(rails[0].probes.back().received, 5);
  CHECK_EQUAL(rails[0].probes.back().answered, 6);
  CHECK(rails[0].probes.back().back >= rails[0].probes.back().sent);
}

TEST("a link with reconnect waits for a new rail, and the frame goes again over that") {
  Played p(1, small_engine(), true);
  const Bytes sent = words();
  const auto request = p.engine.post(*p.group, send_to(1, sent.data(), sent.size()), false);
  const Frame first = p.hand().expect(wire::FrameKind::kData);
  p.hand().write(Bytes(64));  // not a frame, so the engine gives the rail up
  CHECK(!p.engine.wait(*request, kSecond / 50));
  CHECK(p.engine.connections().link_alive(p.link));
  Hand& again = p.add_rail(0);
  const Frame second = again.expect(wire::FrameKind::kData);
  CHECK_EQUAL(second.header.sequence, first.header.sequence);
  CHECK(second.payload == sent);
  wire::Header ack = header_of(wire::FrameKind::kAck);
  ack.acknowledge = second.header.sequence + 1;
  again.write(seal(ack));
  finish(p.engine, request);
}

TEST("a rail of an index that is taken replaces the old one") {
  Played p(1, small_engine(), true);
  const Bytes sent = words();
  const auto request = p.engine.post(*p.group, send_to(1, sent.data(), sent.size()), false);
  p.hand().expect(wire::FrameKind::kData);
  Hand& other = p.add_rail(0);
  CHECK_EQUAL(other.expect(wire::FrameKind::kData).payload.size(), sent.size());
  CHECK(!p.hand().read());
  CHECK_EQUAL(p.engine.connections().rails().size(), 1u);
}

TEST("without a rail an operation ends at its own deadline, as a failure of the link") {
  Played p(1, small_engine(), true);
  Bytes got(1000);
  Operation operation = receive_from(1, got.data(), got.size());
  operation.timeout_ns = kSecond / 5;
  const auto request = p.engine.post(*p.group, operation, false);
  p.hand().end();
  CHECK(p.engine.wait(*request, 10 * kSecond));
  CHECK(request->failure.fault == Fault::kLink);
  CHECK(request->failure.message.find("no rail to it is left since") != std::string::npos);
  CHECK(request->failure.message.find("the connection was closed") != std::string::npos);
}

TEST("a stream that ends is the end of the peer where nobody dials again") {
  Played p(1, small_engine());
  Bytes got(1000);
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  p.hand().end();
  CHECK(p.engine.wait(*request, 10 * kSecond));
  CHECK(request->failure.fault == Fault::kPeer);
  CHECK(!p.engine.connections().link_alive(p.link));
}

TEST("a peer that is known to be unreachable is gone at once") {
  Played p(1, small_engine(), true);
  Bytes got(1000);
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  p.engine.connections().drop_rail(p.link, 0, "on request");
  CHECK(!p.engine.wait(*request, kSecond / 50));
  p.engine.connections().unreachable(p.link, "it refuses connections");
  CHECK(p.engine.wait(*request, 10 * kSecond));
  CHECK(request->failure.fault == Fault::kPeer);
  CHECK(request->failure.message.find("it refuses connections") != std::string::npos);
}

TEST("every change of a rail is an event, in order") {
  Played p(2, small_engine(), true);
  p.engine.connections().drop_rail(p.link, 1, "on request");
  p.add_rail(1);
  p.engine.connections().unreachable(p.link, "gone");
  std::vector<std::string> seen;
  for (int i = 0; i < 5; ++i) {
    const std::optional<RailEvent> event = p.engine.connections().next_event();
    CHECK(event.has_value());
    seen.push_back(event->what + " " + std::to_string(event->rail));
  }
  const std::vector<std::string> expected = {"up 0", "up 1", "lost 1", "up 1", "down -1"};
  CHECK(seen == expected);
  p.engine.close(0);
  CHECK(!p.engine.connections().next_event());
}

TEST("what is posted while the only rail is broken and not replaced yet waits for the new one") {
  const Bytes long_one = pattern(100'000, 1);
  const Bytes brief = pattern(100, 2);
  Bytes got(long_one.size());
  Bytes more(60'000);
  EngineOptions options = one_thread(64u << 20);
  options.eager_bytes = 1000;
  Played p(1, options, true);
  const auto first = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  wire::Header h = message_header(1, 1, 0, 0, long_one.size());
  h.sequence = 1;
  const Bytes frame = seal(h, long_one);
  CHECK(!p.engine.wait(*first, 0));  // the engine checks its rails again only after some time
  p.hand().write(frame);
  p.hand().hang_up();
  finish(p.engine, first);  // the connection is closed, so the acknowledgement is lost
  // The second operation must grant the peer permission to send, and the third must send data.
  const auto second = p.engine.post(*p.group, receive_from(1, more.data(), more.size(), 1), false);
  const auto third = p.engine.post(*p.group, send_to(1, brief.data(), brief.size(), 2), false);
  Hand& next = p.add_rail(0);
  CHECK(!p.engine.wait(*second, 0));
  CHECK(next.expect(wire::FrameKind::kData).payload == brief);
  CHECK(third->finished() && !third->failure);
}

TEST("a rail is not busy between operations") {
  EngineOptions options = small_engine();
  options.eager_bytes = 8u << 20;
  Played p(0, options);
  const auto [ours, theirs] = tcp_pair();
  p.engine.connections().add_rail(p.link, 0, RailKind::kTcp, ours, kJobCode);
  Hand hand(theirs);
  const auto look = [&] { return p.engine.connections().rails().at(0); };
  const auto await = [&](bool unconfirmed) {
    const std::int64_t limit = now_ns() + 10 * kSecond;
    while ((look().unconfirmed_bytes > 0) != unconfirmed) {
      if (now_ns() > limit) fail("the engine did not look at its rail");
      std::this_thread::yield();
    }
  };
  const Bytes sent = pattern(1'500'000, 1);
  std::int64_t used_ns = 0;
  for (std::uint32_t received = 0, sequence = 0; sequence < 2; ++sequence) {
    const std::int64_t begun = now_ns();
    const auto request = p.engine.post(*p.group, send_to(1, sent.data(), sent.size()), false);
    await(true);  // the hand reads nothing yet
    for (std::size_t bytes = 0; bytes < sent.size(); ++received)
      bytes += hand.expect(wire::FrameKind::kData).payload.size();
    wire::Header ack = header_of(wire::FrameKind::kAck);
    ack.acknowledge = received + 1;
    hand.write(seal(ack));
    finish(p.engine, request);
    used_ns += now_ns() - begun;
    await(false);
    // The idle time that must not count as busy. Nothing waits for its end.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(look().busy_ns > 0);
  CHECK(look().busy_ns <= used_ns);
}

TEST("a timeout says whether the peer is late or was not heard of") {
  Played p(1);
  Bytes got(1000);
  Operation operation = receive_from(1, got.data(), got.size());
  operation.timeout_ns = kSecond / 10;
  const auto deaf = p.engine.post(*p.group, operation, false);
  CHECK(p.engine.wait(*deaf, 10 * kSecond));
  CHECK(deaf->failure.fault == Fault::kTimeout);
  CHECK(deaf->failure.message.ends_with(
      "; of rank 1: nothing was ever heard from it: gone or cut off"));
  const auto late = p.engine.post(*p.group, operation, false);
  p.hand().write(seal(probe_of(0, 1)));
  CHECK(p.engine.wait(*late, 10 * kSecond));
  CHECK(late->failure.message.ends_with("; of rank 1: its engine answers: late, not gone"));
}

}  // namespace
}  // namespace slackline::test
