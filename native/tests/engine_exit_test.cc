// Tests of a rank whose process ends right after an operation: the operation succeeds on its peers,
// and the next one fails.
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "ranks.h"

namespace slackline::test {
namespace {

constexpr int kRanks = 3;

std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* address = reinterpret_cast<sockaddr*>(&at);
  if (::bind(listener, address, size) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, address, &size) != 0)
    fail("a TCP socket on the loopback interface");
  const int x = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(x, address, size) != 0) fail("connect");
  const int y = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (y < 0) fail("accept");
  ::close(listener);
  return {x, y};
}

// The parts that a process needs to connect shared memory with a peer: the offset of the ring that
// the peer writes to, the size of the arena, and the descriptors of the arena and of the doorbell.
struct Offer {
  std::uint64_t ring, bytes;
};

void send_offer(int channel, Offer offer, int arena_fd, int doorbell_fd) {
  iovec part{&offer, sizeof offer};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const std::array<int, 2> fds{arena_fd, doorbell_fd};
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
  if (::sendmsg(channel, &message, MSG_NOSIGNAL) != sizeof offer) fail("sendmsg");
}

Offer take_offer(int channel, std::array<int, 2>& fds) {
  Offer offer{};
  iovec part{&offer, sizeof offer};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != sizeof offer) fail("recvmsg");
  std::memcpy(fds.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fds);
  return offer;
}

// The sockets of a job whose ranks are processes: ends[i][j] is rank i's end of the pair with j.
struct Sockets {
  std::array<std::array<int, kRanks>, kRanks> ends{}, controls{};

  explicit Sockets(Kind kind) {
    for (int i = 0; i < kRanks; ++i) {
      for (int j = i + 1; j < kRanks; ++j) {
        const auto [x, y] = kind == Kind::kStream     ? tcp_pair()
                            : kind == Kind::kDatagram ? udp_pair()
                                                      : socket_pair();
        ends[i][j] = x;
        ends[j][i] = y;
        const auto [u, v] = socket_pair();
        controls[i][j] = u;
        controls[j][i] = v;
      }
    }
  }
  // Close all ends but those of `rank`; -1 closes all.
  void keep_only(int rank) {
    for (int i = 0; i < kRanks; ++i) {
      for (int j = 0; j < kRanks; ++j) {
        if (i == j || i == rank) continue;
        ::close(ends[i][j]);
        ::close(controls[i][j]);
      }
    }
  }
};

struct Connected {
  Engine engine;
  std::shared_ptr<Group> group;

  Connected(Sockets& sockets, Kind kind, int rank) : engine(small_engine()) {
    std::vector<int> links(kRanks, -1);
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      const int link = links[static_cast<std::size_t>(peer)] =
          engine.connections().add_link("rank " + std::to_string(peer));
      const int socket = sockets.ends[rank][peer], control = sockets.controls[rank][peer];
      if (kind != Kind::kShared) {
        engine.connections().add_rail(
            link, 0, kind == Kind::kStream ? RailKind::kTcp : RailKind::kUdp, socket, kJobCode);
        continue;
      }
      const std::uint64_t ring = engine.connections().new_ring();
      send_offer(socket, {ring, engine.arena().capacity()}, engine.arena().fd(),
                 engine.connections().doorbell_fd());
      std::array<int, 2> fds{};
      const Offer offer = take_offer(socket, fds);
      engine.connections().add_shm_rail(link, fds[0], offer.bytes, fds[1], control, ring,
                                        offer.ring);
    }
    group = engine.open_group(1, rank, links, false);
  }
};

// --- the operations of a job ---

std::shared_ptr<Program> broadcast(int rank, int root) {
  auto p = std::make_shared<Program>(wire::Collective::kBroadcast, std::uint8_t{1}, kRanks, rank, 1,
                                     true, false, false);
  for (int k = 1; rank == root && k < kRanks; ++k)
    p->append(Opcode::kSend, (root + k) % kRanks, 0, false);
  if (rank != root) p->append(Opcode::kCopy, root, 0, true);
  return p;
}

constexpr const char* kNames[] = {"barrier", "all_reduce", "broadcast", "send"};
struct Step {
  int what;           // index of kNames
  std::size_t count;  // elements
  int from;           // the root, or the sender
};

