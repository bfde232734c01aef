// Tests of acknowledgements: when a link acknowledges long frames, and when it counts the peer's
// acknowledgements and grants.
#include <algorithm>

#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::size_t kPart = 128u << 10;  // part of a message, sent as one frame

// An engine driven by one thread, and a message of `parts` frames that arrives at it.
struct Message {
  explicit Message(std::size_t parts) : words(pattern(parts * kPart, 6)), got(words.size()) {
    request = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  }
  static EngineOptions options() {
    EngineOptions options = one_thread(std::size_t{64} << 20);
    options.wire_segment_bytes = kPart;
    return options;
  }
  // Write the next frame. If the engine answers with an ACK, return the frame number below which
  // the ACK confirms all frames, else 0.
  std::uint32_t bring(const Bytes& frame) {
    p.hand().write(frame);
    const std::uint64_t before = p.engine.counters()["tcp_frames_received"];
    while (p.engine.counters()["tcp_frames_received"] == before) p.engine.wait(*request, 0);
    p.engine.wait(*request, 0);
    std::uint32_t next = 0;
    while (const std::optional<Frame> answer = p.hand().read(0)) {
      if (answer->header.kind == static_cast<std::uint8_t>(wire::FrameKind::kAck))
        next = answer->header.acknowledge;
    }
    return next;
  }
  std::uint32_t bring_part() {
    wire::Header h = message_header(1, 1, 0, 0, words.size());
    h.offset = number * kPart;
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(h.offset);
    return bring(numbered(h, ++number, Bytes(begin, begin + kPart)));
  }

  Played p{1, options()};
  Bytes words;
  Bytes got;
  std::shared_ptr<Request> request;
  std::uint32_t number = 0;
};

TEST("long frames are acknowledged every 512 KiB, and when the operation has them all") {
  Message message(6);
  std::vector<std::uint32_t> said;
  for (int part = 0; part < 6; ++part) said.push_back(message.bring_part());
  CHECK(said == std::vector<std::uint32_t>({0, 0, 0, 5, 0, 7}));
  finish(message.p.engine, message.request);
  CHECK(message.got == message.words);
}

TEST("a sender that gives a message up has its frames acknowledged") {
  Message message(6);
  CHECK_EQUAL(message.bring_part(), 0u);
  CHECK_EQUAL(message.bring_part(), 0u);
  wire::Header abort = message_header(1, 1, 0, 0, 0);
  abort.kind = static_cast<std::uint8_t>(wire::FrameKind::kAbort);
  abort.total = 0;
  CHECK_EQUAL(message.bring(numbered(abort, 3)), 4u);
  CHECK(message.request->finished());
}

TEST("an acknowledgement in a long frame's header counts before its payload is there") {
  Played p;
  const Bytes sent = pattern(100'000, 7);
  const Bytes words = pattern(200'000, 8);
  Bytes got(words.size());
  const auto send = p.engine.post(*p.group, send_to(1, sent.data(), sent.size()), false);
  const auto receive = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  const Frame data = p.hand().expect(wire::FrameKind::kData);
  wire::Header h = message_header(1, 1, 0, 0, words.size());
  h.acknowledge = data.header.sequence + 1;
  const Bytes frame = numbered(h, 1, words);
  p.hand().write(Bytes(frame.begin(), frame.begin() + 50'000));
  finish(p.engine, send);
  CHECK(!receive->finished());
  p.hand().write(Bytes(frame.begin() + 50'000, frame.end()));
  finish(p.engine, receive);
  CHECK(got == words);
}

TEST("a grant that comes before its operation is posted counts when it is") {
  Played p;
  wire::Header h = message_header(1, 1, 0, 0, 1'000'000);
  h.kind = static_cast<std::uint8_t>(wire::FrameKind::kGrant);
  h.flags = wire::kFlagToSender;
  h.offset = 1'000'000;
  p.hand().write(numbered(h, 1));
  // The engine has processed the grant once it acknowledges the frame that follows it.
  p.hand().write(numbered_message(2, 7, 0, pattern(100'000, 9)));
  CHECK(acknowledges(p.hand(), 3));
  const Bytes words = pattern(1'000'000, 10);
  const auto request = p.engine.post(*p.group, send_to(1, words.data(), words.size()), false);
  for (std::size_t got = 0; got < words.size();) {
    const std::optional<Frame> frame = p.hand().read();
    CHECK(frame.has_value());
    if (frame->header.kind == static_cast<std::uint8_t>(wire::FrameKind::kAck)) continue;
    CHECK_EQUAL(frame->header.kind, static_cast<std::uint8_t>(wire::FrameKind::kData));
    got += frame->payload.size();
  }
  wire::Header ack = header_of(wire::FrameKind::kAck);
  ack.acknowledge = ~0u >> 1;
  p.hand().write(seal(ack));
  finish(p.engine, request);
}

}  // namespace
}  // namespace slackline::test
