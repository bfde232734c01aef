// Tests of a link over wires whose peer is played by the test: numbering, acknowledgement, damaged
// frames.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "../src/engine/headers.h"
#include "../src/rail/shm.h"
#include "frames.h"
#include "parts.h"

namespace slackline::test {
namespace {

TEST("a frame that comes twice is used once, and acknowledged again") {
  Played p;
  const Bytes first = pattern(100'000, 1);
  const Bytes second = pattern(100'000, 2);
  Bytes got(100'000);
  const auto one = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  p.hand().write(numbered_message(1, 0, 0, first));
  finish(p.engine, one);
  CHECK(got == first);
  CHECK(acknowledges(p.hand(), 2));
  p.hand().write(numbered_message(1, 0, 0, first));
  // The first acknowledgement may have been lost with a rail, so the engine must repeat it or the
  // peer would wait forever.
  CHECK(acknowledges(p.hand(), 2));
  const auto two = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  p.hand().write(numbered_message(2, 0, 1, second));
  finish(p.engine, two);
  CHECK(got == second);
  CHECK_EQUAL(p.engine.counters()["duplicates_dropped"], 1u);
}

TEST("frames of two rails may overtake each other") {
  Played p(2);
  const Bytes first = pattern(1000, 1);
  const Bytes second = pattern(70'000, 2);
  Bytes got_first(first.size());
  Bytes got_second(second.size());
  const auto two =
      p.engine.post(*p.group, receive_from(1, got_second.data(), got_second.size(), 7), false);
  const auto one =
      p.engine.post(*p.group, receive_from(1, got_first.data(), got_first.size(), 5), false);
  p.hand(1).write(numbered_message(2, 7, 0, second));
  finish(p.engine, two);
  p.hand(0).write(numbered_message(1, 5, 0, first));
  finish(p.engine, one);
  CHECK(got_first == first && got_second == second);
  p.hand(1).write(numbered_message(3, 0, 0, second));
  CHECK(acknowledges(p.hand(0), 3) || acknowledges(p.hand(1), 4));
}

TEST("a short frame that closes the gap before a long one has both acknowledged") {
  Played p(2);
  const Bytes brief = pattern(1000, 1);  // too short for an acknowledgement of its own
  const Bytes bulk = pattern(70'000, 2);
  Bytes got_brief(brief.size());
  Bytes got_bulk(bulk.size());
  const auto two =
      p.engine.post(*p.group, receive_from(1, got_bulk.data(), got_bulk.size(), 7), false);
  const auto one =
      p.engine.post(*p.group, receive_from(1, got_brief.data(), got_brief.size(), 5), false);
  p.hand(1).write(numbered_message(2, 7, 0, bulk));
  finish(p.engine, two);
  p.hand(0).write(numbered_message(1, 5, 0, brief));
  finish(p.engine, one);
  CHECK(acknowledges(p.hand(0), 3) || acknowledges(p.hand(1), 3));
}

TEST("a farewell that overtakes data on another rail waits for it") {
  Played p(2);
  const Bytes words = pattern(3000, 3);
  Bytes got(words.size());
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  wire::Header bye = header_of(wire::FrameKind::kBye);
  bye.epoch = 1;
  bye.source = 1;
  p.hand(1).write(numbered(bye, 2));
  CHECK(!p.engine.wait(*request, kSecond / 20));
  p.hand(0).write(numbered_message(1, 0, 0, words));
  finish(p.engine, request);
  CHECK(got == words);
  const auto late = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), true);
  CHECK(late->failure.fault == Fault::kPeer);
}

TEST("the rails of a peer that has closed its engine are not lost") {
  Played p(2);
  p.hand(1).write(numbered(header_of(wire::FrameKind::kBye), 1));  // epoch 0: the whole engine
  while (p.engine.connections().link_alive(p.link)) std::this_thread::yield();
  p.hand(0).hang_up();
  p.hand(1).hang_up();
  std::vector<std::string> told;
  while (told.empty() || told.back() != "down")
    told.push_back(p.engine.connections().next_event()->what);
  CHECK((told == std::vector<std::string>{"up", "up", "closed", "closed", "down"}));
  CHECK_EQUAL(p.engine.counters()["rails_lost"], 0u);
}

TEST("a rail that closes without a farewell is lost") {
  Played p(2);
  p.hand(0).hang_up();
  std::string what;
  while (what.empty() || what == "up") what = p.engine.connections().next_event()->what;
  CHECK_EQUAL(what, "lost");
  CHECK_EQUAL(p.engine.counters()["rails_lost"], 1u);
}

TEST("numbers go past the largest one") {
  Parts parts;
  Link& link = parts.add("test");
  Channel channel(parts.machine.link_uses(), link, ~0u - 1);
  CHECK(channel.admit(~0u - 1));
  CHECK(channel.admit(1));  // 0 is not a valid number
  CHECK(!channel.admit(1));
  CHECK(channel.admit(~0u));
  CHECK(!channel.admit(~0u));
  CHECK(!channel.admit(1));
  CHECK(channel.admit(2));
}

TEST("a damaged frame ends its rail; what was not acknowledged goes over the other one") {
  Played p(2);
  const Bytes words = pattern(200'000, 4);
  const auto request = p.engine.post(*p.group, send_to(1, words.data(), words.size()), false);
  std::optional<Frame> frame;
  int used = -1;
  for (int rail = 0; rail < 2 && used < 0; ++rail) {
    frame = p.hand(rail).read(2000);
    if (frame) used = rail;
  }
  CHECK(used >= 0);
  CHECK_EQUAL(frame->header.kind, static_cast<std::uint8_t>(wire::FrameKind::kData));
  Bytes noise(64);
  noise[5] = std::byte{9};
  p.hand(used).write(noise);
  const Frame again = p.hand(1 - used).expect(wire::FrameKind::kData);
  CHECK_EQUAL(again.header.sequence, frame->header.sequence);
  CHECK(again.payload == words);
  CHECK(!request->finished());
  wire::Header ack = header_of(wire::FrameKind::kAck);
  ack.acknowledge = frame->header.sequence + 1;
  p.hand(1 - used).write(seal(ack));
  finish(p.engine, request);
  CHECK_EQUAL(p.engine.counters()["rails_lost"], 1u);
  CHECK(p.engine.counters()["frames_resent"] >= 1);
}

TEST("losing a rail repeats the acknowledgement on the one that is left") {
  Played p(2);
  const Bytes words = pattern(1000, 5);  // too short for an acknowledgement of its own
  Bytes got(words.size());
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
  p.hand(0).write(numbered_message(1, 0, 0, words));
  finish(p.engine, request);
  p.hand(0).hang_up();
  CHECK(acknowledges(p.hand(1), 2));
}

TEST("a resent frame whose memory has been overwritten since does not cost the second rail") {
  // In an all_reduce in place the result overwrites the sent data, and its arrival proves that the
  // data arrived. The rail then dies before the acknowledgement has come.
  Played p(2);
  std::vector<float> values(30'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = contribution(0, i);
  const std::vector<float> mine = values;
  auto exchange = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{4}, 2, 0, 1,
                                            true, false, true);  // as one segment
  exchange->append(Opcode::kSend, 1, 0, false);
  exchange->append(Opcode::kCopy, 1, 0, false);
  const auto request = p.engine.post(
      *p.group, reduction(exchange, values.data(), values.data(), values.size(), 3), false);
  int used = 0;
  std::optional<Frame> sent = p.hand(0).read(1000);
  if (!sent) {
    used = 1;
    sent = p.hand(1).read(1000);
  }
  CHECK(sent && sent->payload.size() == values.size() * sizeof(float));
  CHECK(std::memcmp(sent->payload.data(), mine.data(), sent->payload.size()) == 0);
  // The rail dies when half of the result's frame has arrived.
  wire::Header h = sent->header;
  h.source = 1;
  h.acknowledge = 0;
  h.flags = static_cast<std::uint16_t>(h.flags & ~(wire::kFlagPartial | wire::kFlagEager));
  h.sequence = 1;
  const Bytes result = seal(h, pattern(sent->payload.size(), 8));
  p.hand(used).write(Bytes(result.begin(), result.begin() + 90'000));
  until([&] { return p.engine.counters()["tcp_bytes_received"] >= 90'000; }, "the first bytes");
  p.hand(used).hang_up();
  Hand& other = p.hand(1 - used);
  const std::optional<Frame> again = other.read();
  CHECK(again.has_value());
  CHECK_EQUAL(again->header.sequence, sent->header.sequence);
  CHECK_EQUAL(crc32c(0, again->payload.data(), again->payload.size()),
              again->header.payload_checksum);
  other.write(result);
  wire::Header ack = header_of(wire::FrameKind::kAck);
  ack.acknowledge = sent->header.sequence + 1;
  other.write(seal(ack));
  finish(p.engine, request);
  CHECK(std::memcmp(values.data(), pattern(sent->payload.size(), 8).data(), sent->payload.size()) ==
        0);
}

TEST("a partial sum that comes again does not spoil the one that was made of it") {
  // Rank 0 adds the data that rank 1 sends, sends the sum back and waits for the result.
  std::vector<float> values(30'000, 1.0f);
  Played p(2);
  auto program = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{4}, 2, 0, 1,
                                           true, false, true);
  program->append(Opcode::kAdd, 1, 0, false);
  program->append(Opcode::kSend, 1, 0, false);
  program->append(Opcode::kCopy, 1, 0, false);
  const auto request = p.engine.post(
      *p.group, reduction(program, values.data(), values.data(), values.size(), 3), false);
  wire::Header h = header_for(*request, wire::FrameKind::kData);
  h.job = kJobCode;
  h.source = 1;
  h.total = values.size() * sizeof(float);
  h.flags |= wire::kFlagPartial;
  Bytes two(values.size() * sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) {
    constexpr float kTwo = 2;
    std::memcpy(two.data() + i * sizeof kTwo, &kTwo, sizeof kTwo);
  }
  const Bytes frame = numbered(h, 1, two);
  p.hand(0).write(frame);
  until([&] { return p.engine.counters()["bytes_reduced"] > 0; }, "the addition");
  // Write the frame in two pieces; otherwise it would not be stored directly at its destination.
  const std::uint64_t before = p.engine.counters()["tcp_bytes_received"];
  p.hand(1).write(Bytes(frame.begin(), frame.begin() + 5000));
  until([&] { return p.engine.counters()["tcp_bytes_received"] == before + 5000; }, "a piece");
  p.hand(1).write(Bytes(frame.begin() + 5000, frame.end()));
  until([&] { return p.engine.counters()["duplicates_dropped"] == 1; }, "the duplicate");
  p.engine.abort_group(*p.group, "the end");
  CHECK(request->finished());
  CHECK(std::ranges::all_of(values, [](float v) { return v == 3.0f; }));
}

TEST("flags that make no sense on a wire are a mismatch, not a crash") {
  for (const std::uint16_t flag : {wire::kFlagReference, wire::kFlagWritten}) {
    Played p;
    Bytes got(1000);
    const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size()), false);
    wire::Header h = message_header(1, 1, 0, 0, got.size());
    h.flags = flag;
    p.hand().write(numbered(h, 1, pattern(16, 1)));
    CHECK(p.engine.wait(*request, 5 * kSecond));
    CHECK(request->failure.fault == Fault::kMismatch);
  }
}

TEST("well-formed frames of seeded nonsense end operations, never the engine") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    Played p;
    Bytes got(5000);
    std::vector<std::shared_ptr<Request>> requests;
    for (int tag = 0; tag < 3; ++tag) {
      Operation operation = receive_from(tag == 2 ? -1 : 1, got.data(), got.size(), tag);
      operation.timeout_ns = kSecond / 20;
      requests.push_back(p.engine.post(*p.group, operation, false));
    }
    for (std::uint32_t i = 1; i <= 40; ++i) {
      wire::Header h = message_header(1, 1, static_cast<int>(random() % 4), random() % 2,
                                      random() % 2 == 0 ? got.size() : random());
      if (random() % 2 == 0) h.kind = static_cast<std::uint8_t>(random() % 11);
      if (random() % 4 == 0) h.flags = static_cast<std::uint16_t>(random());
      if (random() % 4 == 0) h.source = static_cast<std::uint16_t>(random() % 5);
      if (random() % 8 == 0) h.offset = random();
      if (random() % 8 == 0) h.chunk = static_cast<std::uint16_t>(random());
      if (random() % 8 == 0) h.epoch = random() % 3;
      if (random() % 8 == 0) h.dtype = static_cast<std::uint8_t>(random());
      if (random() % 8 == 0) h.op = static_cast<std::uint8_t>(random());
      if (h.kind == static_cast<std::uint8_t>(wire::FrameKind::kBye) && random() % 4 != 0) continue;
      p.hand().write(numbered(h, i, pattern(random() % 2 == 0 ? 5000 : random() % 6000, i)));
    }
    for (const auto& request : requests) CHECK(p.engine.wait(*request, 10 * kSecond));
  }
}

TEST("an urgent message overtakes those that wait for the wire") {
  const Bytes bulk = pattern(200'000, 1);
  const Bytes urgent = pattern(200'000, 2);
  Played p;  // declared later than the memory it sends from, so it is destroyed first
  std::vector<std::shared_ptr<Request>> requests;
  for (int tag = 1; tag <= 12; ++tag) {
    Operation operation = send_to(1, bulk.data(), bulk.size(), tag);
    operation.priority = 5;
    requests.push_back(p.engine.post(*p.group, operation, false));
  }
  // Eager sends fill the socket and the queue of the rail. The link still decides the order of the
  // rest.
  const auto last = p.engine.post(*p.group, send_to(1, urgent.data(), urgent.size(), 99), false);
  int before = 0;
  for (;;) {
    const Frame frame = p.hand().expect(wire::FrameKind::kData);
    if ((frame.header.tag >> 32 & 0xFFFFFF) == 99) break;
    ++before;
  }
  CHECK(before < 8);
}

TEST("what is sent to a peer that has not posted is bounded, and goes on once it grants") {
  const Bytes words = pattern(1'000'000, 1);
  Played p;
  const auto request = p.engine.post(*p.group, send_to(1, words.data(), words.size()), false);
  std::size_t eager = 0;
  std::optional<Frame> frame;
  while ((frame = p.hand().read()) &&
         frame->header.kind == static_cast<std::uint8_t>(wire::FrameKind::kData))
    eager += frame->payload.size();
  CHECK(frame.has_value());
  CHECK_EQUAL(frame->header.kind, static_cast<std::uint8_t>(wire::FrameKind::kGrant));
  CHECK(eager <= small_engine().eager_bytes);
  CHECK(!request->finished());
  wire::Header grant = frame->header;
  grant.flags = static_cast<std::uint16_t>((grant.flags & ~wire::kFlagEager) | wire::kFlagToSender);
  grant.source = 1;
  grant.offset = words.size();
  grant.acknowledge = 0;
  p.hand().write(numbered(grant, 1));
  std::uint32_t last = 0;
  while (eager < words.size()) {
    const Frame more = p.hand().expect(wire::FrameKind::kData);
    eager += more.payload.size();
    last = more.header.sequence;
  }
  wire::Header ack = header_of(wire::FrameKind::kAck);
  ack.acknowledge = last + 1;
  p.hand().write(seal(ack));
  finish(p.engine, request);
}

}  // namespace
}  // namespace slackline::test
