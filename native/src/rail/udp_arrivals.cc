#include "udp_arrivals.h"

#include <algorithm>

namespace slackline {

bool UdpArrivals::is_new(std::uint64_t number) const {
  if (number >= next_) return number - next_ < std::uint64_t{1} << 31;
  return any_ && next_ - number <= kUdpMapBits && !test(number);
}

void UdpArrivals::add(std::uint64_t number, std::size_t bytes, std::int64_t arrival_ns, bool ends) {
  bool in_order = true;
  if (number >= next_) {
    in_order = number == next_;
    if (number - next_ >= kUdpMapBits) {
      seen_.fill(0);
    } else {
      for (std::uint64_t n = next_; n <= number; ++n)
        seen_[n / 64 % seen_.size()] &= ~(std::uint64_t{1} << (n % 64));
    }
    next_ = number + 1;
    latest_ns_ = arrival_ns;
  } else {
    in_order = false;
  }
  any_ = true;
  seen_[number / 64 % seen_.size()] |= std::uint64_t{1} << (number % 64);
  lowest_ = std::min(lowest_, number);
  ++packets_;
  bytes_ += bytes;
  const bool small = packets_ <= kShortPackets && bytes_ <= kShortBytes;
  std::int64_t due = 0;
  if (in_order && small) {
    due = arrival_ns + kDelayNs;
  } else if (in_order && !ends && packets_ <= kPartPackets) {
    due = arrival_ns + kPartDelayNs;
  }
  due_ns_ = std::min(due_ns_, due);
}

void UdpArrivals::acknowledge(UdpPacket& packet, std::uint64_t window, std::int64_t now_ns) {
  lowest_then_[turn_++ % kRepeats] = lowest_;
  std::uint64_t first = std::min(*std::ranges::min_element(lowest_then_), next_ - 1);
  first = std::max(first, next_ - std::min<std::uint64_t>(next_, map_bits_));
  const std::uint64_t bits = next_ - first;
  std::fill_n(map_.begin(), (bits + 7) / 8, std::byte{0});
  for (std::uint64_t i = 0; i < bits; ++i) {
    if (test(first + i)) map_[i / 8] |= std::byte{1} << (i % 8);
  }
  packet.header = UdpHeader{};
  packet.header.kind = UdpKind::kAck;
  packet.header.unit = static_cast<std::uint16_t>(bits);
  packet.header.number = static_cast<std::uint32_t>(next_ - 1);
  packet.header.frame =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(now_ns - latest_ns_, 0, 4'000'000'000));
  packet.header.total = static_cast<std::uint32_t>(window);
  packet.parts = {std::span<const std::byte>(map_.data(), (bits + 7) / 8), {}};
  due_ns_ = kNever;
  packets_ = 0;
  bytes_ = 0;
  lowest_ = kNone;
}

}  // namespace slackline