// Run one operation of a rank to its end. Return its failure, if any; throw for a wrong result.
std::shared_ptr<Request> run(Connected& job, const Step& step, int rank, bool blocking) {
  std::vector<float> values = contributions(rank, step.count);
  const auto post = [&](const Operation& operation) {
    auto request = job.engine.post(*job.group, operation, blocking);
    CHECK(job.engine.wait(*request, -1));
    return request;
  };
  if (step.what == 0)
    return post(reduction(direct(kRanks, rank, wire::Collective::kBarrier), nullptr, nullptr, 0));
  if (step.what == 1) {
    const auto& plan = plans()[static_cast<std::size_t>(step.from) % plans().size()];
    auto request =
        post(reduction(plan.make(kRanks, rank), values.data(), values.data(), step.count));
    if (!request->failure) check_sum(values.data(), step.count, kRanks);
    return request;
  }
  std::shared_ptr<Request> request;
  if (step.what == 2) {
    Operation operation =
        reduction(broadcast(rank, step.from), values.data(), values.data(), step.count);
    operation.op = wire::ReduceOp::kNone;
    request = post(operation);
  } else if (rank == step.from) {
    request = post(send_to((rank + 1) % kRanks, values.data(), step.count * sizeof(float)));
  } else if (rank == (step.from + 1) % kRanks) {
    request = post(receive_from(step.from, values.data(), step.count * sizeof(float)));
  } else {
    return nullptr;
  }
  if (!request->failure && values != contributions(step.from, step.count)) fail("wrong values");
  return request;
}

// The operations of one job, drawn from a seed: the last one is that after which a rank ends.
struct Course {
  std::vector<Step> steps;
  int ends;  // the rank
  bool blocking;
  int lag;  // rounds that another rank yields the processor before the last operation
};

Course draw(unsigned seed, Kind kind) {
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  Course plan;
  plan.ends = below(kRanks);
  plan.blocking = below(2) == 0;
  plan.lag = below(3) == 0 ? 0 : below(2000);
  const int steps = below(4);
  // Over a wire up to 64 KiB, by reference over shared memory.
  const std::size_t most = kind == Kind::kShared ? 300'000 : 16'384;
  const auto step = [&] {
    return Step{below(4), 1 + random() % (below(2) == 0 ? 64 : most), below(kRanks)};
  };
  for (int i = 0; i < steps; ++i) plan.steps.push_back(step());
  // A rank may end before an operation in which it has no part, so all ranks meet before the last.
  plan.steps.push_back({0, 0, 0});
  plan.steps.push_back(step());
  Step& last = plan.steps.back();
  if (last.what == 3) last.from = (plan.ends + below(2) * (kRanks - 1)) % kRanks;
  return plan;
}

// A rank of the job, in its own process. Return what went wrong, or an empty text.
std::string play(Sockets& sockets, Kind kind, int rank, const Course& plan) {
  Connected job(sockets, kind, rank);
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const bool last = i + 1 == plan.steps.size();
    for (int lag = last && rank == (plan.ends + 1) % kRanks ? plan.lag : 0; lag > 0; --lag)
      std::this_thread::yield();
    const auto request = run(job, plan.steps[i], rank, plan.blocking);
    if (request && request->failure)
      return std::string(kNames[plan.steps[i].what]) + " " + std::to_string(i) +
             " failed: " + request->failure.message;
  }
  if (rank == plan.ends) ::_exit(0);
  const auto request = run(job, {0, 0, 0}, rank, true);
  if (request->failure.fault != Fault::kPeer) return "the barrier after the end did not fail";
  return "";
}

void end_right_after(Kind kind, unsigned ends) {
  for (unsigned seed = 1; seed <= ends; ++seed) {
    const Course plan = draw(seed, kind);
    Sockets sockets(kind);
    std::array<pid_t, kRanks> processes{};
    for (int rank = 0; rank < kRanks; ++rank) {
      std::fflush(nullptr);
      processes[static_cast<std::size_t>(rank)] = ::fork();
      if (processes[static_cast<std::size_t>(rank)] != 0) continue;
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(60);
      std::string wrong;
      try {
        sockets.keep_only(rank);
        wrong = play(sockets, kind, rank, plan);
      } catch (const std::exception& error) {
        wrong = error.what();
      }
      if (!wrong.empty()) std::printf("rank %d: %s\n", rank, wrong.c_str());
      std::fflush(nullptr);
      ::_exit(wrong.empty() ? 0 : 1);
    }
    sockets.keep_only(-1);
    bool right = true;
    for (const pid_t process : processes) {
      int status = 0;
      right = ::waitpid(process, &status, 0) == process && status == 0 && right;
    }
    if (!right)
      fail("seed " + std::to_string(seed) + ": rank " + std::to_string(plan.ends) +
           " ended after operation " + std::to_string(plan.steps.size() - 1) + ", a " +
           kNames[plan.steps.back().what] + " of " + std::to_string(plan.steps.back().count));
  }
}

TEST(
    "an operation that is done on a rank succeeds on its peers though the rank ends: shared "
    "memory") {
  end_right_after(Kind::kShared, rounds(60));
}

TEST("an operation that is done on a rank succeeds on its peers though the rank ends: TCP") {
  end_right_after(Kind::kStream, rounds(60));
}

TEST("an operation that is done on a rank succeeds on its peers though the rank ends: UDP") {
  end_right_after(Kind::kDatagram, rounds(20));
}

}  // namespace
}  // namespace slackline::test
