// A fuzzer for the receiver of a UDP rail that also sends frames: correct, damaged and
// contradicting fragments, acknowledgements of anything, and arbitrary bytes. A slow reference
// model gives the expected frames and confirmations.
#include <array>
#include <memory>

#include "../src/rail/udp_protocol.h"
#include "recording_sink.h"
#include "target.h"
#include "udp_model.h"
#include "udp_peer.h"

namespace slackline::fuzz {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::size_t kMostEnqueued = 128u << 10;
constexpr std::array<std::int64_t, 4> kFirstNumbers = {0, 5, 0xFFFF'FFF0, 0x7FFF'FFF8};

enum Act : std::uint8_t {
  kFragment,
  kOthers,  // all fragments of a frame except one
  kSpoiled,
  kDamaged,
  kAnyBytes,
  kSkip,
  kAck,
  kClose,
  kEnqueue,
  kRelease,
  kSend,
  kRefuse,
  kWait,
  kForget,
  kTurn,
  kActs
};

struct Course {
  Course(Choices& given, std::int64_t first)
      : choices(given),
        first_number(first),
        protocol({.job = test::kJobCode,
                  .packet_bytes = 1472,
                  .first_number = static_cast<std::uint64_t>(first)}),
        arrivals(first),
        sent(first),
        peer(given, first) {}

  void receive(const std::vector<Bytes>& datagrams) {
    for (const Bytes& datagram : datagrams) receive(datagram);
  }
  void receive(const Bytes& datagram) {
    const std::uint64_t taken = protocol.taken(), refused = protocol.refused(),
                        repeated = protocol.duplicates();
    protocol.receive(datagram, now_ns, now_ns, link, sink);
    UdpHeader header;
    using Verdict = UdpArrivalsModel::Verdict;
    Verdict verdict = Verdict::kRefused;
    if (udp_open(datagram, test::kJobCode, &header)) {
      const Bytes body = body_of(datagram);
      if (header.kind == UdpKind::kData || header.kind == UdpKind::kSkip) {
        verdict = arrivals.read(header, body);
      } else if (header.kind == UdpKind::kAck) {
        if (sent.read(header, body)) verdict = Verdict::kTaken;
        CHECK(protocol.sender().unconfirmed_bytes() >= sent.unconfirmed_bytes());
      } else if (header.kind == UdpKind::kClose && body.empty() && header.number <= 1) {
        closed = static_cast<UdpClose>(header.number);
        verdict = Verdict::kTaken;
      }
    }
    CHECK_EQUAL(protocol.refused() - refused, verdict == Verdict::kRefused ? 1u : 0u);
    CHECK_EQUAL(protocol.taken() - taken, verdict == Verdict::kRefused ? 0u : 1u);
    CHECK_EQUAL(protocol.duplicates() - repeated, verdict == Verdict::kRepeated ? 1u : 0u);
    CHECK(protocol.closed() == closed);
    CHECK_EQUAL(protocol.receiver().held_bytes(), arrivals.held_bytes());
    CHECK(protocol.receiver().held_bytes() <= kUdpOpenBytes);
    CHECK_EQUAL(protocol.receiver().frames(), arrivals.frames.size());
    CHECK_EQUAL(sink.frames.size(), arrivals.frames.size());
    for (; compared < sink.frames.size(); ++compared)
      check_same(sink.frames[compared], arrivals.frames[compared]);
  }

  // --- frames sent by this end ---

