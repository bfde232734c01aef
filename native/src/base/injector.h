// Faults that an engine applies to the frames or packets it sends. No root privileges are needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace slackline {

struct FaultState {
  std::int64_t delay_ns = 0;
  // Upper bound of a random extra delay, evenly distributed. The order of packets is kept.
  std::int64_t jitter_ns = 0;
  std::uint64_t rate = 0;  // bytes per second, 0: unlimited
  double loss = 0;         // share of packets, 0 to 1; so are the next three values
  double duplicate = 0;
  // Share of packets that are delayed by a millisecond, or by `jitter_ns` if that is longer, so
  // that later packets overtake them.
  double reorder = 0;
  double corrupt = 0;
  bool down = false;
  std::uint64_t seed = 0;
};

class Injector {
 public:
  explicit Injector(const FaultState& state) : state_(state), random_(state.seed) {}

  struct Decision {
    bool drop = false;
    bool corrupt = false;
    int copies = 1;
    std::int64_t sent_ns = 0;     // when the sender's port has sent it, at the injected rate
    std::int64_t release_ns = 0;  // earliest departure; never before an earlier packet's
    // The packet itself is late; its `release_ns` delays no other packet.
    bool overtaken = false;
  };

  // Decide the faults of the next packet. The same sequence of calls gives the same decisions.
  Decision decide(std::int64_t now_ns, std::size_t bytes) {
    Decision decision;
    const double lose = draw();
    const double damage = draw();
    const double repeat = draw();
    const double overtake = draw();
    const double late = draw();
    decision.drop = state_.down || lose < state_.loss;
    decision.corrupt = damage < state_.corrupt;
    decision.copies = repeat < state_.duplicate ? 2 : 1;
    std::int64_t leave = now_ns;
    if (state_.rate > 0) {
      const double ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(state_.rate);
      free_ns_ = std::max(free_ns_, now_ns) + static_cast<std::int64_t>(ns);
      leave = free_ns_;
    }
    decision.sent_ns = leave;
    leave += state_.delay_ns;
    leave += static_cast<std::int64_t>(late * static_cast<double>(state_.jitter_ns));
    decision.release_ns = std::max(leave, last_release_ns_);
    if (overtake < state_.reorder) {
      decision.overtaken = true;
      decision.release_ns += std::max(state_.jitter_ns, kOvertakenNs);
    } else {
      last_release_ns_ = decision.release_ns;
    }
    return decision;
  }

  const FaultState& state() const { return state_; }
  // Return the index of the byte that is corrupted in a packet of `bytes` bytes.
  std::size_t place(std::size_t bytes) { return static_cast<std::size_t>(next() % bytes); }

 private:
  static constexpr std::int64_t kOvertakenNs = 1'000'000;

  // The generator is SplitMix64 (Steele, Lea, Flood 2014).
  std::uint64_t next() {
    std::uint64_t z = random_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double draw() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  FaultState state_;
  std::uint64_t random_;
  std::int64_t free_ns_ = 0;
  std::int64_t last_release_ns_ = 0;
};

}  // namespace slackline
