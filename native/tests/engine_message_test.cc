// Tests of point-to-point messages between engines: order, sizes, receives from any source, and a
// full ring.
#include <sys/eventfd.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "frames.h"
#include "parts.h"

namespace slackline::test {
namespace {

TEST("messages of every size arrive, both ways at once") {
  const std::vector<std::size_t> sizes = {0,      1,      100,     8192,     8193,
                                          65'536, 65'537, 300'000, 2'000'000};
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind, 2);
    on_every_rank(2, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      const int peer = 1 - rank;
      for (const std::size_t bytes : sizes) {
        const Bytes words = pattern(bytes, static_cast<unsigned>(rank));
        Bytes got(bytes);
        const auto out = engine.post(ranks.group(rank), send_to(peer, words.data(), bytes), false);
        finish(engine, engine.post(ranks.group(rank), receive_from(peer, got.data(), bytes), true));
        finish(engine, out);
        CHECK(got == pattern(bytes, static_cast<unsigned>(peer)));
      }
    });
  }
}

TEST("messages of one tag keep their order, those of different tags need none") {
  constexpr int kMessages = 50;
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind, 2);
    on_every_rank(2, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      std::vector<Bytes> buffers;
      std::vector<std::shared_ptr<Request>> requests;
      for (int i = 0; i < kMessages; ++i) {
        // The receiver posts the tags in another order than the sender.
        const int tag = rank == 0 ? i % 5 : 4 - i % 5;
        const auto id = static_cast<unsigned>(i / 5 * 5 + tag);
        const std::size_t bytes = 1 + id * 777;
        buffers.push_back(rank == 0 ? pattern(bytes, id) : Bytes(bytes));
        requests.push_back(
            engine.post(ranks.group(rank),
                        message(rank == 1, buffers.back().data(), bytes, 1 - rank, tag), false));
        if (rank == 1 && i % 5 == 4) {
          for (int k = 0; k < 5; ++k) finish(engine, requests[static_cast<std::size_t>(i - k)]);
        }
      }
      for (const auto& request : requests) finish(engine, request);
      for (int i = 0; rank == 1 && i < kMessages; ++i) {
        const auto id = static_cast<unsigned>(i / 5 * 5 + 4 - i % 5);
        CHECK(buffers[static_cast<std::size_t>(i)] == pattern(1 + id * 777, id));
      }
    });
  }
}

TEST(
    "a send that is done at once and held back by a fault leaves in time, though everybody "
    "sleeps") {
  for (const Kind kind : {Kind::kStream, Kind::kDatagram, Kind::kShared}) {
    Ranks ranks(2, kind);
    FaultState late;
    late.delay_ns = 3'000'000;
    const std::uint64_t before = ranks.engine(0).counters()["sleeps"];
    ranks.engine(0).connections().set_fault(
        ranks.link(0, 1), -1,
        late);  // the call wakes the engine, which then sleeps once more
    until([&] { return ranks.engine(0).counters()["sleeps"] > before; }, "a sleep");
    for (int turn = 0; turn < 5; ++turn) {
      Bytes got(100);
      const auto in =
          ranks.engine(1).post(ranks.group(1), receive_from(0, got.data(), got.size()), false);
      const Bytes words = pattern(100, static_cast<unsigned>(turn));
      ranks.engine(0).post(ranks.group(0), send_to(1, words.data(), words.size()), false);
      until([&] { return in->finished(); }, "the message");
      CHECK(got == words);
    }
  }
}

TEST("a thread that sleeps for one receive does not wake for the posts of further ones") {
  constexpr int kReceives = 200;
  Ranks ranks(2, Kind::kShared);
  Engine& engine = ranks.engine(0);
  std::vector<Bytes> got(kReceives, Bytes(64));
  std::vector<std::shared_ptr<Request>> receives;
  const auto post = [&](int tag) {
    Bytes& buffer = got[static_cast<std::size_t>(tag)];
    receives.push_back(
        engine.post(ranks.group(0), receive_from(1, buffer.data(), buffer.size(), tag), false));
  };
  const Bytes words = pattern(64, 1);
  const auto send = [&](int tag) {
    finish(
        ranks.engine(1),
        ranks.engine(1).post(ranks.group(1), send_to(0, words.data(), words.size(), tag), false));
  };
  post(0);
  post(1);
  send(1);
  finish(engine, receives.back());
  // From here on the progress thread serves the first receive, and sleeps.
  const std::uint64_t before = engine.counters()["sleeps"];
  for (int tag = 2; tag < kReceives; ++tag) {
    post(tag);
    std::this_thread::yield();
  }
  CHECK(engine.counters()["sleeps"] - before <= kReceives / 10);
  for (int tag = 0; tag < kReceives; ++tag) {
    if (tag != 1) send(tag);
  }
  for (const auto& receive : receives) finish(engine, receive);
  for (const Bytes& each : got) CHECK(each == words);
}

