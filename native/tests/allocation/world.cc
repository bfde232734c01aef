#include "world.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace slackline::test {
namespace {

constexpr std::size_t kSegments = 100'000;  // elements: several segments, sent after grants
constexpr std::size_t kEager = 5'000;
constexpr std::size_t kBrief = 100;
constexpr std::size_t kShortMessage = 2'000;  // bytes
constexpr std::size_t kLongMessage = 300'000;
constexpr int kShortTag = 5, kLongTag = 6;
// The operations' timeout is longer than the watchdog's: no rank may depend on a timeout to learn
// of a failure.
constexpr std::int64_t kTimeoutNs = 600 * kSecond;
constexpr unsigned kWatchdogSeconds = 30;

std::array<char, 200> doing{};

void report_and_abort(int) {
  const ssize_t written = ::write(2, doing.data(), ::strnlen(doing.data(), doing.size()));
  std::_Exit(written > 0 ? 3 : 4);
}

EngineOptions options_of(const Scene& scene) {
  EngineOptions options = small_engine();
  options.arena_bytes = std::size_t{8} << 20;
  options.progress_thread = scene.progress_thread;
  return options;
}

struct Cut {
  std::vector<int> fds;
  ~Cut() {
    for (const int fd : fds) ::close(fd);
  }
};

// Return false if there is no connection at all, which would tell one rank of the other's end.
bool connect_shared(Member& low, int low_link, Member& high, int high_link) {
  std::uint64_t into_low = 0, into_high = 0;
  const bool rings = low.call([&] { into_low = low.engine().connections().new_ring(); }) &&
                     high.call([&] { into_high = high.engine().connections().new_ring(); });
  if (!rings) return false;
  const auto [x, y] = socket_pair();
  const int low_arena = ::dup(low.engine().arena().fd());
  const int low_bell = ::dup(low.engine().connections().doorbell_fd());
  low.call([&] {
    Engine& other = high.engine();
    low.engine().connections().add_shm_rail(
        low_link, ::dup(other.arena().fd()), other.arena().capacity(),
        ::dup(other.connections().doorbell_fd()), x, into_low, into_high);
  });
  high.call([&] {
    high.engine().connections().add_shm_rail(high_link, low_arena, low.engine().arena().capacity(),
                                             low_bell, y, into_high, into_low);
  });
  return true;
}

// Connect two ranks, as far as memory allows. Descriptors that end a rail are added to `first`.
void connect(const Scene& scene, Member& low, int low_rank, Member& high, int high_rank,
             Cut& first) {
  int to_high = -1, to_low = -1;
  const bool shared = scene.kind == Kind::kShared;
  bool made = low.call([&] {
    to_high = low.engine().connections().add_link("high", false, 1, shared);
  }) && high.call([&] { to_low = high.engine().connections().add_link("low", false, 1, shared); });
  if (made && shared) made = connect_shared(low, to_high, high, to_low);
  if (!made) return;
  low.links[static_cast<std::size_t>(high_rank)] = to_high;
  high.links[static_cast<std::size_t>(low_rank)] = to_low;
  if (shared) return;
  const bool datagram = scene.kind == Kind::kDatagram;
  for (int rail = 0; rail < scene.rails; ++rail) {
    const auto [x, y] = datagram ? udp_pair() : tcp_pair();
    if (rail == 0 && scene.loses_rail) first.fds.push_back(::dup(x));
    const RailKind as = datagram ? RailKind::kUdp : RailKind::kTcp;
    low.call([&] { low.engine().connections().add_rail(to_high, rail, as, x, kJobCode); });
    high.call([&] { high.engine().connections().add_rail(to_low, rail, as, y, kJobCode); });
  }
}

}  // namespace

Member::Member(const Scene& scene, int rank)
    : links(static_cast<std::size_t>(scene.ranks), -1),
      scene_(scene),
      rank_(rank),
      engine_(std::make_unique<Engine>(options_of(scene))),
      segments_(contributions(rank, kSegments)),
      eager_(contributions(rank, kEager)),
      brief_(contributions(rank, kBrief)),
      short_message_(kShortMessage, std::byte{1}),
      long_message_(kLongMessage, std::byte{2}) {
  posted_.reserve(16);
  const auto sum = [](std::shared_ptr<Program> program, std::vector<float>& values) {
    return reduction(std::move(program), values.data(), values.data(), values.size());
  };
  operations_ = {
      sum(mesh(scene.ranks, rank), segments_),
      sum(direct(scene.ranks, rank), brief_),
      sum(mesh(scene.ranks, rank), eager_),
      reduction(direct(scene.ranks, rank, wire::Collective::kBarrier), nullptr, nullptr, 0),
  };
  if (rank == 0) {
    operations_.push_back(send_to(1, short_message_.data(), kShortMessage, kShortTag));
    operations_.push_back(send_to(1, long_message_.data(), kLongMessage, kLongTag));
  } else if (rank == 1) {
    operations_.push_back(receive_from(-1, short_message_.data(), kShortMessage, kShortTag));
    operations_.push_back(receive_from(0, long_message_.data(), kLongMessage, kLongTag));
  }
  for (Operation& operation : operations_) operation.timeout_ns = kTimeoutNs;
}

