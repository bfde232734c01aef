// Flows that share one bottleneck in simulated time: UDP rails (paths to a peer) and TCP
// connections.
//
// A flow's packets wait in one queue that drops what does not fit, cross the wire at its rate, may
// be lost at random, and arrive half a round trip later. Confirmations travel back in the other
// half. The rails are the engine's own sender and its own record of arrivals. No bytes are copied,
// so that a second at 200 Mbit/s takes some ten milliseconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "../src/rail/udp_arrivals.h"
#include "../src/rail/udp_sender.h"
#include "bottleneck.h"

namespace slackline::test {

constexpr std::int64_t kNever = UdpSender::kNever;

// A full packet of either kind: 1448 bytes of data, 52 of headers (IP and TCP with time stamps, or
// IP, UDP and the rail's) and 18 of Ethernet.
constexpr std::size_t kSegmentBytes = 1448;
constexpr std::size_t kWireBytes = 1518;

// A flow of packets that has more data to send at all times.
class Flow {
 public:
  virtual ~Flow() = default;
  // Return the number of the next packet that may be sent, if any.
  virtual std::optional<std::uint64_t> next(std::int64_t now_ns) = 0;
  // Process the arrival of a packet at the receiver.
  virtual void arrive(std::uint64_t number, std::int64_t now_ns) = 0;
  // Process the confirmation of that arrival at the sender.
  virtual void confirm(std::uint64_t number, std::int64_t now_ns) = 0;
  virtual void tick(std::int64_t now_ns) = 0;
  virtual std::int64_t due_ns() const = 0;
  // Return the bytes of data that have arrived and are known to have, each counted once.
  virtual std::uint64_t delivered() const = 0;
};

// A TCP connection with CUBIC (RFC 9438), as Linux has it: selective acknowledgements, one
// reduction for each recovery, HyStart (RFC 9406) and a timer for retransmission (RFC 6298).
// Every segment is acknowledged. Transmissions are numbered, since the order in which a receiver
// got them is what selective acknowledgements and time stamps tell a sender. Not modelled: delayed
// acknowledgements, pacing, the gradual reduction of RFC 6937 and the probe for a lost tail.
class TcpFlow final : public Flow {
 public:
  std::optional<std::uint64_t> next(std::int64_t now_ns) override {
    if (static_cast<double>(in_flight_) >= std::floor(window_)) return std::nullopt;
    std::uint64_t segment = next_segment_;
    if (lost_.empty()) {
      ++next_segment_;
    } else {
      segment = *lost_.begin();
      lost_.erase(lost_.begin());
    }
    sent_.push_back({segment, now_ns, false});
    ++in_flight_;
    if (timer_ns_ == kNever) timer_ns_ = now_ns + timeout_ns();
    return first_sent_ + sent_.size() - 1;
  }

  void arrive(std::uint64_t, std::int64_t) override {}

  void confirm(std::uint64_t number, std::int64_t now_ns) override {
    if (number < first_sent_) return;  // taken for lost before
    Sent& sent = sent_[number - first_sent_];
    if (sent.closed) return;
    sent.closed = true;
    --in_flight_;
    measure(now_ns - sent.sent_ns, number);
    timer_ns_ = now_ns + timeout_ns();
    backoff_ = 0;
    take_delivered(sent.segment);
    detect_losses(number);
    if (recovering_ && lowest_ >= recovery_) recovering_ = false;
    if (!recovering_) grow(now_ns);
  }

  void tick(std::int64_t now_ns) override {
    if (now_ns < timer_ns_) return;
    for (Sent& sent : sent_) {
      if (!sent.closed) lost_.insert(sent.segment);
    }
    first_sent_ += sent_.size();
    sent_.clear();
    in_flight_ = 0;
    reduce();
    window_ = 1;
    recovering_ = false;
    ++timeouts;
    backoff_ = std::min(backoff_ + 1, 6);
    timer_ns_ = now_ns + timeout_ns();
  }