TEST("sends that are done at once reach a slow reader, though nobody waits for them") {
  Ranks ranks(2, Kind::kStream);
  const Bytes words = pattern(60'000, 1);
  until([&] { return ranks.engine(0).counters()["sleeps"] > 0; }, "the first engine's sleep");
  // Send twice the amount that a socket holds. Each message is copied, so it is finished once
  // posted.
  for (int i = 0; i < 20; ++i) {
    const auto request =
        ranks.engine(0).post(ranks.group(0), send_to(1, words.data(), 60'000), false);
    if (i == 0) finish(ranks.engine(0), request);
  }
  for (int i = 0; i < 20; ++i) {
    Bytes got(words.size());
    finish(ranks.engine(1),
           ranks.engine(1).post(ranks.group(1), receive_from(0, got.data(), got.size()), true));
    CHECK(got == words);
  }
}

TEST("a receive from any source takes what comes, and tells from whom") {
  constexpr std::size_t kBytes = 20'000;
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(3, kind);
    on_every_rank(3, [&](int rank) {
      Engine& engine = ranks.engine(rank);
      if (rank != 0) {
        const Bytes words = pattern(kBytes, static_cast<unsigned>(rank));
        for (int i = 0; i < 5; ++i)
          finish(engine, engine.post(ranks.group(rank), send_to(0, words.data(), kBytes, 3), true));
        return;
      }
      std::vector<int> from(3, 0);
      for (int i = 0; i < 10; ++i) {
        Bytes got(kBytes);
        const auto request =
            engine.post(ranks.group(0), receive_from(-1, got.data(), kBytes, 3), i % 2 == 0);
        finish(engine, request);
        CHECK(got == pattern(kBytes, static_cast<unsigned>(request->any_source)));
        ++from[static_cast<std::size_t>(request->any_source)];
      }
      CHECK_EQUAL(from[1], 5);
      CHECK_EQUAL(from[2], 5);
    });
  }
}

TEST("thousands of short messages to a receiver that is late all arrive") {
  constexpr int kMessages = 3000;
  constexpr std::size_t kBytes = 1000;
  for (const Kind kind : {Kind::kStream, Kind::kShared}) {
    Ranks ranks(2, kind);
    const Bytes words = pattern(kBytes, 1);
    std::vector<std::shared_ptr<Request>> sends;
    for (int i = 0; i < kMessages; ++i)
      sends.push_back(
          ranks.engine(0).post(ranks.group(0), send_to(1, words.data(), kBytes), false));
    for (int i = 0; i < kMessages; ++i) {
      Bytes got(kBytes);
      finish(ranks.engine(1),
             ranks.engine(1).post(ranks.group(1), receive_from(0, got.data(), kBytes), true));
      CHECK(got == words);
    }
    for (const auto& request : sends) finish(ranks.engine(0), request);
  }
}

TEST("a writer that sleeps before a full ring wakes when the reader has made room") {
  // The test plays the reader and sends nothing back, so only a write to the eventfd can wake the
  // engine.
  Engine engine(small_engine());
  Arena arena(4u << 20);
  new (arena.allocate(sizeof(Doorbell))) Doorbell{};
  const int bell = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::uint64_t ours = make_ring(arena);
  const std::uint64_t theirs = engine.connections().new_ring();
  const auto [x, y] = socket_pair();
  const int link = engine.connections().add_link("the hand");
  engine.connections().add_shm_rail(link, ::dup(arena.fd()), arena.capacity(), bell, x, theirs,
                                    ours);
  ShmRail hand(arena, std::make_unique<PeerArena>(engine.arena().fd(), engine.arena().capacity()),
               ::dup(engine.connections().doorbell_fd()), y, ours, theirs);
  const auto group = engine.open_group(1, 0, {-1, link}, false);
  constexpr std::size_t kMessages = 400;  // enough to fill the ring four times
  const Bytes words = pattern(3000, 1);
  std::vector<std::shared_ptr<Request>> requests;
  for (std::size_t i = 0; i < kMessages; ++i)
    requests.push_back(engine.post(*group, send_to(1, words.data(), words.size()), false));
  CHECK(!requests.back()->finished());
  Parts other;
  Link& nobody = other.add("test");
  Recorder sink;
  until(
      [&] {
        // Read only when the engine surely sleeps, because it found the ring full some time ago.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        hand.poll(nobody, sink);
        hand.notify();
        return sink.frames.size() == kMessages;
      },
      "all messages");
  for (const auto& request : requests) finish(engine, request);
  for (const Frame& frame : sink.frames) CHECK(frame.payload == words);
}

TEST("many operations at once in one arena: slots are used again") {
  EngineOptions options = small_engine();
  Ranks ranks(2, Kind::kShared, 1, options);
  constexpr std::size_t kCount = 200'000;
  on_every_rank(2, [&](int rank) {
    Engine& engine = ranks.engine(rank);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> values(8, contributions(rank, kCount));
      std::vector<std::shared_ptr<Request>> requests;
      for (auto& v : values)
        requests.push_back(engine.post(
            ranks.group(rank), reduction(mesh(2, rank), v.data(), v.data(), kCount), false));
      for (const auto& request : requests) finish(engine, request);
      for (const auto& v : values) check_sum(v.data(), kCount, 2);
    }
    CHECK(engine.counters()["slots"] <= 8 * 4);
  });
}

}  // namespace
}  // namespace slackline::test
