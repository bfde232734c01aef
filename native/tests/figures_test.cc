// Tests of the figures of messages.
#include "../src/base/figures.h"

#include "check.h"

namespace slackline::test {
namespace {

TEST("an amount of memory has three digits and the largest unit below it") {
  CHECK_EQUAL(show_bytes(0), "0 B");
  CHECK_EQUAL(show_bytes(1), "1 B");
  CHECK_EQUAL(show_bytes(1023), "1023 B");
  CHECK_EQUAL(show_bytes(1024), "1 KiB");
  CHECK_EQUAL(show_bytes(1536), "1.5 KiB");
  CHECK_EQUAL(show_bytes(10'239), "10 KiB");
  CHECK_EQUAL(show_bytes(102'399), "100 KiB");
  CHECK_EQUAL(show_bytes(6'687'648), "6.38 MiB");
  CHECK_EQUAL(show_bytes((std::uint64_t{1} << 20) - 1), "1 MiB");
  CHECK_EQUAL(show_bytes(std::uint64_t{64} << 30), "64 GiB");
  CHECK_EQUAL(show_bytes(~std::uint64_t{0}), "16777216 TiB");
}

}  // namespace
}  // namespace slackline::test
