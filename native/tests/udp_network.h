// A simulated network for UDP rails (paths to a peer). The network loses, repeats, delays and
// damages packets according to a seed, in simulated time and without sockets.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <vector>

#include "../src/rail/udp_protocol.h"
#include "bottleneck.h"
#include "frames.h"
#include "parts.h"

namespace slackline::test {

constexpr std::int64_t kMicrosecond = 1000;
constexpr std::int64_t kMillisecond = 1'000'000;

// The faults and delays that a network applies to the datagrams of one direction.
struct Weather {
  double loss = 0;
  double duplicate = 0;
  double corrupt = 0;
  std::int64_t delay_ns = 50 * kMicrosecond;
  std::int64_t jitter_ns = 0;  // drawn for each packet, so packets may overtake each other
  bool down = false;
};

// Return payload memory of up to 1 MiB whose content differs from frame to frame.
inline const std::byte* payload_of(std::uint32_t sequence) {
  static const Bytes bytes = pattern((1u << 20) + 4096, 7);
  return bytes.data() + sequence * 67 % 4096;
}

inline wire::Header data_header(std::uint32_t sequence, std::uint32_t length) {
  wire::Header header = header_of(wire::FrameKind::kData);
  header.sequence = sequence;
  header.length = length;
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
  return header;
}

// A sink that checks that every frame arrives once and unchanged. The sink keeps no frames.
struct Checker final : FrameSink {
  std::byte* direct_placement(Link&, const wire::Header& header, Request**) override {
    if (!lands) return nullptr;
    places[header.sequence].resize(header.length);
    return places[header.sequence].data();
  }
  void arrive(Link&, const wire::Header& header, const Payload& payload) override {
    if (!seen.insert(header.sequence).second) fail("a frame came twice");
    if (payload.length != header.length ||
        (payload.length > 0 &&
         std::memcmp(payload.data, payload_of(header.sequence), payload.length) != 0))
      fail("a frame came with other bytes");
    bytes += sizeof header + payload.length;
    landed += places.erase(header.sequence);
    if (payload.owned != nullptr) give_buffer(payload.owned);
  }
  bool lock_wanted() const override { return false; }
  std::byte* take_buffer(std::size_t length) override {
    ++buffers_out;
    return new std::byte[length];
  }
  void give_buffer(std::byte* buffer) override {
    --buffers_out;
    delete[] buffer;
  }

  bool lands = true;
  std::map<std::uint32_t, Bytes> places;
  std::set<std::uint32_t> seen;
  std::uint64_t bytes = 0;
  std::size_t landed = 0;
  int buffers_out = 0;
};

class UdpNetwork {
 public:
  struct End {
    std::unique_ptr<UdpProtocol> protocol;
    Checker sink;
    std::size_t peer = 0;
    Weather out;
    Bottleneck* bottleneck = nullptr;  // the queue that packets of this end pass, or null
    std::function<void(End&)> feed;    // called when there is room for another frame
    std::uint64_t packets = 0;
  };

  explicit UdpNetwork(unsigned seed = 1) : link_(parts_.add("test")), dice_(seed) {}

  ~UdpNetwork() {
    for (auto& end : ends_) end->protocol->receiver().abandon(end->sink);
  }

  // Connect two ends of a rail and return the index of the first; the second has the next index.
  std::size_t join(const Weather& there = {}, const Weather& back = {},
                   const UdpProtocol::Options& options = {.job = kJobCode,
                                                          .receive_window = 4u << 20}) {
    const std::size_t first = ends_.size();
    for (std::size_t i = 0; i < 2; ++i) {
      End& end = *ends_.emplace_back(std::make_unique<End>());
      end.protocol = std::make_unique<UdpProtocol>(options);
      end.peer = first + 1 - i;
      end.out = i == 0 ? there : back;
    }
    return first;
  }
  End& end(std::size_t index) { return *ends_[index]; }
  std::int64_t now() const { return now_ns_; }
  Link& link() { return link_; }

