// A test is TEST("a sentence") { CHECK(...); }; native/tests/main.cc runs them all.
#pragma once

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace slackline::test {

// Ends the test that raised it.
struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Case {
  const char* name;
  void (*body)();
};

// The one list, filled before main by static registration.
inline std::vector<Case>& cases() {
  static std::vector<Case> list;
  return list;
}

inline bool enlist(const char* name, void (*body)()) {
  cases().push_back({name, body});
  return true;
}

template <class T>
std::string shown(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (requires(std::ostream& out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else {
    return "(a value)";
  }
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

}  // namespace slackline::test

#define SLACKLINE_JOIN_(a, b) a##b
#define SLACKLINE_JOIN(a, b) SLACKLINE_JOIN_(a, b)
#define SLACKLINE_TEST(name, body)                                     \
  static void body();                                                  \
  [[maybe_unused]] static const bool SLACKLINE_JOIN(body, _enlisted) = \
      ::slackline::test::enlist(name, body);                           \
  static void body()
#define TEST(name) SLACKLINE_TEST(name, SLACKLINE_JOIN(test_at_line_, __LINE__))

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) ::slackline::test::fail(__FILE__, __LINE__, "not so: " #condition); \
  } while (false)

// Both values are evaluated once and shown when they differ.
#define CHECK_EQUAL(left, right)                                                               \
  do {                                                                                         \
    const auto& check_left = (left);                                                           \
    const auto& check_right = (right);                                                         \
    if (!(check_left == check_right))                                                          \
      ::slackline::test::fail(__FILE__, __LINE__,                                              \
                              #left " is " + ::slackline::test::shown(check_left) + ", not " + \
                                  ::slackline::test::shown(check_right));                      \
  } while (false)

#define CHECK_THROWS(expression, Error)                                                  \
  do {                                                                                   \
    bool check_thrown = false;                                                           \
    try {                                                                                \
      (void)(expression);                                                                \
    } catch (const Error&) {                                                             \
      check_thrown = true;                                                               \
    }                                                                                    \
    if (!check_thrown)                                                                   \
      ::slackline::test::fail(__FILE__, __LINE__, #expression " did not throw " #Error); \
  } while (false)
