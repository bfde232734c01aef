// Tests of the frames that are kept until their operation is posted. The links have no rail, and no
// engine makes progress.
#include "../src/engine/unexpected_frames.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "frames.h"
#include "parts.h"

namespace slackline::test {
namespace {

// Two links of an engine: one to another host, one to a rank that shares memory.
class Peers {
 public:
  Peers()
      : remote(parts_.add("wire", {.reconnect = true})),
        shared(parts_.add("shared", {.reconnect = true, .shared = true})) {}

 private:
  Parts parts_;

 public:
  Link& remote;
  Link& shared;
};

bool condemned(Link& link) { return !wires_of(link)->channel().condemned().empty(); }

wire::Header data_from(int source, std::uint16_t flags = 0, std::uint32_t length = 0) {
  wire::Header header = header_of(wire::FrameKind::kData);
  header.source = static_cast<std::uint16_t>(source);
  header.flags = flags;
  header.length = length;
  return header;
}

constexpr Key kFirst{1, 4, kRoleCollective};
constexpr Key kSecond{2, 4, kRoleCollective};
constexpr Key kElsewhere{1, 5, kRoleCollective};

TEST("frames wait by operation, in order, with a copy of their payload") {
  const Peers peers;
  UnexpectedFrames frames;
  CHECK(frames.find(kFirst) == nullptr && frames.take(kFirst).empty());
  Bytes payload = pattern(100, 1);
  const Bytes sent = payload;
  frames.keep(kFirst, peers.remote, data_from(3), Payload{payload.data(), nullptr, 100});
  std::memset(payload.data(), 0, payload.size());
  frames.keep(kFirst, peers.shared, header_of(wire::FrameKind::kGrant));
  frames.keep(kSecond, peers.remote, data_from(2));
  CHECK_EQUAL(frames.find(kFirst)->size(), 2u);
  const std::deque<Unexpected> taken = frames.take(kFirst);
  CHECK(taken.size() == 2 && taken[0].payload == sent && taken[0].link == &peers.remote);
  CHECK(taken[0].header.source == 3 && taken[1].payload.empty() && taken[1].link == &peers.shared);
  CHECK(frames.find(kFirst) == nullptr && frames.find(kSecond) != nullptr);
}

TEST("the frames of an operation or of a group are dropped") {
  const Peers peers;
  UnexpectedFrames frames;
  for (const Key& key : {kFirst, kSecond, kElsewhere}) frames.keep(key, peers.remote, data_from(1));
  CHECK_EQUAL(frames.keys_in(4).size(), 2u);
  CHECK(frames.keys_in(5) == std::vector<Key>{kElsewhere} && frames.keys_in(6).empty());
  frames.drop_all(kFirst);
  frames.drop_all(kFirst);
  CHECK(frames.keys_in(4) == std::vector<Key>{kSecond});
  frames.drop_group(4);
  CHECK(frames.keys_in(4).empty() && frames.find(kElsewhere) != nullptr);
}

TEST("a rank has begun the operations whose first frame came from it") {
  const Peers peers;
  UnexpectedFrames frames;
  frames.keep(kFirst, peers.remote, data_from(2));
  frames.keep(kFirst, peers.remote, data_from(3));
  CHECK(frames.begun_by(2, 4, kRoleCollective) == kFirst);
  CHECK(!frames.begun_by(3, 4, kRoleCollective));
  CHECK(!frames.begun_by(2, 5, kRoleCollective));
  CHECK(!frames.begun_by(2, 4, role_receive(2)));
}

TEST("a frame with a reference needs the memory of its own peer") {
  const Peers peers;
  UnexpectedFrames frames;
  frames.keep(kFirst, peers.shared, data_from(1));
  CHECK(!frames.refer_to_memory_of(peers.shared));
  frames.keep(kFirst, peers.shared, data_from(1, wire::kFlagReference));
  CHECK(frames.refer_to_memory_of(peers.shared) && !frames.refer_to_memory_of(peers.remote));
  frames.drop_all(kFirst);
  CHECK(!frames.refer_to_memory_of(peers.shared));
}

TEST("dropped frames give the peer its eager credit back") {
  constexpr std::uint32_t kHalf = 2u << 20;  // two of these exceed the limit of a link
  for (const bool drops : {true, false}) {
    const Peers peers;
    UnexpectedFrames frames;
    for (int round = 0; round < 2; ++round) {
      peers.remote.port().arrived_early(wire::kFlagEager, kHalf);
      frames.keep(kFirst, peers.remote, data_from(1, wire::kFlagEager, kHalf));
      if (drops) frames.drop_all(kFirst);
    }
    CHECK_EQUAL(condemned(peers.remote), !drops);
  }
}

TEST("frames that are used or dropped do not count against the limit of their link") {
  constexpr int kMost = 139'264;
  for (const bool uses : {true, false}) {
    const Peers peers;
    UnexpectedFrames frames;
    const auto clear = [&] {
      if (uses)
        for (const Unexpected& frame : frames.take(kFirst)) UnexpectedFrames::used(frame);
      else
        frames.drop_all(kFirst);
    };
    for (int i = 0; i < 10; ++i) frames.keep(kFirst, peers.remote, data_from(1));
    clear();
    for (int i = 0; i < kMost; ++i) UnexpectedFrames::count(peers.remote);
    CHECK(!condemned(peers.remote));
    frames.keep(kFirst, peers.remote, data_from(1));
    CHECK(condemned(peers.remote));
    for (int i = 0; i <= kMost; ++i) UnexpectedFrames::count(peers.shared);
    CHECK(!peers.shared.port().broken());
  }
}

}  // namespace
}  // namespace slackline::test
