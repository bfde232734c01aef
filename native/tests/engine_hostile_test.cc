// Tests of an engine against peers that have the job's secret and break the protocol: the memory of
// the engine stays within its limits, and groups of which the peer is no member are not affected.
#include <string>

#include "frames.h"

namespace slackline::test {
namespace {

constexpr int kMany = 1'000'000;
constexpr int kPiece = 1000;

// Return the error message of an operation with a peer that has been cut off.
std::string last_words(Played& p) {
  until([&] { return !p.engine.connections().link_alive(p.link); }, "the end of the link");
  std::byte got{};
  const auto request = p.engine.post(*p.group, receive_from(1, &got, 1, 99), true);
  CHECK(request->failure.fault == Fault::kPeer);
  return request->failure.message;
}

std::string cut_off(const std::string& reason) {
  return "the link to rank 1 (the hand) closed unexpectedly: " + reason;
}

// Write a frame again and again until the engine closes the rail. Return the number that fit.
int flood(Hand& hand, const Bytes& frame) {
  Bytes piece;
  for (int i = 0; i < kPiece; ++i) piece.insert(piece.end(), frame.begin(), frame.end());
  int sent = 0;
  while (sent < kMany && hand.offer(piece)) sent += kPiece;
  return sent;
}

TEST("a peer that sends probes and reads no answer is cut off") {
  Played p;
  CHECK(flood(p.hand(), seal(header_of(wire::FrameKind::kProbe))) < kMany);
  CHECK_EQUAL(last_words(p), cut_off("it does not read the answers to its frames: 65537 answers "
                                     "wait to be sent, at most 65536 may"));
}

TEST("a peer that sends frames of groups without a number is cut off") {
  Played p;
  wire::Header bye = header_of(wire::FrameKind::kBye);
  bye.epoch = 1;
  p.hand().write(numbered(bye, 5));  // waits for four frames that have not come
  CHECK(flood(p.hand(), seal(bye)) < kMany);
  CHECK_EQUAL(last_words(p), cut_off("it sent a frame of kind 6 without a number"));
}

TEST("a peer that asks for a grant again and again gets one answer") {
  Played p;
  const Bytes words = pattern(100'000, 1);
  Bytes got(words.size());
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 3), false);
  wire::Header ask = message_header(1, 1, 3, 0, words.size());
  ask.kind = static_cast<std::uint8_t>(wire::FrameKind::kGrant);
  std::uint32_t sequence = 0;
  while (sequence < 50) p.hand().write(numbered(ask, ++sequence));
  p.hand().write(numbered_message(++sequence, 3, 0, words));
  finish(p.engine, request);
  CHECK(got == words);
  int grants = 0;
  for (std::optional<Frame> frame = p.hand().read(); frame; frame = p.hand().read()) {
    grants += frame->header.kind == static_cast<std::uint8_t>(wire::FrameKind::kGrant);
    if (frame->header.acknowledge > sequence) break;
  }
  CHECK_EQUAL(grants, 1);
}

TEST("frames of a group from a peer that is no member of it change nothing") {
  Played p;
  const int other = p.engine.connections().add_link("the intruder");
  const auto [ours, theirs] = socket_pair();
  p.engine.connections().add_rail(other, 0, RailKind::kTcp, ours, kJobCode);
  Hand intruder(theirs);
  const std::shared_ptr<Group> group = p.engine.open_group(2, 0, {-1, other}, false);
  const Bytes words = pattern(1000, 1);
  const Bytes wrong = pattern(1000, 2);
  Bytes got(words.size());
  Bytes proof(wrong.size());
  const auto request = p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 3), false);
  std::uint32_t sequence = 0;
  for (int tag = 3; tag < 5; ++tag) {  // a posted operation, and an operation not yet posted
    wire::Header h = message_header(1, 1, tag, 0, words.size());
    intruder.write(numbered(h, ++sequence, wrong));
    h.kind = static_cast<std::uint8_t>(wire::FrameKind::kAbort);
    intruder.write(numbered(h, ++sequence));
  }
  intruder.write(numbered(message_header(2, 1, 0, 0, wrong.size()), ++sequence, wrong));
  finish(p.engine, p.engine.post(*group, receive_from(1, proof.data(), proof.size(), 0), true));
  CHECK(proof == wrong);
  p.hand().write(numbered_message(1, 3, 0, words));
  finish(p.engine, request);
  CHECK(got == words);
  p.hand().write(numbered_message(2, 4, 0, words));
  got.assign(got.size(), std::byte{0});
  finish(p.engine, p.engine.post(*p.group, receive_from(1, got.data(), got.size(), 4), true));
  CHECK(got == words);
}

TEST("between ranks of one host any number of short messages waits for its receives") {
  constexpr int kMessages = 150'000;  // more than wait on a wire
  Ranks ranks(2, Kind::kShared);
  const auto words = [](int tag) { return pattern(3, static_cast<unsigned>(tag)); };
  for (int tag = 0; tag < kMessages; ++tag) {
    const Bytes sent = words(tag);
    finish(ranks.engine(0),
           ranks.engine(0).post(ranks.group(0), send_to(1, sent.data(), sent.size(), tag), true));
  }
  for (int tag = 0; tag < kMessages; ++tag) {
    Bytes got(3);
    finish(
        ranks.engine(1),
        ranks.engine(1).post(ranks.group(1), receive_from(0, got.data(), got.size(), tag), true));
    CHECK(got == words(tag));
  }
}

}  // namespace
}  // namespace slackline::test
