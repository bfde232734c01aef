// Tests of the end of a group or an engine while operations are open, and of calls that a signal
// interrupts.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>

#include "ranks.h"

namespace slackline::test {
namespace {

constexpr Kind kKinds[] = {Kind::kStream, Kind::kDatagram, Kind::kShared};

std::int64_t took_ns(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return (std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1);
}

TEST("a group whose receives nobody answers closes at once on every rank") {
  for (const Kind kind : kKinds) {
    Ranks ranks(2, kind);
    on_every_rank(2, [&](int rank) {
      std::vector<std::byte> brief(100), lengthy(4u << 20), any(100);
      std::vector<std::shared_ptr<Request>> open;
      const auto receive = [&](int peer, std::vector<std::byte>& into, int tag) {
        open.push_back(ranks.engine(rank).post(
            ranks.group(rank), message(true, into.data(), into.size(), peer, tag), false));
      };
      receive(1 - rank, brief, 1);
      receive(1 - rank, lengthy, 2);
      receive(-1, any, 3);
      CHECK(took_ns([&] { ranks.engine(rank).close_group(ranks.group(rank), 60 * kSecond); }) <
            20 * kSecond);
      for (const auto& request : open) {
        CHECK(request->finished());
        CHECK(request->failure.fault == Fault::kClosed || request->failure.fault == Fault::kPeer);
      }
    });
  }
}

TEST("a message that was posted before its sender closed the group arrives whole") {
  for (const Kind kind : kKinds) {
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{4} << 20}) {
      Ranks ranks(2, kind);
      std::vector<std::byte> sent(bytes), got(bytes);
      for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::byte>(i * 31 >> 3);
      std::atomic<bool> posted{false};
      on_every_rank(2, [&](int rank) {
        if (rank == 0) {
          const auto request =
              ranks.engine(0).post(ranks.group(0), send_to(1, sent.data(), bytes), false);
          posted = true;
          ranks.engine(0).close_group(ranks.group(0), 60 * kSecond);
          CHECK(!request->failure);
          return;
        }
        until([&] { return posted.load(); }, "the send");
        finish(ranks.engine(1),
               ranks.engine(1).post(ranks.group(1), receive_from(0, got.data(), bytes), true));
        ranks.engine(1).close_group(ranks.group(1), 60 * kSecond);
      });
      CHECK(got == sent);
    }
  }
}

TEST("ranks that close a group with messages that nobody takes do not wait for each other") {
  for (const Kind kind : kKinds) {
    for (const bool first_closed : {false, true}) {
      Ranks ranks(2, kind);
      std::vector<std::byte> sent(4u << 20);
      // The ranks close together, or rank 1 has closed before rank 0 sends.
      if (first_closed) ranks.engine(1).close_group(ranks.group(1), 60 * kSecond);
      on_every_rank(2, [&](int rank) {
        if (first_closed && rank == 1) return;
        const auto request = ranks.engine(rank).post(
            ranks.group(rank), send_to(1 - rank, sent.data(), sent.size()), false);
        CHECK(took_ns([&] { ranks.engine(rank).close_group(ranks.group(rank), 60 * kSecond); }) <
              20 * kSecond);
        CHECK(request->finished());
        CHECK(request->failure.fault == Fault::kPeer);
        CHECK(request->failure.message.find(" closed the group") != std::string::npos);
      });
    }
  }
}

TEST(
    "a message that its receiver does not take before it closes the group fails, also when "
    "unread") {
  Ranks ranks(2, Kind::kShared);
  std::vector<std::byte> sent(1u << 20);
  const auto request =
      ranks.engine(0).post(ranks.group(0), send_to(1, sent.data(), sent.size()), false);
  until([&] { return ranks.engine(1).counters()["shm_frames_received"] > 0; }, "the message");
  ranks.engine(1).close_group(ranks.group(1), 60 * kSecond);
  CHECK(ranks.engine(0).wait(*request, 20 * kSecond));
  CHECK(request->failure.fault == Fault::kPeer);
}

// --- interruption ---

struct Interrupted : std::exception {};
std::atomic<bool> interrupts{false};
void look() {
  if (interrupts) throw Interrupted{};
}
EngineOptions looking() {
  EngineOptions options = small_engine();
  options.look = look;
  return options;
}

// Run a call that would block for a minute, and require that an interruption ends it.
void ends_when_interrupted(const std::function<void()>& call) {
  interrupts = true;
  bool thrown = false;
  const std::int64_t took = took_ns([&] {
    try {
      call();
    } catch (const Interrupted&) {
      thrown = true;
    }
  });
  interrupts = false;
  CHECK(thrown);
  CHECK(took < 20 * kSecond);
}

TEST("an interrupted wait leaves the operation open, which can be waited for again") {
  for (const Kind kind : kKinds) {
    Ranks ranks(2, kind, 1, looking());
    std::vector<std::byte> sent(1u << 20, std::byte{5}), got(sent.size());
    Engine& engine = ranks.engine(0);
    const auto request =
        engine.post(ranks.group(0), receive_from(1, got.data(), got.size()), false);
    ends_when_interrupted([&] { engine.wait(*request, 60 * kSecond); });
    auto queue = std::make_shared<CompletionQueue>();
    engine.watch(*request, queue);
    ends_when_interrupted([&] { engine.next(*queue, 60 * kSecond); });
    CHECK(!request->finished());
    finish(ranks.engine(1),
           ranks.engine(1).post(ranks.group(1), send_to(0, sent.data(), sent.size()), false));
    finish(engine, request);
    CHECK(got == sent);
    CHECK_EQUAL(engine.next(*queue, 0).size(), 1u);
  }
}

TEST("an interrupted blocking operation fails on every rank, and the group goes on") {
  for (const Kind kind : kKinds) {
    Ranks ranks(2, kind, 1, looking());
    std::vector<float> values = contributions(0, 1000), others = contributions(1, 1000);
    ends_when_interrupted([&] {
      ranks.engine(0).post(ranks.group(0),
                           reduction(mesh(2, 0), values.data(), values.data(), 1000), true);
    });
    const auto request = ranks.engine(1).post(
        ranks.group(1), reduction(mesh(2, 1), others.data(), others.data(), 1000), false);
    CHECK(ranks.engine(1).wait(*request, 20 * kSecond));
    CHECK(request->failure.fault == Fault::kPeer);
    CHECK_EQUAL(request->failure.peer, 0);
    CHECK(request->failure.message.find("a signal interrupted rank 0 in ") == 0);
    on_every_rank(2, [&](int rank) {
      std::vector<float> again = contributions(rank, 1000);
      finish(
          ranks.engine(rank),
          ranks.engine(rank).post(
              ranks.group(rank), reduction(mesh(2, rank), again.data(), again.data(), 1000), true));
      check_sum(again.data(), 1000, 2);
    });
  }
}

TEST("an interrupted close has closed the group, and a second one the engine") {
  for (const Kind kind : kKinds) {
    Ranks ranks(2, kind, 1, looking());
    std::vector<float> values = contributions(0, 1000);
    Engine& engine = ranks.engine(0);
    const auto request = engine.post(
        ranks.group(0), reduction(mesh(2, 0), values.data(), values.data(), 1000), false);
    ends_when_interrupted([&] { engine.close_group(ranks.group(0), 60 * kSecond); });
    CHECK(request->failure.fault == Fault::kClosed);
    CHECK(ranks.group(0).closed);
    CHECK(took_ns([&] { engine.close(kSecond); }) < 20 * kSecond);
  }
}

}  // namespace
}  // namespace slackline::test
