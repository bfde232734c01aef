// Tests of the lab's switch without its ports: frames and times go in, frames and times come out.
#include <algorithm>
#include <string>
#include <vector>

#include "../src/lab/fabric.h"
#include "check.h"

namespace slackline::lab {
namespace {

constexpr std::int64_t kMs = 1'000'000;

struct Delivery {
  std::int64_t at_ns;
  int host, nic;
  std::vector<std::byte> frame;

  int mark() const { return std::to_integer<int>(frame.back()); }
};

std::vector<std::byte> frame_to(int host, int nic, std::size_t bytes, int mark) {
  std::vector<std::byte> frame(kVirtioBytes + bytes);
  const int mac[] = {0x02, 0x53, 0x4c, nic, host >> 8, host & 255};
  for (int i = 0; i < 6; ++i) frame[kVirtioBytes + i] = static_cast<std::byte>(mac[i]);
  frame[kVirtioBytes + 12] = std::byte{0x08};
  frame[kHeadBytes] = std::byte{0x45};
  frame[kHeadBytes + 2] = static_cast<std::byte>((bytes - 14) >> 8);
  frame[kHeadBytes + 3] = static_cast<std::byte>((bytes - 14) & 255);
  frame.back() = static_cast<std::byte>(mark);
  return frame;
}

// A fabric of three hosts with two NICs, and a simulated clock that the test advances.
class World : private Outlet {
 public:
  explicit World(std::uint64_t rate = 0) : fabric_(3, 2, rate, *this) {}

  void path(int from, int to, FaultState state) {
    fabric_.apply({{.from = from, .to = to, .nic = 0, .state = state}}, {});
  }
  void send(int from, int to, std::size_t bytes = 100, int mark = 0) {
    send(from, frame_to(to, 0, bytes, mark));
  }
  void send(int from, std::vector<std::byte> frame) { fabric_.arrive(now_ns, from, 0, frame); }
  // Advance the clock until no frame is left in the fabric.
  std::vector<Delivery> finish() {
    while (fabric_.due_ns() != kNever) {
      now_ns = fabric_.due_ns();
      fabric_.release(now_ns);
    }
    return std::move(delivered_);
  }
  std::string marks() {
    std::string text;
    for (const Delivery& each : finish()) text += static_cast<char>('0' + each.mark());
    return text;
  }
  PathCounters counters(int from, int to) {
    for (const PathCounters& each : fabric_.counters())
      if (each.from == from && each.to == to) return each;
    return {};
  }
  Fabric& fabric() { return fabric_; }

  std::int64_t now_ns = 0;

 private:
  void deliver(int host, int nic, ConstFrame frame) override {
    delivered_.push_back({now_ns, host, nic, {frame.begin(), frame.end()}});
  }

