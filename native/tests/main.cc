// Runs every registered test whose sentence contains the first argument (default: all).
#include <cstdio>
#include <cstring>
#include <exception>

#include "check.h"

int main(int argc, char** argv) {
  int failed = 0;
  int passed = 0;
  for (const slackline::test::Test& test : slackline::test::all()) {
    if (argc > 1 && std::strstr(test.sentence, argv[1]) == nullptr) continue;
    std::printf("%s ... ", test.sentence);
    std::fflush(stdout);
    try {
      test.body();
      std::printf("ok\n");
      ++passed;
    } catch (const std::exception& error) {
      std::printf("FAILED\n  %s\n", error.what());
      ++failed;
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0 ? 1 : 0;
}
