// A fuzzer for the reader of a stream rail: correct, damaged and truncated frames, and arbitrary
// bytes. A second, slow parser of the same bytes gives the expected result.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "../src/rail/stream.h"
#include "recording_sink.h"
#include "target.h"

namespace slackline::fuzz {
namespace {

using test::Frame;
using test::kJobCode;

constexpr std::size_t kWrite = 32u
                               << 10;  // fits into a socket, so that one thread can write and read

// The expected result for `bytes`: the frames before the first frame that fails a check, and the
// fault that ends the rail.
struct Reading {
  std::vector<Frame> frames;
  Fault fault = Fault::kPeer;  // after the end of the stream
};

Reading slow_reading(const Bytes& bytes, bool checksums) {
  Reading reading;
  std::size_t at = 0;
  while (at + sizeof(wire::Header) <= bytes.size()) {
    Frame frame;
    wire::Header& h = frame.header;
    std::memcpy(&h, bytes.data() + at, sizeof h);
    const bool good = h.magic == wire::kMagic && h.version == wire::kVersion && h.job == kJobCode &&
                      h.length <= kMaxPayload && crc32c(0, &h, 60) == h.header_checksum;
    if (!good) break;
    if (bytes.size() - at - sizeof h < h.length) break;
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at + sizeof h);
    frame.payload.assign(begin, begin + h.length);
    if (checksums && h.length > 0 &&
        crc32c(0, frame.payload.data(), h.length) != h.payload_checksum)
      break;
    at += sizeof h + h.length;
    reading.frames.push_back(std::move(frame));
  }
  if (at < bytes.size()) reading.fault = Fault::kFrame;
  return reading;
}

enum Act : std::uint8_t { kAnyBytes, kFrame, kClaim, kDamage, kCut, kForget, kTurn, kActs };

std::size_t payload_bytes(Choices& choices) {
  constexpr std::array<std::size_t, 8> kSizes = {0,      1,      64,      16'384,
                                                 16'385, 70'000, 164'000, 300'000};
  return kSizes[choices.below(kSizes.size())] + choices.byte() % 3;
}

wire::Header header(Choices& choices) {
  wire::Header h = test::header_of(static_cast<wire::FrameKind>(choices.byte() % 12));
  h.sequence = static_cast<std::uint32_t>(choices.number(2));
  h.tag = choices.byte();
  return h;
}

Bytes some_bytes(Act act, Choices& choices) {
  if (act == kAnyBytes) return choices.piece(choices.byte());
  wire::Header h = header(choices);
  if (act == kClaim) {  // a correct header with a wrong payload length and checksum
    h.length = static_cast<std::uint32_t>(choices.number(4));
    h.payload_checksum = static_cast<std::uint32_t>(choices.number(4));
    h.header_checksum = crc32c(0, &h, 60);
    Bytes bytes(sizeof h);
    std::memcpy(bytes.data(), &h, sizeof h);
    return bytes;
  }
  Bytes bytes = test::seal(h, test::pattern(payload_bytes(choices), h.sequence));
  const std::size_t at = choices.number(3) % bytes.size();
  if (act == kDamage) bytes[at] ^= static_cast<std::byte>(1u << choices.byte() % 8);
  if (act == kCut) bytes.resize(at);
  return bytes;
}

struct Fed {
  explicit Fed(bool checksums) {
    const auto [ours, theirs] = test::socket_pair();
    rail = std::make_unique<StreamRail>(ours, kJobCode, checksums);
    hand = std::make_unique<test::Hand>(theirs);
  }
  void read_all() {
    while (rail->poll(link, sink, 0)) {
    }
  }
  void write(const Bytes& bytes) {
    for (std::size_t done = 0; done < bytes.size() && !rail->failure();) {
      const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(done);
      const std::size_t n = std::min(kWrite, bytes.size() - done);
      hand->write(Bytes(at, at + static_cast<std::ptrdiff_t>(n)));
      done += n;
      read_all();
    }
    written.insert(written.end(), bytes.begin(), bytes.end());
  }

  Link& link = some_link();
  RecordingSink sink;
  std::unique_ptr<StreamRail> rail;
  std::unique_ptr<test::Hand> hand;
  Bytes written;
};

void run(Choices& choices) {
  const std::uint8_t how = choices.byte();
  Fed fed((how & 1) != 0);
  fed.sink.lands = (how & 2) != 0;
  fed.sink.hurries = (how & 4) != 0;
  while (!choices.used_up() && !fed.rail->failure() && fed.written.size() < (2u << 20)) {
    const auto act = static_cast<Act>(choices.byte() % kActs);
    if (act == kForget) {
      fed.rail->forget(&fed.sink.owner, fed.sink);
      fed.sink.placements.clear();
    } else if (act == kTurn) {
      fed.sink.lands = !fed.sink.lands;
    } else {
      fed.write(some_bytes(act, choices));
    }
  }
  fed.hand->hang_up();
  fed.read_all();
  const Reading reading = slow_reading(fed.written, fed.rail->checksums());
  CHECK(fed.rail->failure().fault == reading.fault);
  CHECK_EQUAL(fed.sink.frames.size(), reading.frames.size());
  for (std::size_t i = 0; i < reading.frames.size(); ++i)
    check_same(fed.sink.frames[i], reading.frames[i]);
  CHECK_EQUAL(fed.rail->counters().frames_received, reading.frames.size());
  fed.rail->abandon(fed.sink);
  CHECK_EQUAL(fed.sink.buffers_out, 0);
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint64_t how = 0; how < 8; ++how) {
    Script long_ones;
    long_ones.byte(how);
    for (std::uint64_t size = 0; size < 8; ++size)
      long_ones.byte(kFrame).byte(1).number(size, 2).byte(0).byte(size).byte(1).number(0, 3);
    all.push_back(long_ones.bytes());
    Script cut;
    cut.byte(how).byte(kFrame).byte(1).number(1, 2).byte(0).byte(3).byte(0).number(0, 3);
    cut.byte(kCut).byte(1).number(2, 2).byte(0).byte(5).byte(0).number(40'000, 3);
    cut.byte(kForget).byte(kAnyBytes).byte(20).piece(test::pattern(20, 1));
    all.push_back(cut.bytes());
    Script claim;
    claim.byte(how).byte(kClaim).byte(1).number(1, 2).byte(0).number(100, 4).number(0, 4);
    claim.byte(kDamage).byte(1).number(2, 2).byte(0).byte(3).byte(0).number(64, 3).byte(1);
    all.push_back(claim.bytes());
  }
  return all;
}

}  // namespace slackline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  slackline::fuzz::Choices choices(data, size);
  slackline::fuzz::run(choices);
  return 0;
}
