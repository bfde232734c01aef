#include "udp_network.h"

namespace slackline::test {
namespace {

std::uint32_t mixed_length(std::uint32_t sequence) {
  constexpr std::uint32_t lengths[] = {131'072, 0,      1,      64,      1384,
                                       1385,    70'000, 16'384, 262'144, 3000};
  return lengths[sequence % 10];
}

struct Case {
  const char* what;
  Weather there, back;
};

// Send frames in both directions and check that each arrives once and whole, and that no state is
// left behind.
void exchange(const Case& c, unsigned seed, std::uint32_t frames = 300) {
  UdpNetwork network(seed);
  const std::size_t a = network.join(
      c.there, c.back, {.job = kJobCode, .receive_window = 4u << 20, .first_number = 0xFFFF'FF00});
  network.feed(a, 1, frames, mixed_length);
  network.feed(a + 1, 1, frames, mixed_length);
  const auto idle = [&](std::size_t i) {
    return network.end(i).sink.seen.size() == frames &&
           !network.end(i).protocol->sender().in_flight();
  };
  if (!network.run(600 * kSecond, [&] { return idle(a) && idle(a + 1); }))
    fail(std::string(c.what) + ": only " + std::to_string(network.end(a).sink.seen.size()) +
         " and " + std::to_string(network.end(a + 1).sink.seen.size()) + " frames arrived");
  for (std::size_t i = a; i <= a + 1; ++i) {
    CHECK_EQUAL(network.end(i).sink.buffers_out, 0);
    CHECK_EQUAL(network.end(i).sink.places.size(), 0u);
    CHECK_EQUAL(network.end(i).protocol->receiver().held_bytes(), 0u);
    CHECK_EQUAL(network.end(i).protocol->sender().queued_bytes(), 0u);
  }
}

TEST("every frame comes once and whole over UDP, whatever the network does") {
  const Weather fair;
  const std::vector<Case> cases = {
      {"fair", fair, fair},
      {"loss 1%", {.loss = 0.01}, {.loss = 0.01}},
      {"loss 5%", {.loss = 0.05}, {.loss = 0.05}},
      {"loss 20%", {.loss = 0.2}, {.loss = 0.2}},
      {"loss there only", {.loss = 0.2}, fair},
      {"loss back only", fair, {.loss = 0.5}},
      {"duplicates", {.duplicate = 0.2}, {.duplicate = 0.2}},
      {"reordering", {.jitter_ns = 500 * kMicrosecond}, {.jitter_ns = 500 * kMicrosecond}},
      {"damage", {.corrupt = 0.05}, {.corrupt = 0.05}},
      {"far away", {.delay_ns = 30 * kMillisecond}, {.delay_ns = 30 * kMillisecond}},
      {"all at once",
       {.loss = 0.05, .duplicate = 0.05, .corrupt = 0.02, .jitter_ns = 5 * kMillisecond},
       {.loss = 0.05, .duplicate = 0.05, .corrupt = 0.02, .jitter_ns = 2 * kMillisecond}},
  };
  for (const Case& c : cases) {
    for (unsigned seed = 1; seed <= 3; ++seed) exchange(c, seed);
  }
}

}  // namespace
}  // namespace slackline::test