  std::int64_t due_ns() const override { return timer_ns_; }
  std::uint64_t delivered() const override { return delivered_ * kSegmentBytes; }
  double window() const { return window_; }

  std::uint64_t reductions = 0;
  std::uint64_t timeouts = 0;

 private:
  // The constants of RFC 9438, sections 4.1 and 4.3, and of Linux.
  static constexpr double kC = 0.4;     // segments per second to the third
  static constexpr double kBeta = 0.7;  // of the window after a reduction
  static constexpr double kAlpha = 3 * (1 - kBeta) / (1 + kBeta);
  static constexpr std::uint64_t kReordering = 3;  // later arrivals that make a segment lost
  static constexpr std::int64_t kLeastTimeoutNs = 200'000'000;
  static constexpr int kHystartSamples = 8;
  static constexpr std::int64_t kHystartLeastNs = 4'000'000;
  static constexpr std::int64_t kHystartMostNs = 16'000'000;

  struct Sent {
    std::uint64_t segment;
    std::int64_t sent_ns;
    bool closed;  // confirmed or lost
  };

  std::int64_t timeout_ns() const {
    if (smoothed_ns_ == 0) return 1'000'000'000;
    return std::max(kLeastTimeoutNs, smoothed_ns_ + 4 * deviation_ns_) << backoff_;
  }

  void measure(std::int64_t rtt, std::uint64_t number) {
    if (smoothed_ns_ == 0) {
      smoothed_ns_ = rtt;
      deviation_ns_ = rtt / 2;
      shortest_ns_ = rtt;
    } else {
      deviation_ns_ += (std::abs(smoothed_ns_ - rtt) - deviation_ns_) / 4;
      smoothed_ns_ += (rtt - smoothed_ns_) / 8;
      shortest_ns_ = std::min(shortest_ns_, rtt);
    }
    if (number >= round_end_) {
      round_end_ = first_sent_ + sent_.size();
      round_samples_ = 0;
      round_shortest_ns_ = kNever;
    }
    if (round_samples_ < kHystartSamples) {
      ++round_samples_;
      round_shortest_ns_ = std::min(round_shortest_ns_, rtt);
      if (round_samples_ == kHystartSamples && window_ < threshold_ && window_ >= 16 &&
          round_shortest_ns_ >=
              shortest_ns_ + std::clamp(shortest_ns_ / 8, kHystartLeastNs, kHystartMostNs))
        threshold_ = window_;
    }
  }

  void take_delivered(std::uint64_t segment) {
    ++delivered_;
    arrived_.insert(segment);
    while (!arrived_.empty() && *arrived_.begin() == lowest_) {
      arrived_.erase(arrived_.begin());
      ++lowest_;
    }
  }

  void detect_losses(std::uint64_t number) {
    // With few segments in flight there are not three later ones (RFC 8985, section 6.2).
    const std::uint64_t reordering = in_flight_ < 4 ? 1 : kReordering;
    while (!sent_.empty()) {
      Sent& front = sent_.front();
      if (!front.closed) {
        if (first_sent_ + reordering > number) break;
        --in_flight_;
        lost_.insert(front.segment);
        if (!recovering_) {
          reduce();
          window_ = threshold_;
          recovering_ = true;
          recovery_ = next_segment_;
        }
      }
      sent_.pop_front();
      ++first_sent_;
    }
  }

  void reduce() {
    ++reductions;
    prior_ = window_;
    most_ = window_ < most_ ? window_ * (1 + kBeta) / 2 : window_;  // fast convergence
    threshold_ = std::max(2.0, window_ * kBeta);
    epoch_ns_ = 0;
  }

