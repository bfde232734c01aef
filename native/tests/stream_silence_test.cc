// Tests of the decision whether a TCP connection is silent.
#include "../src/rail/stream_silence.h"

#include "check.h"

namespace slackline::test {
namespace {

using Sample = StreamSilence::Sample;

constexpr std::int64_t kMs = 1'000'000;

TEST("data that nobody acknowledges is quiet since the first look that found it") {
  StreamSilence silence;
  silence.look({.unacked = 3, .acked_bytes = 10, .last_ack_ns = 90 * kMs}, 100 * kMs);
  CHECK(silence.in_flight());
  silence.look({.unacked = 3, .acked_bytes = 10, .last_ack_ns = 90 * kMs}, 400 * kMs);
  CHECK_EQUAL(silence.quiet_since_ns(), 100 * kMs);
  silence.look({.unacked = 2, .acked_bytes = 20, .last_ack_ns = 450 * kMs}, 500 * kMs);
  CHECK_EQUAL(silence.quiet_since_ns(), 500 * kMs);
  silence.look({.acked_bytes = 30, .last_ack_ns = 550 * kMs}, 600 * kMs);
  CHECK(!silence.in_flight());
}

TEST(
    "data that this host drops on its way out is in flight, and quiet while no probe is answered") {
  StreamSilence silence;
  silence.look({.acked_bytes = 10, .last_ack_ns = 90 * kMs}, 100 * kMs);
  CHECK(!silence.in_flight());
  for (std::uint32_t probes = 1; probes <= 5; ++probes) {
    silence.look({.probes = probes, .acked_bytes = 10, .last_ack_ns = 90 * kMs},
                 (100 + 200 * probes) * kMs);
    CHECK(silence.in_flight());
    CHECK_EQUAL(silence.quiet_since_ns(), 300 * kMs);
  }
}

TEST("a peer that reads nothing but answers the probes of its window is not silent") {
  StreamSilence silence;
  for (std::int64_t ms = 1000; ms < 60'000; ms += 1000) {
    // Each look happens to find a probe on its way. The one before it was answered.
    silence.look({.probes = 1, .acked_bytes = 10, .last_ack_ns = (ms - 20) * kMs}, ms * kMs);
    CHECK(ms * kMs - silence.quiet_since_ns() <= 20 * kMs);
  }
  silence.look({.acked_bytes = 10, .last_ack_ns = 60'000 * kMs}, 60'010 * kMs);
  CHECK(!silence.in_flight());
}

TEST("data that an injected fault holds back is in flight, whatever the peer acknowledges") {
  StreamSilence silence;
  silence.look({.held = true, .acked_bytes = 10, .last_ack_ns = 100 * kMs}, 100 * kMs);
  silence.look({.held = true, .acked_bytes = 10, .last_ack_ns = 190 * kMs}, 200 * kMs);
  CHECK(silence.in_flight());
  CHECK_EQUAL(silence.quiet_since_ns(), 100 * kMs);
}

}  // namespace
}  // namespace slackline::test
