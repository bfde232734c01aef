// The main program of the tests. The program runs every registered test whose sentence contains the
// first argument (default: all), and prints the duration of each test that took a second or more.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "check.h"

int main(int argc, char** argv) {
  std::vector<std::string> failed;
  int passed = 0;
  for (const slackline::test::Test& test : slackline::test::all()) {
    if (argc > 1 && std::strstr(test.sentence, argv[1]) == nullptr) continue;
    std::printf("%s ... ", test.sentence);
    std::fflush(stdout);
    const auto start = std::chrono::steady_clock::now();
    try {
      test.body();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      took.count() < 1 ? std::printf("ok\n") : std::printf("ok, %.0f s\n", took.count());
      ++passed;
    } catch (const std::exception& error) {
      std::printf("FAILED\n  %s\n", error.what());
      failed.push_back(std::string(test.sentence) + "\n  " + error.what());
    }
  }
  for (const std::string& which : failed) std::printf("FAILED: %s\n", which.c_str());
  std::printf("%d passed, %zu failed\n", passed, failed.size());
  return !failed.empty() || passed == 0 ? 1 : 0;
}
