// Runs every test, or those whose names contain the first argument; exits with 1 when one fails.
#include <cstdio>
#include <cstring>

#include "check.h"

int main(int count, char** arguments) {
  const char* wanted = count > 1 ? arguments[1] : "";
  int run = 0, failed = 0;
  for (const auto& test : slackline::test::cases()) {
    if (!std::strstr(test.name, wanted)) continue;
    ++run;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED  %s\n        %s\n", test.name, error.what());
    }
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed || !run;
}
