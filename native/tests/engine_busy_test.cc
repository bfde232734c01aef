// Tests of an engine whose rails are never idle: other threads still get the engine's lock, and a
// fork waits until the engine is in no call.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "frames.h"
#include "model/memory_rail.h"

namespace slackline::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{20};
constexpr int kFirst = 1;
constexpr int kLast = 2;

// A rail that is readable at every poll. The test decides in `body` which message arrives; the body
// returns its tag, or 0.
class BusyRail final : public model::MemoryRail {
 public:
  BusyRail() : MemoryRail(RailKind::kTcp, false, pipe(), pipe()) {}

  std::function<int(const FrameSink&)> body;

  bool poll(Link& link, FrameSink& sink, std::int64_t) override {
    const int tag = body(sink);
    if (tag == 0) return true;
    wire::Header header = message_header(1, 1, tag, 0, 0);
    header.sequence = ++sequence_;
    sink.arrive(link, header, Payload{});
    return true;
  }

 private:
  static std::shared_ptr<model::Pipe> pipe() { return std::make_shared<model::Pipe>(); }
  std::uint32_t sequence_ = 0;
};

// An engine without a thread of its own, and its only rail. Messages kFirst and kLast are awaited.
struct Busy {
  Busy() : engine(one_thread(1u << 20)) {
    const int link = engine.connections().add_link("busy");
    group = engine.open_group(1, 0, {-1, link}, false);
    auto made = std::make_unique<BusyRail>();
    rail = made.get();
    group->links[1]->add_rail(0, "rail", std::move(made));
    first = engine.post(*group, receive_from(1, nullptr, 0, kFirst), false);
    last = engine.post(*group, receive_from(1, nullptr, 0, kLast), false);
  }

  Engine engine;
  std::shared_ptr<Group> group;
  std::shared_ptr<Request> first, last;
  BusyRail* rail;
};

// Return whether a thread of this process sleeps; false once the thread has ended.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;  // the thread may end between open and read
  const std::size_t name = text.rfind(')');
  return name != std::string::npos && text.substr(name, 3) == ") S";
}

// Finish an operation while the rail is always readable. Another thread takes the operation's
// completion; it waits already, or begins to wait later.
void take_while_busy(bool waits_already) {
  Busy busy;
  CHECK(!busy.engine.watch(*busy.first));
  std::atomic<pid_t> taker{0};
  std::atomic<bool> delivered{false};
  std::atomic<bool> taken{false};
  bool in_time = false;
  const auto end = Clock::now() + kPatience;
  busy.rail->body = [&](const FrameSink& engine) {
    in_time = taken;
    if (in_time || Clock::now() > end) return kLast;
    const bool ready = taker != 0 && (!waits_already || (sleeps(taker) && !engine.lock_wanted()));
    return !delivered && ready && !delivered.exchange(true) ? kFirst : 0;
  };
  std::shared_ptr<Request> request;
  std::thread thread([&] {
    taker = ::gettid();
    while (!waits_already && !delivered) std::this_thread::yield();
    request = busy.engine.next_completion();
    taken = true;
  });
  finish(busy.engine, busy.last);
  thread.join();
  CHECK(in_time);
  CHECK(request == busy.first);
}

TEST("a thread that waits for completions gets one while the rails are never idle") {
  take_while_busy(true);
}

TEST("a thread that asks for a completion gets it while the rails are never idle") {
  take_while_busy(false);
}

TEST("a fork waits until no thread is within the engine, and the child's copy refuses calls") {
  Busy busy;
  std::atomic<bool> inside{false};
  std::atomic<bool> forked{false};
  bool waited = false;
  const auto end = Clock::now() + kPatience;
  busy.rail->body = [&](const FrameSink& engine) {
    inside = true;
    while (!forked && !engine.lock_wanted() && Clock::now() < end) std::this_thread::yield();
    if (!forked && engine.lock_wanted()) waited = true;
    return forked || Clock::now() >= end ? kLast : 0;
  };
  std::thread driver([&] { busy.engine.wait(*busy.last, -1); });
  while (!inside) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      busy.engine.connections().link_alive(0);
    } catch (const Elsewhere&) {
      ::_exit(0);
    }
    ::_exit(1);
  }
  forked = true;
  driver.join();
  int status = -1;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQUAL(WEXITSTATUS(status), 0);
  CHECK(waited);
  CHECK(busy.last->finished());
}

}  // namespace
}  // namespace slackline::test