  // Enqueue frames `first` to `last`, with lengths given by `length`, whenever the queue has room.
  void feed(std::size_t index, std::uint32_t first, std::uint32_t last,
            std::function<std::uint32_t(std::uint32_t)> length) {
    end(index).feed = [next = first, last, length = std::move(length)](End& end) mutable {
      while (next <= last && end.protocol->sender().queued_bytes() < 512u << 10) {
        const std::uint32_t bytes = length(next);
        end.protocol->sender().enqueue(data_header(next, bytes), payload_of(next), bytes);
        ++next;
      }
    };
  }

  // Run the simulation until `done` or until the given time. Return true when done.
  bool run(std::int64_t until_ns, const std::function<bool()>& done = [] { return false; }) {
    for (std::size_t i = 0; i < ends_.size(); ++i) flush(i);
    while (!done()) {
      std::int64_t next = events_.empty() ? UdpSender::kNever : events_.top().at_ns;
      for (const auto& end : ends_) next = std::min(next, end->protocol->due_ns());
      if (next > until_ns) {
        now_ns_ = until_ns;
        return false;
      }
      now_ns_ = std::max(now_ns_, next);
      std::vector<bool> touched(ends_.size());
      while (!events_.empty() && events_.top().at_ns <= now_ns_) {
        const Event event = events_.top();
        events_.pop();
        End& to = end(event.to);
        to.protocol->receive(*event.datagram, event.at_ns, now_ns_, link_, to.sink);
        touched[event.to] = true;
      }
      for (std::size_t i = 0; i < ends_.size(); ++i) {
        End& one = end(i);
        if (one.protocol->due_ns() <= now_ns_) {
          one.protocol->tick(now_ns_);
          touched[i] = true;
        }
        if (touched[i]) flush(i);
      }
    }
    return true;
  }
  void flush(std::size_t index) {
    End& from = end(index);
    for (;;) {
      if (from.feed) from.feed(from);
      UdpPacket packet;
      if (!from.protocol->next(packet, now_ns_)) return;
      ++from.packets;
      auto bytes = std::make_shared<Bytes>(packet.bytes());
      std::memcpy(bytes->data(), &packet.header, sizeof packet.header);
      std::size_t at = sizeof packet.header;
      for (const auto& part : packet.parts) {
        if (!part.empty()) std::memcpy(bytes->data() + at, part.data(), part.size());
        at += part.size();
      }
      send(from, std::move(bytes));
    }
  }
  bool chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>()(dice_) < probability;
  }

 private:
  struct Event {
    std::int64_t at_ns;
    std::uint64_t order;
    std::size_t to;
    std::shared_ptr<Bytes> datagram;
    bool operator<(const Event& other) const {
      return std::pair(at_ns, order) > std::pair(other.at_ns, other.order);
    }
  };

  void send(End& from, std::shared_ptr<Bytes> bytes) {
    if (from.out.down) return;
    std::int64_t at = now_ns_;
    if (from.bottleneck != nullptr) {
      const auto through = from.bottleneck->pass(bytes->size() + 46, now_ns_);
      if (!through) return;
      at = *through;
    }
    const int copies = chance(from.out.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      if (chance(from.out.loss)) continue;
      std::shared_ptr<Bytes> copy = bytes;
      if (chance(from.out.corrupt)) {
        copy = std::make_shared<Bytes>(*bytes);
        (*copy)[dice_() % copy->size()] ^= static_cast<std::byte>(1 + dice_() % 255);
      }
      const std::int64_t jitter =
          from.out.jitter_ns == 0
              ? 0
              : static_cast<std::int64_t>(dice_() % static_cast<std::uint64_t>(from.out.jitter_ns));
      events_.push(Event{at + from.out.delay_ns + jitter, order_++, from.peer, std::move(copy)});
    }
  }

  Parts parts_;
  Link& link_;
  std::mt19937_64 dice_;
  std::vector<std::unique_ptr<End>> ends_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  std::int64_t now_ns_ = kSecond;
};

}  // namespace slackline::test
