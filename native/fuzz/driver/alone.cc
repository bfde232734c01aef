// A driver for fuzzers that does not need libFuzzer. The driver runs the seeds, the given files and
// the files of given folders, then seeded mutations of all these inputs until the time is over.
//   slackline_fuzz_NAME [-seconds=N] [-seed=N] [FILE or FOLDER]...
// An input that ends the process is left in crash-NAME-SEED-NUMBER in the working directory.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../../src/base/clock.h"
#include "../target.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace slackline::fuzz {
namespace {

constexpr unsigned kPatienceSeconds = 25;  // time limit of one input
constexpr std::size_t kLongest = 4096;

struct State {
  std::string crash_name;
  Bytes input;
  std::uint64_t executed = 0;
};
State state;

void leave_behind(const char* why) {
  const std::string name = state.crash_name + std::to_string(state.executed);
  std::fprintf(stderr, "%s: the input is in %s\n", why, name.c_str());
  std::ofstream file(name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(state.input.data()),
             static_cast<std::streamsize>(state.input.size()));
}

[[noreturn]] void on_alarm(int) {
  leave_behind("no end");
  std::_Exit(1);
}

void on_death() { leave_behind("death"); }

[[noreturn]] void on_exception() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  leave_behind("a broken promise");
  std::_Exit(1);
}

void execute(const Bytes& input) {
  state.input = input;
  ++state.executed;
  ::alarm(kPatienceSeconds);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  ::alarm(0);
}

using Random = std::mt19937_64;

std::size_t some_place(Random& random, const Bytes& bytes) {
  return bytes.empty() ? 0 : static_cast<std::size_t>(random() % bytes.size());
}

Bytes mutated(Bytes bytes, const std::vector<Bytes>& others, Random& random) {
  for (std::uint64_t n = 1 + random() % 6; n > 0; --n) {
    const std::size_t at = some_place(random, bytes);
    const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 6) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<std::byte>(random());
        break;
      case 1:
        if (!bytes.empty()) bytes[at] ^= static_cast<std::byte>(1u << random() % 8);
        break;
      case 2:
        bytes.insert(here, static_cast<std::byte>(random()));
        break;
      case 3:
        if (!bytes.empty())
          bytes.erase(here, here + static_cast<std::ptrdiff_t>(
                                       1 + random() % std::min<std::size_t>(8, bytes.size() - at)));
        break;
      case 4: {
        const Bytes piece(here, bytes.end());
        const std::size_t to = some_place(random, bytes);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(to), piece.begin(), piece.end());
        break;
      }
      default: {
        const Bytes& other = others[random() % others.size()];
        bytes.resize(at);
        bytes.insert(bytes.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(some_place(random, other)),
                     other.end());
      }
    }
  }
  if (bytes.size() > kLongest) bytes.resize(kLongest);
  return bytes;
}

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Bytes bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

std::vector<Bytes> read_all(const std::vector<std::filesystem::path>& paths) {
  std::vector<Bytes> inputs;
  for (const auto& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      inputs.push_back(read(path));
      continue;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) inputs.push_back(read(file));
  }
  return inputs;
}

int run(int argc, char** argv) {
  std::int64_t seconds = 5;
  std::uint64_t seed = 1;
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("-seconds=")) {
      seconds = std::stoll(argument.substr(9));
    } else if (argument.starts_with("-seed=")) {
      seed = std::stoull(argument.substr(6));
    } else {
      paths.emplace_back(argument);
    }
  }
  const std::string name = std::filesystem::path(argv[0]).filename();
  state.crash_name = "crash-" + name + "-" + std::to_string(seed) + "-";
  std::signal(SIGALRM, on_alarm);
  std::set_terminate(on_exception);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(on_death);
#else
  std::signal(SIGSEGV, [](int) {
    on_death();
    std::_Exit(1);
  });
#endif
  std::vector<Bytes> corpus = seeds();
  for (Bytes& input : read_all(paths)) corpus.push_back(std::move(input));
  const std::int64_t until = now_ns() + seconds * 1'000'000'000;
  for (const Bytes& input : corpus) execute(input);
  Random random(seed);
  while (now_ns() < until) execute(mutated(corpus[random() % corpus.size()], corpus, random));
  std::printf("%s: %zu inputs to begin with, %llu executed with seed %llu\n", name.c_str(),
              corpus.size(), static_cast<unsigned long long>(state.executed),
              static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace
}  // namespace slackline::fuzz

int main(int argc, char** argv) { return slackline::fuzz::run(argc, argv); }
