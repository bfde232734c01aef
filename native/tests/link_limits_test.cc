// Tests of the limits on memory that a peer can make an engine use. A peer that exceeds a limit is
// cut off; a peer that keeps to the protocol is never cut off.
#include <string>

#include "../src/engine/headers.h"
#include "frames.h"

namespace slackline::test {
namespace {

constexpr std::size_t kPool = 4u << 20;
constexpr std::uint32_t kMostHeld = 139'264;
constexpr std::uint32_t kMostAhead = 262'144;
constexpr int kUnused = 1 << 20;  // a tag that no message of these tests has

// Send a message that the engine has not asked for, as frame `sequence` of the link.
void say(Hand& hand, std::uint32_t sequence, int tag, const Bytes& words) {
  hand.write(numbered(message_header(1, 1, tag, 0, words.size()), sequence, words));
}

// Return the error message of an operation with a peer that has been cut off.
std::string last_words(Played& p) {
  until([&] { return !p.engine.connections().link_alive(p.link); }, "the end of the link");
  std::byte got{};
  const auto request = p.engine.post(*p.group, receive_from(1, &got, 1, kUnused), true);
  CHECK(request->failure.fault == Fault::kPeer);
  CHECK_EQUAL(request->failure.peer, 1);
  return request->failure.message;
}

std::string cut_off(const std::string& reason) {
  return "the link to rank 1 (the hand) closed unexpectedly: " + reason;
}

TEST("a peer that sends more than may wait here is cut off, though its link would be made again") {
  Played p(1, small_engine(), true);
  const Bytes words = pattern(100'000, 1);
  constexpr std::uint32_t kFit = kPool / (100'000 + sizeof(wire::Header));
  for (std::uint32_t i = 1; i <= kFit; ++i) say(p.hand(), i, static_cast<int>(i), words);
  Bytes got(words.size());
  finish(p.engine, p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 5), true));
  CHECK(got == words);
  say(p.hand(), kFit + 1, 5 + (1 << 16), words);  // uses the room of the message that was received
  finish(p.engine,
         p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 5 + (1 << 16)), true));
  say(p.hand(), kFit + 2, 1 << 17, words);
  CHECK(p.engine.connections().link_alive(p.link));
  say(p.hand(), kFit + 3, 1 << 18, words);
  CHECK_EQUAL(last_words(p), cut_off("it sent 4202688 bytes, headers included, that nothing had "
                                     "asked for: 4194304 may wait at a time"));
}

TEST("empty messages count as well") {
  Played p;
  for (std::uint32_t i = 1; i <= kPool / sizeof(wire::Header) + 1; ++i)
    say(p.hand(), i, static_cast<int>(i), {});
  CHECK_EQUAL(last_words(p), cut_off("it sent 4194368 bytes, headers included, that nothing had "
                                     "asked for: 4194304 may wait at a time"));
}

TEST("a peer that asks for grants without end is cut off") {
  Played p;
  wire::Header ask = message_header(1, 1, 0, 0, 1'000'000);
  ask.kind = static_cast<std::uint8_t>(wire::FrameKind::kGrant);
  for (std::uint32_t i = 1; i <= kMostHeld + 1; ++i) {
    ask.tag = std::uint64_t{2} << 56 | std::uint64_t{7} << 32 | i;
    p.hand().write(numbered(ask, i));
  }
  CHECK_EQUAL(last_words(p), cut_off("it sent 139265 frames of operations that are not posted: "
                                     "139264 may wait at a time"));
}

TEST("a peer that leaves out one number and goes on without end is cut off") {
  Played p;
  Bytes got(1000);
  const Bytes words = pattern(got.size(), 2);
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 3), false);
  say(p.hand(), 1 + kMostAhead, 3, words);
  finish(p.engine, request);
  CHECK(got == words);
  say(p.hand(), 2 + kMostAhead, 4, words);
  CHECK_EQUAL(last_words(p),
              cut_off("it sent frame 262146 although frame 1 had not arrived: at most 262144 "
                      "frames may overtake one frame"));
}