  void grow(std::int64_t now_ns) {
    if (window_ < threshold_) {
      window_ += 1;
      return;
    }
    if (epoch_ns_ == 0) {
      epoch_ns_ = now_ns;
      if (most_ < window_) most_ = window_;
      inflection_s_ = std::cbrt((most_ - window_) / kC);
      estimate_ = window_;
    }
    const double at = static_cast<double>(now_ns - epoch_ns_) / 1e9;
    const double soon = at + static_cast<double>(smoothed_ns_) / 1e9;
    const double target = std::clamp(cubic(soon), window_, 1.5 * window_);
    estimate_ += (estimate_ >= prior_ ? 1 : kAlpha) / window_;
    window_ = cubic(at) < estimate_ ? std::max(window_, estimate_)
                                    : window_ + (target - window_) / window_;
  }

  double cubic(double at) const {
    const double away = at - inflection_s_;
    return kC * away * away * away + most_;
  }

  double window_ = 10;
  double threshold_ = std::numeric_limits<double>::infinity();
  double most_ = 0;      // W_max
  double prior_ = 0;     // cwnd_prior
  double estimate_ = 0;  // W_est
  double inflection_s_ = 0;
  std::int64_t epoch_ns_ = 0;

  std::deque<Sent> sent_;  // first_sent_ is the number of the front
  std::uint64_t first_sent_ = 0;
  std::uint64_t in_flight_ = 0;
  std::uint64_t next_segment_ = 0;
  std::uint64_t lowest_ = 0;         // the lowest segment that has not arrived
  std::set<std::uint64_t> arrived_;  // segments above it that have
  std::set<std::uint64_t> lost_;
  std::uint64_t delivered_ = 0;
  bool recovering_ = false;
  std::uint64_t recovery_ = 0;

  std::int64_t smoothed_ns_ = 0;
  std::int64_t deviation_ns_ = 0;
  std::int64_t shortest_ns_ = 0;
  std::uint64_t round_end_ = 0;
  int round_samples_ = 0;
  std::int64_t round_shortest_ns_ = kNever;
  std::int64_t timer_ns_ = kNever;
  int backoff_ = 0;
};

// A UDP rail that sends frames of 128 KiB: the engine's sender, and its record of arrivals at the
// receiver.
class RailFlow final : public Flow {
 public:
  explicit RailFlow(std::uint64_t receive_window = 16u << 20)
      : sender_(kPacketBytes, 0), arrivals_(kPacketBytes, 0), receive_window_(receive_window) {}

  std::optional<std::uint64_t> next(std::int64_t now_ns) override {
    while (sender_.queued_bytes() < 4 * kFrameBytes) {
      wire::Header header{};
      header.sequence = ++sequence_;
      header.length = kFrameBytes;
      sender_.enqueue(header, nullptr, kFrameBytes);
      enqueued_ += sizeof header + kFrameBytes;
    }
    UdpPacket packet;
    if (!sender_.next(packet, now_ns)) return std::nullopt;
    return packet.header.number;
  }
  void arrive(std::uint64_t number, std::int64_t now_ns) override {
    arrivals_.add(arrivals_.expand(static_cast<std::uint32_t>(number)), kPacketBytes, now_ns, true);
    UdpPacket packet;
    arrivals_.acknowledge(packet, receive_window_, now_ns);
    acks_.push_back({packet.header, {packet.parts[0].begin(), packet.parts[0].end()}});
  }
  void confirm(std::uint64_t, std::int64_t now_ns) override {
    const Ack& ack = acks_.front();
    sender_.acknowledge(ack.header, ack.map, now_ns, now_ns);
    acks_.pop_front();
  }
  void tick(std::int64_t now_ns) override { sender_.tick(now_ns); }
  std::int64_t due_ns() const override { return sender_.due_ns(); }
  std::uint64_t delivered() const override { return enqueued_ - sender_.unconfirmed_bytes(); }
  const UdpSender& sender() const { return sender_; }

 private:
  static constexpr std::size_t kPacketBytes = 1472;
  static constexpr std::uint32_t kFrameBytes = 128u << 10;
  struct Ack {
    UdpHeader header;
    std::vector<std::byte> map;
  };

