// Forked processes: a child keeps no descriptor of its parent's engines, and disturbs nothing. And
// engines that cannot start leave nothing behind.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "ranks.h"

namespace slackline::test {
namespace {

constexpr int kMostDescriptors = 1024;

std::vector<int> open_descriptors() {
  std::vector<int> found;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) found.push_back(fd);
  }
  return found;
}

// Run `body` in a forked child. The child's exit status says what `body` returned; -1 if it raised.
int in_a_fork(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int result = 99;
    try {
      result = body();
    } catch (...) {
    }
    ::_exit(result);
  }
  int status = -1;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  return WEXITSTATUS(status);
}

void exchange(Ranks& ranks) {
  on_every_rank(2, [&](int rank) {
    std::vector<std::byte> bytes(100'000);
    Engine& engine = ranks.engine(rank);
    const Operation operation = rank == 0 ? send_to(1, bytes.data(), bytes.size())
                                          : receive_from(0, bytes.data(), bytes.size());
    finish(engine, engine.post(ranks.group(rank), operation, true));
  });
}

void fork_beside(Kind kind, int rails) {
  const std::size_t before = open_descriptors().size();
  Ranks ranks(2, kind, rails);
  exchange(ranks);
  const int result = in_a_fork([&] {
    // The test's own duplicates of sockets are left.
    if (open_descriptors().size() != before + 2 * ranks.wires.size()) return 1;
    // Numbers that the engines had are used again: the engines must not close them a second time.
    std::vector<int> again;
    for (int i = 0; i < 64; ++i) again.push_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ranks.groups.clear();
    ranks.engines.clear();
    for (const int fd : again) {
      if (::fcntl(fd, F_GETFD) < 0) return 2;
    }
    return 0;
  });
  CHECK_EQUAL(result, 0);
  exchange(ranks);
}

TEST("a forked child keeps no descriptor of rails over shared memory, and its parent goes on") {
  fork_beside(Kind::kShared, 1);
}

TEST("a forked child keeps no descriptor of rails over TCP, and its parent goes on") {
  fork_beside(Kind::kStream, 2);
}

TEST("a forked child keeps no descriptor of rails over UDP, and its parent goes on") {
  fork_beside(Kind::kDatagram, 2);
}

// Start an engine under a limit. Return the error's number, 0 if the engine started, and -1 if
// anything is left behind by an engine that did not start.
int start_an_engine() {
  const std::vector<int> before = open_descriptors();
  int error = 0;
  try {
    const Engine engine(small_engine());
  } catch (const std::system_error& failed) {
    error = failed.code().value();
  }
  if (open_descriptors() != before) return -1;
  // A fork visits all engines: one that did not start must not be among them.
  return in_a_fork([] { return 7; }) == 7 ? error : -1;
}

void limit(int resource, rlim_t most) {
  rlimit now{};
  ::getrlimit(resource, &now);
  now.rlim_cur = most;
  CHECK_EQUAL(::setrlimit(resource, &now), 0);
}

TEST("an engine that lacks its n-th descriptor says so and leaves nothing behind, for every n") {
  const int result = in_a_fork([] {
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    for (int n = 0; n < 20; ++n) {
      int free = 0;
      int most = 0;
      for (; free < n || most == 0; ++most) free += ::fcntl(most, F_GETFD) < 0 ? 1 : 0;
      while (n > 0 && ::fcntl(most, F_GETFD) >= 0) ++most;
      if (n == 0) {
        for (most = 0; ::fcntl(most, F_GETFD) >= 0;) ++most;
      }
      limit(RLIMIT_NOFILE, static_cast<rlim_t>(most));
      const int error = start_an_engine();
      limit(RLIMIT_NOFILE, now.rlim_cur);
      if (error == 0) return n;
      if (error != EMFILE) return 100 + n;
    }
    return 98;
  });
  CHECK_EQUAL(result, 3);  // the arena, the doorbell and epoll
}

TEST("an engine without address space for its arena says so and leaves nothing behind") {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes
  const int result = in_a_fork([] {
    limit(RLIMIT_AS, rlim_t{1} << 20);
    const int error = start_an_engine();
    limit(RLIMIT_AS, RLIM_INFINITY);
    return error == ENOMEM && start_an_engine() == 0 ? 0 : 1;
  });
  CHECK_EQUAL(result, 0);
#endif
}

TEST("an engine without a thread says so and leaves nothing behind") {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const int result = in_a_fork([] {
    const std::vector<int> before = open_descriptors();
    if (::getuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return 2;
    limit(RLIMIT_NPROC, 0);
    int error = 0;
    try {
      const Engine engine(small_engine());
    } catch (const std::system_error& failed) {
      error = failed.code().value();
    }
    if (error != EAGAIN || open_descriptors() != before) return 1;
    limit(RLIMIT_NPROC, 4096);
    // A fork visits all engines: the one that did not start must not be among them.
    return in_a_fork([] { return 7; }) == 7 ? 0 : 3;
  });
  CHECK_EQUAL(result, 0);
#endif
}

}  // namespace
}  // namespace slackline::test