Member::~Member() {
  const Inside inside(rank_);
  for (const Posted& each : posted_) {
    if (!each.request->finished()) std::abort();  // the operation may still write to the memory
  }
  posted_.clear();
  group_.reset();
  engine_.reset();
}

void Member::open() {
  for (std::size_t rank = 0; rank < links.size(); ++rank) {
    if (static_cast<int>(rank) != rank_ && links[rank] < 0) thrown_ = true;
  }
  if (!thrown_) call([&] { group_ = engine_->open_group(1, rank_, links, true); });
}

void Member::post(const Operation& operation, bool blocking, const std::vector<float>* sum) {
  if (thrown_) return;
  call([&] {
    const auto request = engine_->post(*group_, operation, blocking);
    posted_.push_back({request, sum});
    if (scene_.progress_thread && !engine_->watch(*request)) ++watched_;
  });
}

void Member::work(const std::function<void()>& lose_rail) {
  if (scene_.links_only) return;
  const bool blocking = !scene_.progress_thread;
  post(operations_[0], false, &segments_);
  if (rank_ == 0) {
    lose_rail();
    post(operations_[4], false);
    post(operations_[5], false);
  }
  post(operations_[1], blocking, &brief_);
  if (rank_ == 1) {
    post(operations_[4], false);
    post(operations_[5], false);
  }
  post(operations_[2], blocking, &eager_);
  wait_for_all();
  post(operations_[3], blocking);
  wait_for_all();
}

void Member::wait_for_all() {
  if (thrown_) return;  // the others may wait for an operation that this rank could not post
  for (; watched_ > 0; --watched_) {
    std::shared_ptr<Request> ended;
    if (!call([&] { ended = engine_->next_completion(); })) return;
    CHECK(ended != nullptr && ended->finished());
  }
  for (const Posted& each : posted_) {
    if (!each.request->finished()) call([&] { engine_->wait(*each.request, -1); });
  }
}

void Member::close() {
  const std::int64_t timeout_ns = thrown_ ? kSecond / 50 : kTimeoutNs;
  if (group_) call([&] { engine_->close_group(*group_, timeout_ns); });
  call([&] { engine_->close(kTimeoutNs); });
}

bool Member::all_succeeded() const {
  CHECK(!untyped_);
  bool all = !thrown_;
  for (const Posted& each : posted_) {
    CHECK(each.request->finished());
    if (each.request->failure) {
      all = false;
      CHECK(each.request->failure.fault != slackline::Fault::kTimeout);
      CHECK(!each.request->failure.message.empty());
    } else if (each.sum != nullptr) {
      check_sum(each.sum->data(), each.sum->size(), scene_.ranks);
    }
  }
  if (all && rank_ == 1 && !scene_.links_only) {
    CHECK(short_message_.front() == std::byte{1} && long_message_.back() == std::byte{2});
  }
  return all;
}

namespace {

// Play the scene and return how many allocations were counted.
long run(const Scene& scene, long n, Lack lack) {
  Cut first;
  first.fds.reserve(16);
  std::vector<std::unique_ptr<Member>> members;
  for (int rank = 0; rank < scene.ranks; ++rank)
    members.push_back(std::make_unique<Member>(scene, rank));
  const auto lose_rail = [&] {
    for (const int fd : first.fds) ::shutdown(fd, SHUT_RDWR);
  };
  lack_memory(n, lack);
  for (int low = 0; low < scene.ranks; ++low) {
    for (int high = low + 1; high < scene.ranks; ++high)
      connect(scene, *members[static_cast<std::size_t>(low)], low,
              *members[static_cast<std::size_t>(high)], high, first);
  }
  for (const auto& member : members) member->open();
  on_every_rank(scene.ranks, [&](int rank) {
    mark_as_test();
    Member& member = *members[static_cast<std::size_t>(rank)];
    member.work(lose_rail);
    member.close();
  });
  bool all = true;
  for (const auto& member : members) all = member->all_succeeded() && all;
  if (!lacked_memory()) CHECK(all);
  members.clear();
  return end_lack();
}

}  // namespace

bool play(const Scene& scene, long n, Lack lack) {
  std::snprintf(doing.data(), doing.size(),
                "\n%s: a rank hangs after the lack %d at allocation %ld\n", scene.name,
                static_cast<int>(lack), n);
  std::signal(SIGALRM, report_and_abort);
  ::alarm(kWatchdogSeconds);
  const long live = live_allocations();
  try {
    run(scene, n, lack);
  } catch (const std::exception& error) {
    end_lack();
    ::alarm(0);
    fail(std::string(scene.name) + ", lack " + std::to_string(static_cast<int>(lack)) +
         " at allocation " + std::to_string(n) + ": " + error.what());
  }
  ::alarm(0);
  if (live_allocations() != live)
    fail(std::string(scene.name) + ", lack " + std::to_string(static_cast<int>(lack)) +
         " at allocation " + std::to_string(n) + ": " + std::to_string(live_allocations() - live) +
         " allocations were not freed");
  return lacked_memory();
}

long allocations_of(const Scene& scene) {
  return run(scene, std::numeric_limits<long>::max(), Lack::kOnce);
}

}  // namespace slackline::test
