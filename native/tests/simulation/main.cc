// Play schedules, drawn or kept, and say which laws they break.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "fields.h"
#include "shrink.h"
#include "world.h"

namespace slackline::simulation {
namespace {

constexpr const char* kUsage =
    "usage: slackline_simulation [--first SEED] [--count N] [--seconds S] [--most FAILURES]\n"
    "                            [--story] [--shrink] [--twice] [--replay FILE]\n"
    "  --story    print each schedule and its trace\n"
    "  --shrink   print the shortest schedule that breaks the law, and its line for --replay\n"
    "  --twice    play each schedule twice, and compare the traces\n"
    "  --replay   play the schedules of a file, one a line, in place of drawn ones\n";

struct Options {
  std::uint64_t first = 0, count = ~std::uint64_t{0};
  double seconds = 1e9;
  long most = 1;
  bool story = false, shrinks = false, twice = false;
  std::string replay;
};

double seconds_now() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The first words about the schedule that is played at this moment, for a crash in its middle.
char playing[128] = "";

// Name the schedule in which the program crashes, as one that breaks a law.
void crashed(int number) {
  const std::string_view words = playing;
  const char digits[] = {static_cast<char>('0' + number / 10), static_cast<char>('0' + number % 10),
                         '\n'};
  // A signal handler may make system calls and little else.
  const bool told = ::write(STDOUT_FILENO, words.data(), words.size()) > 0 &&
                    ::write(STDOUT_FILENO, digits, sizeof digits) > 0;
  ::_exit(told ? 1 : 2);
}

void announce_crashes() {
  if (kSanitized) return;                    // the sanitizer tells more, and names the place
  static std::array<char, 16 << 10> memory;  // the stack of a thread may be full
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  ::sigaltstack(&stack, nullptr);
  struct sigaction action{};
  action.sa_handler = crashed;
  action.sa_flags = SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT})
    ::sigaction(number, &action, nullptr);
}

class Run {
 public:
  explicit Run(const Options& options) : options_(options), began_(seconds_now()) {}

  // Return whether to go on.
  bool play(const Schedule& schedule) {
    if (played_ >= options_.count || seconds_now() - began_ >= options_.seconds) return false;
    if (options_.story) std::printf("%s", schedule.story().c_str());
    ++played_;
    std::snprintf(playing, sizeof playing,
                  "seed %lu, schedule %lu: the program crashes with signal ", schedule.seed,
                  played_);
    for (std::size_t i = 0; i < switched_on_.size(); ++i)
      switched_on_[i] += schedule.troubles >> i & 1;
    try {
      const Outcome outcome = World(schedule).play();
      add(outcome);
      if (options_.twice && World(schedule).play().trace != outcome.trace)
        throw Broken("the same schedule has another trace when it is played again");
      if (options_.story)
        std::printf("  trace %016lx, %.3f s simulated, %lu operations, %lu failed\n", outcome.trace,
                    static_cast<double>(outcome.simulated_ns) / 1e9, outcome.operations,
                    outcome.failed);
    } catch (const Broken& law) {
      tell(schedule, law.what());
    }
    std::fflush(stdout);
    return broken_ < options_.most;
  }

  // Print the sum. Return the exit status.
  int end() const {
    const double took = seconds_now() - began_;
    std::printf(
        "%lu schedules, %lu operations, %lu ended by faults, %ld laws broken, %.1f s, "
        "%.0f operations a second\n",
        played_, sum_.operations, sum_.failed, broken_, took,
        static_cast<double>(sum_.operations) / took);
    if (options_.replay.empty()) {
      std::printf("faults that acted, of the schedules that switched them on:");
      for (std::size_t i = 0; i < switched_on_.size(); ++i)
        std::printf(" %s %.0f %%,", kTroubleNames[i],
                    100.0 * static_cast<double>(sum_.acted[i]) /
                        static_cast<double>(std::max<std::uint64_t>(switched_on_[i], 1)));
      std::printf("\b \n");
    }
    return broken_ > 0;
  }

 private:
  void add(const Outcome& outcome) {
    sum_.operations += outcome.operations;
    sum_.failed += outcome.failed;
    for (std::size_t i = 0; i < sum_.acted.size(); ++i) sum_.acted[i] += outcome.acted[i] > 0;
  }

  void tell(const Schedule& schedule, const std::string& law) {
    ++broken_;
    std::printf("seed %lu, schedule %lu: %s\n", schedule.seed, played_, law.c_str());
    if (!options_.shrinks) return;
    const Schedule shortest = shrink(schedule);
    std::printf("%s  %s\nline: %s\n", shortest.story().c_str(),
                broken_by(shortest).value_or(law).c_str(), line_of(shortest).c_str());
  }

  const Options& options_;
  const double began_;
  Outcome sum_;
  std::array<std::uint64_t, kTroubles> switched_on_{};
  std::uint64_t played_ = 0;
  long broken_ = 0;
};

int run(const Options& options) {
  Run run(options);
  if (options.replay.empty()) {
    std::uint64_t seed = options.first;
    while (run.play(Schedule::draw(seed))) ++seed;
    return run.end();
  }
  std::ifstream file(options.replay);
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", options.replay.c_str());
    return 2;
  }
  for (std::string line; std::getline(file, line);) {
    const bool comment = line.empty() || line.front() == '#';
    if (!comment && !run.play(schedule_of(line))) break;
  }
  return run.end();
}

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, std::function<void()>> flags = {
      {"--story", [&] { options.story = true; }},
      {"--shrink", [&] { options.shrinks = true; }},
      {"--twice", [&] { options.twice = true; }}};
  const std::map<std::string, std::function<void(const char*)>> values = {
      {"--first", [&](const char* v) { options.first = std::strtoull(v, nullptr, 10); }},
      {"--count", [&](const char* v) { options.count = std::strtoull(v, nullptr, 10); }},
      {"--seconds", [&](const char* v) { options.seconds = std::strtod(v, nullptr); }},
      {"--most", [&](const char* v) { options.most = std::strtol(v, nullptr, 10); }},
      {"--replay", [&](const char* v) { options.replay = v; }}};
  for (int i = 1; i < argc; ++i) {
    if (const auto flag = flags.find(argv[i]); flag != flags.end()) {
      flag->second();
    } else if (const auto value = values.find(argv[i]); value != values.end() && i + 1 < argc) {
      value->second(argv[++i]);
    } else {
      std::fprintf(stderr, "%s: not an option, or without its value\n%s", argv[i], kUsage);
      return std::nullopt;
    }
  }
  return options;
}

}  // namespace
}  // namespace slackline::simulation

int main(int argc, char** argv) {
  // Each schedule needs the same memory again; the system would clear its pages each time.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  slackline::simulation::announce_crashes();
  const auto options = slackline::simulation::parse(argc, argv);
  return options ? slackline::simulation::run(*options) : 2;
}
