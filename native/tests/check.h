// A small test framework. A test is a sentence, TEST("a sentence") { CHECK(condition); }, and
// main.cc runs all tests.
//
// A failed CHECK throws, which ends its test; the other tests still run.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace slackline::test {

struct Test {
  const char* sentence;
  void (*body)();
};

// Return all tests of the program, in order of registration.
inline std::vector<Test>& all() {
  static std::vector<Test> tests;
  return tests;
}

struct Register {
  Register(const char* sentence, void (*body)()) { all().push_back({sentence, body}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const std::string& what, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  std::ostringstream text;
  text << file << ':' << line << ": " << what;
  throw Failure(text.str());
}

template <class A, class B>
void check_equal(const A& actual, const B& expected, const char* text,
                 const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (actual == expected) return;
  std::ostringstream what;
  what << text << ": " << actual << " is not " << expected;
  fail(what.str(), file, line);
}

// Return the number of rounds of a test of many equal rounds: a quarter under a sanitizer, where
// each takes at least four times as long.
constexpr unsigned rounds(unsigned usual) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return (usual + 3) / 4;
#else
  return usual;
#endif
}

}  // namespace slackline::test

#define SLACKLINE_JOIN_(a, b) a##b
#define SLACKLINE_JOIN(a, b) SLACKLINE_JOIN_(a, b)
#define TEST(sentence) SLACKLINE_TEST_(sentence, SLACKLINE_JOIN(slackline_test_, __LINE__))
#define SLACKLINE_TEST_(sentence, body)                                                       \
  static void body();                                                                         \
  static const ::slackline::test::Register SLACKLINE_JOIN(body, _registered)(sentence, body); \
  static void body()

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) ::slackline::test::fail("CHECK(" #condition ")"); \
  } while (false)
// Check that actual == expected, and print both values if not.
#define CHECK_EQUAL(actual, expected) \
  ::slackline::test::check_equal(actual, expected, "CHECK_EQUAL(" #actual ", " #expected ")")