TEST("a payload that claims a grant which nothing has given is not kept") {
  Played p;
  const Bytes words = pattern(100'000, 3);
  std::uint32_t sequence = 0;
  for (int i = 0; i < 100; ++i) {  // 10 MB, more than the eager pool
    wire::Header h = message_header(1, 1, i, 0, words.size());
    h.flags = 0;
    p.hand().write(numbered(h, ++sequence, words));
  }
  Bytes got(words.size());
  say(p.hand(), ++sequence, 1000, words);
  finish(p.engine, p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 1000), true));
  CHECK(got == words);
  Operation dropped = receive_from(1, got.data(), got.size(), 0);
  dropped.timeout_ns = kSecond / 20;
  const auto request = p.engine.post(*p.group, dropped, true);
  CHECK(request->failure.fault == Fault::kTimeout);
  CHECK(p.engine.connections().link_alive(p.link));
}

TEST("a contribution that comes twice while others are awaited is refused") {
  Engine engine(small_engine());
  std::vector<int> links = {-1};
  std::vector<std::unique_ptr<Hand>> hands;
  for (int rank = 1; rank < 3; ++rank) {
    links.push_back(engine.connections().add_link("hand " + std::to_string(rank)));
    const auto [ours, theirs] = socket_pair();
    engine.connections().add_rail(links.back(), 0, RailKind::kTcp, ours, kJobCode);
    hands.push_back(std::make_unique<Hand>(theirs));
  }
  const std::shared_ptr<Group> group = engine.open_group(1, 0, links, false);
  auto program = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{1}, 3, 0, 1,
                                           true, false, false);
  program->append(Opcode::kBuffer, 2, 0, false);
  program->append(Opcode::kBuffer, 1, 0, false);
  program->append(Opcode::kReduceAll, 0, 0, false);
  std::vector<float> values(100, 1);
  const auto request =
      engine.post(*group, reduction(program, values.data(), values.data(), values.size()), false);
  wire::Header h = header_for(*request, wire::FrameKind::kData);
  h.job = kJobCode;
  h.source = 1;
  h.total = values.size() * sizeof(float);
  h.flags |= wire::kFlagEager;
  const Bytes mine = pattern(h.total, 4);
  hands[0]->write(numbered(h, 1, mine));
  hands[0]->write(numbered(h, 2, mine));
  CHECK(engine.wait(*request, -1));
  CHECK(request->failure.fault == Fault::kMismatch);
  CHECK_EQUAL(request->failure.peer, 1);
}

TEST("a peer that posts more than may wait is never cut off: its own engine holds back") {
  // The first messages fill the eager pool. More messages wait than may request grants, and none is
  // received before all are posted.
  constexpr std::size_t kLong = 20;
  constexpr std::size_t kBrief = 5000;
  Ranks ranks(2, Kind::kStream);
  std::vector<Bytes> words;
  std::vector<Bytes> got;
  for (std::size_t i = 0; i < kLong + kBrief; ++i) {
    words.push_back(pattern(i < kLong ? 209'000 : 3, static_cast<unsigned>(i)));
    got.emplace_back(words.back().size());
  }
  std::vector<std::shared_ptr<Request>> sends;
  std::vector<std::shared_ptr<Request>> receives;
  const auto tag = [](std::size_t i) { return static_cast<int>(i); };
  for (std::size_t i = 0; i < words.size(); ++i)
    sends.push_back(ranks.engine(0).post(
        ranks.group(0), send_to(1, words[i].data(), words[i].size(), tag(i)), false));
  for (std::size_t i = words.size(); i-- > 0;)
    receives.push_back(ranks.engine(1).post(
        ranks.group(1), receive_from(0, got[i].data(), got[i].size(), tag(i)), false));
  for (const auto& request : receives) finish(ranks.engine(1), request);
  for (const auto& request : sends) finish(ranks.engine(0), request);
  CHECK(got == words);
}

}  // namespace
}  // namespace slackline::test