  Fabric fabric_;
  std::vector<Delivery> delivered_;
};

TEST("the lab's fabric delivers a frame to the host and NIC in its address, at once") {
  World world;
  world.send(0, 2, 100, 7);
  const auto delivered = world.finish();
  CHECK_EQUAL(delivered.size(), 1u);
  CHECK_EQUAL(delivered[0].host, 2);
  CHECK_EQUAL(delivered[0].nic, 0);
  CHECK_EQUAL(delivered[0].at_ns, 0);
  CHECK(delivered[0].frame == frame_to(2, 0, 100, 7));
}

TEST("the lab's fabric gives a broadcast to all others and strange addresses to nobody") {
  World world;
  auto everybody = frame_to(0, 0, 100, 0);
  std::fill_n(everybody.begin() + kVirtioBytes, 6, std::byte{0xFF});
  world.send(1, everybody);
  world.send(1, frame_to(0, 1, 100, 0));  // belongs to another NIC
  world.send(1, frame_to(3, 0, 100, 0));  // addresses a host that does not exist
  world.send(1, frame_to(1, 0, 100, 0));  // addresses the sender itself
  world.send(1, std::vector<std::byte>(kHeadBytes - 1));
  std::vector<int> hosts;
  for (const Delivery& each : world.finish()) hosts.push_back(each.host);
  CHECK(hosts == (std::vector<int>{0, 2}));
}

TEST("the lab's fabric delays one direction and not the other") {
  World world;
  world.path(0, 1, {.delay_ns = 30 * kMs});
  world.send(0, 1);
  world.send(1, 0);
  const auto delivered = world.finish();
  CHECK_EQUAL(delivered[0].host, 0);
  CHECK_EQUAL(delivered[0].at_ns, 0);
  CHECK_EQUAL(delivered[1].host, 1);
  CHECK_EQUAL(delivered[1].at_ns, 30 * kMs);
}

TEST("the lab's fabric keeps the order when a delay ends, and when it varies") {
  World world;
  world.path(0, 1, {.delay_ns = 30 * kMs, .jitter_ns = 5 * kMs});
  for (int mark = 0; mark < 8; ++mark) world.send(0, 1, 100, mark);
  world.fabric().apply({}, {});
  world.send(0, 1, 100, 8);
  CHECK_EQUAL(world.marks(), "012345678");
}

TEST("the lab's fabric reorders what it is asked to: a frame is overtaken by those behind it") {
  World world;
  world.path(0, 1, {.reorder = 0.3, .seed = 4});
  for (int mark = 0; mark < 9; ++mark) world.send(0, 1, 100, mark);
  std::string marks = world.marks();
  CHECK(marks != "012345678");
  CHECK(world.counters(0, 1).reordered > 0);
  std::sort(marks.begin(), marks.end());
  CHECK_EQUAL(marks, "012345678");
}

TEST("the lab's fabric passes a path's rate to the nanosecond and drops what finds it full") {
  World world;
  world.path(0, 1, {.rate = 1'000'000});  // 1 byte per microsecond
  for (int i = 0; i < 3; ++i) world.send(0, 1, 1000);
  const auto delivered = world.finish();
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(delivered[i].at_ns, (i + 1) * kMs);
  for (int i = 0; i < 2000; ++i) world.send(0, 1, 1000);
  CHECK_EQUAL(world.finish().size(), 1049u);  // 1 MiB in the queue and one frame being sent
  CHECK_EQUAL(world.counters(0, 1).overflowed, 951u);
}

TEST("the lab's fabric shares a port's rate between those who send to it") {
  World world(1'000'000);
  world.send(0, 2, 500, 0);
  world.send(1, 2, 500, 1);
  world.send(1, 0, 500, 2);
  const auto delivered = world.finish();
  std::vector<std::int64_t> times;
  for (const Delivery& each : delivered) times.push_back(each.at_ns);
  CHECK(times == (std::vector<std::int64_t>{kMs / 2, kMs / 2, kMs}));
}

TEST("the lab's fabric brings a frame to its port when its delay is over, not before") {
  World world(1'000'000);
  world.path(0, 2, {.delay_ns = 10 * kMs});
  world.send(0, 2, 1000, 0);
  world.send(1, 2, 1000, 1);  // not delayed by a frame that is still in flight
  const auto delivered = world.finish();
  CHECK_EQUAL(delivered[0].at_ns, kMs);
  CHECK_EQUAL(delivered[0].mark(), 1);
  CHECK_EQUAL(delivered[1].at_ns, 11 * kMs);
}

TEST("the lab's fabric loses the same frames for the same seed and others for another") {
  const auto lost = [](std::uint64_t seed, int to) {
    World world;
    world.path(0, to, {.loss = 0.25, .seed = seed});
    for (int mark = 0; mark < 64; ++mark) world.send(0, to, 100, mark);
    return world.marks();
  };
  CHECK_EQUAL(lost(1, 1), lost(1, 1));
  CHECK(lost(1, 1) != lost(2, 1));
  CHECK(lost(1, 1) != lost(1, 2));
  const std::size_t kept = lost(1, 1).size();
  CHECK(kept > 36 && kept < 60);  // within four standard deviations of the mean 48
}

TEST("the lab's fabric goes on drawing lots where a fault stays, whatever else changes") {
  World world;
  const PathFault fault{.from = 0, .to = 1, .nic = 0, .state = {.loss = 0.5, .seed = 9}};
  const auto send = [&](int first) {
    for (int mark = first; mark < first + 20; ++mark) world.send(0, 1, 100, mark);
  };
  world.fabric().apply({fault}, {});
  send(0);
  send(20);
  const std::string unbroken = world.marks();
  World again;
  again.fabric().apply({fault}, {});
  for (int mark = 0; mark < 20; ++mark) again.send(0, 1, 100, mark);
  again.fabric().apply({fault, {.from = 2, .to = 1, .nic = 0, .state = {.down = true}}}, {});
  for (int mark = 20; mark < 40; ++mark) again.send(0, 1, 100, mark);
  CHECK_EQUAL(again.marks(), unbroken);
}

TEST("the lab's fabric duplicates frames") {
  World world;
  world.path(0, 1, {.duplicate = 1.0});
  for (int mark = 0; mark < 3; ++mark) world.send(0, 1, 100, mark);
  CHECK_EQUAL(world.marks(), "001122");
  CHECK_EQUAL(world.counters(0, 1).duplicated, 3u);
}

TEST("the lab's fabric corrupts one bit behind the IP header") {
  World world;
  world.path(0, 1, {.corrupt = 1.0});
  const auto sent = frame_to(1, 0, 60, 0);
  for (int i = 0; i < 200; ++i) world.send(0, sent);
  for (const Delivery& each : world.finish()) {
    std::vector<std::size_t> differing;
    for (std::size_t i = 0; i < sent.size(); ++i)
      if (each.frame[i] != sent[i]) differing.push_back(i);
    CHECK_EQUAL(differing.size(), 1u);
    CHECK(differing[0] >= kHeadBytes + 20);
    const auto wrong = std::to_integer<unsigned>(each.frame[differing[0]] ^ sent[differing[0]]);
    CHECK_EQUAL(wrong & (wrong - 1), 0u);
  }
  CHECK_EQUAL(world.counters(0, 1).corrupted, 200u);
}

TEST("the lab's fabric corrupts one receiver's broadcast and leaves the others' alone") {
  World world;
  world.path(1, 0, {.delay_ns = kMs, .corrupt = 1.0});
  auto everybody = frame_to(0, 0, 100, 0);
  std::fill_n(everybody.begin() + kVirtioBytes, 6, std::byte{0xFF});
  world.send(1, everybody);
  const auto delivered = world.finish();
  CHECK_EQUAL(delivered[0].host, 2);
  CHECK(delivered[0].frame == everybody);
  CHECK_EQUAL(delivered[1].host, 0);
  CHECK(delivered[1].frame != everybody);
}

TEST(
    "the lab's fabric delivers nothing to or from a NIC that is down, not even what is on its "
    "way") {
  World world;
  world.path(0, 1, {.delay_ns = 30 * kMs});
  world.send(0, 1);
  world.fabric().apply({}, {{.host = 1, .nic = 0, .rate = 0, .down = true}});
  world.send(0, 1);
  world.send(1, 2);
  world.send(0, 2);
  const auto delivered = world.finish();
  CHECK_EQUAL(delivered.size(), 1u);
  CHECK_EQUAL(delivered[0].host, 2);
  CHECK_EQUAL(world.counters(0, 1).unplugged, 2u);
  CHECK_EQUAL(world.counters(1, 2).unplugged, 1u);
}

TEST("the lab's fabric asks for single packets only where a fault is about packets") {
  World world;
  world.path(0, 1, {.delay_ns = kMs});
  CHECK(!world.fabric().single(0, 0));
  world.path(0, 1, {.delay_ns = kMs, .loss = 0.01});
  CHECK(world.fabric().single(0, 0));
  CHECK(!world.fabric().single(1, 0));
  CHECK(!world.fabric().single(0, 1));
}

TEST("the lab's fabric spares a super-frame that was sent before a fault about packets came") {
  World world;
  world.path(0, 1, {.loss = 1.0});
  auto frame = frame_to(1, 0, 100, 3);
  Virtio header;
  header.flags = kNeedsChecksum;
  std::memcpy(frame.data(), &header, sizeof header);
  world.send(0, frame);
  world.send(0, 1, 100, 4);
  CHECK_EQUAL(world.marks(), "3");
}

TEST("the lab's fabric weighs a super-frame as the packets that it stands for") {
  auto frame = frame_to(1, 0, 14 + 20 + 32 + 3 * 1448, 0);
  frame[kHeadBytes + 20 + 12] = std::byte{0x80};  // a TCP header of 32 bytes
  CHECK_EQUAL(wire_bytes(frame), 14u + 20 + 32 + 3 * 1448);
  Virtio header;
  header.gso_type = kGsoTcp4;
  header.gso_size = 1448;
  std::memcpy(frame.data(), &header, sizeof header);
  CHECK_EQUAL(wire_bytes(frame), 3u * 1514);
}

}  // namespace
}  // namespace slackline::lab