  void enqueue() {
    const std::size_t length = kLengths[choices.byte() % (kLengths.size() - 1)];
    if (enqueued + length > kMostEnqueued) return;
    enqueued += length;
    const std::uint32_t sequence = ++sequences;
    wire::Header h = test::header_of(wire::FrameKind::kData);
    h.sequence = sequence;
    const Bytes bytes = test::seal(h, test::pattern(length, sequence));
    std::memcpy(&h, bytes.data(), sizeof h);
    auto& payload = payloads[sequence];
    payload = std::make_unique<std::byte[]>(length);
    if (length > 0) std::memcpy(payload.get(), bytes.data() + sizeof h, length);
    sent.enqueue(sequence, bytes);
    protocol.sender().enqueue(h, payload.get(), static_cast<std::uint32_t>(length));
  }
  void release() {
    const std::uint32_t sequence = 1 + choices.byte();
    if (!payloads.contains(sequence)) return;
    protocol.sender().release(sequence);
    sent.release(sequence);
    payloads.erase(sequence);
  }
  bool send() {
    UdpPacket packet;
    if (!protocol.next(packet, now_ns)) return false;
    const Bytes datagram = flat(packet);
    UdpHeader header;
    CHECK(udp_open(datagram, test::kJobCode, &header));
    if (header.kind == UdpKind::kAck) {
      arrivals.check_told(header, body_of(datagram));
    } else {
      sent.send(header, body_of(datagram));
    }
    last = packet;
    return true;
  }
  void wait(std::int64_t ns) {
    now_ns += ns;
    protocol.tick(now_ns);
  }
  // Check that a peer that is correct from now on receives all frames, whatever datagrams it sent
  // before.
  void finish() {
    const UdpSender& sender = protocol.sender();
    for (int turn = 0; sender.in_flight() || sender.queued_bytes() > 0; ++turn) {
      CHECK(turn < 20'000);
      while (send()) {
      }
      if (sent.packets() > 0) {
        UdpHeader header;
        header.kind = UdpKind::kAck;
        header.number = static_cast<std::uint32_t>(first_number) +
                        static_cast<std::uint32_t>(sent.packets()) - 1;
        header.unit = static_cast<std::uint16_t>(std::min(sent.packets(), kUdpMapBits));
        header.total = 1u << 20;
        receive(sealed(header, Bytes((header.unit + 7u) / 8, std::byte{0xFF})));
      }
      const std::int64_t due = protocol.due_ns();
      wait(due == UdpSender::kNever ? kMillisecond : std::max(kMillisecond, due - now_ns));
    }
    CHECK_EQUAL(sender.unconfirmed_bytes(), 0u);
    protocol.receiver().abandon(sink);
    CHECK_EQUAL(protocol.receiver().held_bytes(), 0u);
    CHECK_EQUAL(sink.buffers_out, 0);
  }

  void act(Act act) {
    switch (act) {
      case kFragment:
        return receive(peer.fragments(false, UdpPeer::Harm::kNone));
      case kOthers:
        return receive(peer.fragments(true, UdpPeer::Harm::kNone));
      case kSpoiled:
        return receive(peer.fragments(false, UdpPeer::Harm::kSpoiled));
      case kDamaged:
        return receive(peer.fragments(false, UdpPeer::Harm::kDamaged));
      case kAnyBytes:
        return receive(peer.any_bytes());
      case kSkip:
        return receive(peer.skip());
      case kAck:
        return receive(peer.acknowledgement(sent.packets()));
      case kClose:
        return receive(peer.close());
      case kEnqueue:
        return enqueue();
      case kRelease:
        return release();
      case kSend:
        for (std::size_t left = choices.byte(); left > 0 && send();) --left;
        return;
      case kRefuse:
        if (!send()) return;
        protocol.take_back(last);
        if (last.header.kind != UdpKind::kAck) sent.take_back();
        return;
      case kWait:
        return wait(static_cast<std::int64_t>(choices.number(1 + choices.byte() % 4)));
      case kForget:
        protocol.receiver().forget(&sink.owner, sink);
        sink.placements.clear();
        return;
      case kTurn:
      case kActs:
        sink.lands = !sink.lands;
    }
  }

  Choices& choices;
  const std::int64_t first_number;
  Link& link = some_link();
  RecordingSink sink;
  UdpProtocol protocol;
  UdpArrivalsModel arrivals;
  UdpSentModel sent;
  UdpPeer peer;
  std::map<std::uint32_t, std::unique_ptr<std::byte[]>> payloads;  // by sequence
  std::optional<UdpClose> closed;
  UdpPacket last;
  std::int64_t now_ns = test::kSecond;
  std::uint32_t sequences = 0;
  std::size_t enqueued = 0;
  std::size_t compared = 0;
};

void run(Choices& choices) {
  const std::uint8_t how = choices.byte();
  Course course(choices, kFirstNumbers[how % kFirstNumbers.size()]);
  course.sink.lands = (how & 4) != 0;
  while (!choices.used_up()) course.act(static_cast<Act>(choices.byte() % kActs));
  course.finish();
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint64_t how = 0; how < 8; ++how) {
    Script whole;  // each frame without one fragment, then that fragment; and a skipped frame
    whole.byte(how);
    for (std::uint64_t frame = 0; frame < 7; ++frame) {
      const std::size_t unit = kUnits[frame % kUnits.size()];
      const std::size_t fragments = (64 + kLengths[frame] + unit - 1) / unit;
      for (const Act act : {kOthers, kFragment}) {
        whole.byte(act).byte(frame).byte(frame).byte(frame % kUnits.size()).number(0, 2);
        whole.piece(Bytes(act == kOthers ? fragments - 1 : 1));
      }
    }
    whole.byte(kSkip).byte(0).byte(7).byte(0).byte(kSend).byte(3).byte(kForget).byte(kTurn);
    all.push_back(whole.bytes());
    Script ours;  // sent frames, some released, one refused packet, ACKs of a part
    ours.byte(how);
    for (std::uint64_t length = 0; length < 7; ++length) ours.byte(kEnqueue).byte(length);
    ours.byte(kSend).byte(40).byte(kRefuse).byte(kRelease).byte(4).byte(kWait).byte(3).number(1, 4);
    ours.byte(kAck).byte(2).number(30, 2).number(0, 2).number(1u << 20, 4).byte(0x5A);
    ours.byte(kSend).byte(40).byte(kWait).byte(3).number(60'000'000, 4).byte(kSend).byte(9);
    ours.byte(kAck).byte(241).number(7, 4).number(300, 2).number(0, 1).number(0, 4).byte(0xFF);
    all.push_back(ours.bytes());
    Script liar;
    liar.byte(how).byte(kSpoiled).byte(1).byte(3).byte(0).number(0, 2).byte(0).number(9, 4).byte(3);
    liar.byte(kDamaged).byte(1).byte(3).byte(0).number(0, 2).byte(0).number(99, 2).byte(1).byte(1);
    liar.byte(kAnyBytes).byte(40).piece(test::pattern(64, 3)).byte(1);
    liar.byte(kClose).byte(1).byte(0).byte(kClose).byte(2).byte(0);
    all.push_back(liar.bytes());
  }
  return all;
}

}  // namespace slackline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  slackline::fuzz::Choices choices(data, size);
  slackline::fuzz::run(choices);
  return 0;
}