  UdpSender sender_;
  UdpArrivals arrivals_;
  std::uint64_t receive_window_;
  std::deque<Ack> acks_;
  std::uint32_t sequence_ = 0;
  std::uint64_t enqueued_ = 0;
};

// The path that all flows share.
class SharedPath {
 public:
  struct Options {
    double bits_per_second = 200e6;
    std::int64_t buffer_ns = 10'000'000;  // the time that the full queue takes to empty
    std::int64_t round_trip_ns = 2'000'000;
    double loss = 0;  // of packets that have passed the queue
    unsigned seed = 1;
  };

  explicit SharedPath(const Options& options)
      : options_(options),
        queue_{.bytes_per_second = options.bits_per_second / 8,
               .buffer_bytes = static_cast<std::int64_t>(
                   options.bits_per_second / 8 * static_cast<double>(options.buffer_ns) / 1e9)},
        dice_(options.seed) {}

  // Add a flow that begins now, and return its place.
  template <class F>
  F& add(std::unique_ptr<F> flow) {
    F& reference = *flow;
    flows_.push_back({std::move(flow), {}, {}});
    return reference;
  }
  // Take the flow away that was added as the given one; its packets on the way are forgotten.
  void stop(const Flow& flow) {
    std::erase_if(flows_, [&](const Way& way) { return way.flow.get() == &flow; });
  }
  std::int64_t now() const { return now_ns_; }
  Bottleneck& queue() { return queue_; }

  void run(std::int64_t until_ns) {
    for (Way& way : flows_) send(way);
    for (;;) {
      Way* first = nullptr;
      std::int64_t at = until_ns;
      for (Way& way : flows_) {
        if (const std::int64_t due = way.due_ns(); due < at) {
          at = due;
          first = &way;
        }
      }
      if (first == nullptr) break;
      now_ns_ = std::max(now_ns_, at);
      Way& way = *first;
      if (!way.there.empty() && way.there.front().at_ns <= now_ns_) {
        const Event event = way.there.front();
        way.there.pop_front();
        way.flow->arrive(event.number, now_ns_);
        way.back.push_back({now_ns_ + options_.round_trip_ns / 2, event.number});
        continue;
      }
      if (!way.back.empty() && way.back.front().at_ns <= now_ns_) {
        const Event event = way.back.front();
        way.back.pop_front();
        way.flow->confirm(event.number, now_ns_);
      }
      if (way.flow->due_ns() <= now_ns_) way.flow->tick(now_ns_);
      send(way);
    }
    now_ns_ = until_ns;
  }

  // Run for `ns` and return the share of the wire that each flow used for data that arrived, its
  // headers included.
  std::vector<double> shares(std::int64_t ns) {
    std::vector<std::uint64_t> before;
    for (const Way& way : flows_) before.push_back(way.flow->delivered());
    run(now_ns_ + ns);
    std::vector<double> result;
    for (std::size_t i = 0; i < flows_.size(); ++i)
      result.push_back(static_cast<double>(flows_[i].flow->delivered() - before[i]) * kWireBytes /
                       kSegmentBytes * 8e9 / (options_.bits_per_second * static_cast<double>(ns)));
    return result;
  }

 private:
  struct Event {
    std::int64_t at_ns;
    std::uint64_t number;
  };
  struct Way {
    std::unique_ptr<Flow> flow;
    std::deque<Event> there;
    std::deque<Event> back;
    std::int64_t due_ns() const {
      return std::min({there.empty() ? kNever : there.front().at_ns,
                       back.empty() ? kNever : back.front().at_ns, flow->due_ns()});
    }
  };

  void send(Way& way) {
    while (const auto number = way.flow->next(now_ns_)) {
      const auto passed = queue_.pass(kWireBytes, now_ns_);
      if (!passed) continue;
      if (options_.loss > 0 && std::uniform_real_distribution<>()(dice_) < options_.loss) continue;
      way.there.push_back({*passed + options_.round_trip_ns / 2, *number});
    }
  }

  const Options options_;
  Bottleneck queue_;
  std::mt19937_64 dice_;
  std::deque<Way> flows_;
  std::int64_t now_ns_ = 1'000'000'000;
};

}  // namespace slackline::test
