// Detection of lost packets: each sent packet is confirmed by an ACK or taken for lost, unless no
// ACK arrives at all.
//
// A packet is taken for lost when a later one has been confirmed for longer than packets overtake
// each other on this path (as RFC 8985 does for TCP). The last packets of a burst have no
// successor: when no ACK arrives for some time, a probe repeats the oldest packet, and the ACK of
// the probe reports all packets before it.
#include <algorithm>
#include <utility>

#include "udp_sender.h"

namespace slackline {
namespace {

constexpr std::int64_t kLeastReorderingNs = 100'000;
constexpr std::int64_t kMostReorderingNs = 8'000'000;  // or two round trips
constexpr std::int64_t kReorderingHalfLifeNs = 250'000'000;

constexpr std::int64_t kFirstProbeNs = 25'000'000;  // while the round trip is unknown
constexpr std::int64_t kLeastProbeNs = 3'000'000;
// Allowed for the delay of an ACK: that of UdpArrivals, and that of a busy receiver.
constexpr std::int64_t kAckDelayNs = 1'000'000;
// A restored wire is noticed within this time.
constexpr std::int64_t kMostProbeNs = 50'000'000;
constexpr std::int64_t kRememberNs = 20'000'000;  // how long a lost packet may still turn up

}  // namespace

void UdpSender::skip(std::uint64_t number, Frame& frame) {
  if (std::exchange(frame.skipping, true)) return;
  skips_.push_back(number);
}

void UdpSender::finish(Frame& frame) {
  frame.done = true;
  --open_frames_;
  open_bytes_ -= frame.total;
  unconfirmed_bytes_ -= frame.unconfirmed_bytes;
  while (!frames_.empty() && frames_.front().done) {
    frames_.pop_front();
    ++first_frame_;
  }
}

void UdpSender::confirm(Record& record) {
  const std::size_t bytes = sizeof(UdpHeader) + record.piece.bytes;
  if (record.state == State::kLost) {
    ++counters_.spurious;
    congestion_.found(bytes);
  } else {
    in_flight_bytes_ -= bytes;
    --in_flight_packets_;
  }
  record.state = State::kConfirmed;
  congestion_.acked(bytes);
  Frame* frame = find(record.piece.frame);
  if (frame == nullptr) return;
  if (record.piece.fragment == kSkip) {
    finish(*frame);
  } else if (frame->have.set(record.piece.fragment)) {
    frame->unconfirmed_bytes -= record.piece.bytes;
    unconfirmed_bytes_ -= record.piece.bytes;
    if (++frame->confirmed == frame->count) finish(*frame);
  }
}

void UdpSender::repeat(Piece piece) {
  Frame* frame = find(piece.frame);
  if (frame == nullptr) return;
  if (piece.fragment == kSkip) {
    skips_.push_back(piece.frame);
  } else if (frame->have.test(piece.fragment)) {
    return;
  } else if (frame->released) {
    skip(piece.frame, *frame);
  } else {
    piece.origin = Origin::kLost;
    lost_.push_back(piece);
    lost_bytes_ += piece.bytes;
  }
}

void UdpSender::lose(Record& record, std::uint64_t number) {
  const std::size_t bytes = sizeof(UdpHeader) + record.piece.bytes;
  record.state = State::kLost;
  in_flight_bytes_ -= bytes;
  --in_flight_packets_;
  congestion_.lost(bytes, number);
  repeat(record.piece);
}

// Learn how far packets overtake each other. A packet arrived although later ones had been
// confirmed before; a tolerance of `needed_ns` would have avoided taking it for lost.
void UdpSender::note_reordering(std::int64_t needed_ns, std::int64_t now_ns) {
  if (needed_ns <= 0) return;
  const std::int64_t wanted = std::min(needed_ns + needed_ns / 4,
                                       std::max(kMostReorderingNs, 2 * congestion_.smoothed_ns()));
  if (wanted < reordering_ns_) return;
  reordering_ns_ = wanted;
  reordering_seen_ns_ = now_ns;
}

bool UdpSender::acknowledge(const UdpHeader& ack, std::span<const std::byte> map,
                            std::int64_t arrival_ns, std::int64_t now_ns) {
  const std::uint64_t next = first_record_ + records_.size();
  const std::uint64_t number = udp_expand(ack.number, next);
  const std::uint64_t bits = ack.unit;
  if (number >= next || bits == 0 || bits > kUdpMapBits || map.size() != (bits + 7) / 8)
    return false;
  quiet_since_ns_ = std::max(quiet_since_ns_, arrival_ns);
  tries_ = 0;
  probes_ = 0;
  peer_window_ = std::max<std::uint64_t>(ack.total, 2 * kUdpMaxPacket);
  const std::uint64_t first = number - std::min(number, bits - 1);
  const std::uint64_t latest = latest_;
  const std::int64_t round_trip = latest_round_trip_ns_;
  for (std::uint64_t n = std::max(first, first_record_); n <= number; ++n) {
    const std::uint64_t bit = n + bits - 1 - number;
    if ((map[bit / 8] >> (bit % 8) & std::byte{1}) == std::byte{0}) continue;
    Record& record = records_[n - first_record_];
    if (record.state == State::kConfirmed) continue;
    confirm(record);
    if (n + 1 < latest) note_reordering(arrival_ns - record.sent_ns - round_trip, now_ns);
    if (n != number) continue;
    congestion_.sample(arrival_ns - record.sent_ns - std::int64_t{ack.frame}, arrival_ns);
    if (n >= latest) {
      latest_ = n + 1;
      latest_round_trip_ns_ = arrival_ns - record.sent_ns;
    }
  }
  detect_losses(arrival_ns);
  drop_old_records(arrival_ns);
  congestion_.confirmed(number, next, in_flight_bytes_, arrival_ns);
  return true;
}

void UdpSender::detect_losses(std::int64_t now_ns) {
  loss_due_ns_ = kNever;
  if (reordering_ns_ > 0 && now_ns - reordering_seen_ns_ > kReorderingHalfLifeNs) {
    reordering_ns_ /= 2;
    reordering_seen_ns_ = now_ns;
  }
  const std::int64_t wait =
      latest_round_trip_ns_ +
      std::max({kLeastReorderingNs, congestion_.shortest_ns() / 4, reordering_ns_});
  for (std::uint64_t n = first_record_; n < latest_; ++n) {
    Record& record = records_[n - first_record_];
    if (record.state != State::kInFlight) continue;
    if (record.sent_ns + wait > now_ns) {
      loss_due_ns_ = record.sent_ns + wait;
      return;
    }
    lose(record, n);
  }
}

void UdpSender::drop_old_records(std::int64_t now_ns) {
  const std::int64_t remembered = 4 * congestion_.smoothed_ns() + reordering_ns_ + kRememberNs;
  while (!records_.empty()) {
    Record& record = records_.front();
    const bool past = record.state == State::kConfirmed ||
                      (record.state == State::kLost && first_record_ < latest_ &&
                       record.sent_ns + remembered < now_ns);
    if (!past && records_.size() <= kMostRecords) break;
    if (record.state == State::kInFlight) lose(record, first_record_);
    records_.pop_front();
    ++first_record_;
    if (copied_ > 0) --copied_;
  }
}

std::int64_t UdpSender::probe_due_ns() const {
  if (!outstanding()) return kNever;
  const std::int64_t round_trip = congestion_.smoothed_ns();
  const std::int64_t once =
      round_trip == 0
          ? kFirstProbeNs
          : std::max(kLeastProbeNs, round_trip + kAckDelayNs +
                                        std::max(4 * congestion_.deviation_ns(), kAckDelayNs));
  return last_sent_ns_ + std::max(once, std::min(once << std::min(tries_, 8), kMostProbeNs));
}

// Send probes when no ACK arrives. Packets in flight remain so, because the peer may only be slow
// to read. The ACK of a probe will show which of them arrived.
void UdpSender::time_out(std::int64_t now_ns) {
  ++tries_;
  ++counters_.timeouts;
  last_sent_ns_ = now_ns;
  copied_ = 0;
  probes_ = silent() ? 1 : 2;
  if (silent()) congestion_.silent();
  drop_old_records(now_ns);
}

void UdpSender::tick(std::int64_t now_ns) {
  if (now_ns >= loss_due_ns_) detect_losses(now_ns);
  if (now_ns >= probe_due_ns()) time_out(now_ns);
}

std::int64_t UdpSender::due_ns() const {
  return std::min({loss_due_ns_, probe_due_ns(), paced_ ? congestion_.pace_due_ns() : kNever});
}

}  // namespace slackline
