#include "udp_sender.h"

#include <algorithm>
#include <utility>

namespace slackline {
namespace {

// Limit of packets in flight. An ACK reports only the most recent kUdpMapBits packets.
constexpr std::size_t kMostInFlight = kUdpMapBits * 3 / 4;
constexpr std::uint64_t kFirstPeerWindow = 256u << 10;  // used until the peer sends its window

}  // namespace

UdpSender::UdpSender(std::size_t packet_bytes, std::uint64_t first_number)
    : unit_(packet_bytes - sizeof(UdpHeader)),
      first_frame_(first_number),
      first_record_(first_number),
      congestion_(packet_bytes),
      peer_window_(kFirstPeerWindow) {}

void UdpSender::resize(std::size_t packet_bytes) {
  unit_ = packet_bytes - sizeof(UdpHeader);
  congestion_.resize(packet_bytes);
}

void UdpSender::enqueue(const wire::Header& header, const std::byte* payload,
                        std::uint32_t length) {
  Frame frame{.header = header, .payload = payload, .total = kHeader + length};
  waiting_bytes_ += frame.total;
  (length == 0 ? urgent_ : bulk_).push_back(std::move(frame));
}

UdpSender::Frame* UdpSender::find(std::uint64_t number) {
  if (number < first_frame_ || number - first_frame_ >= frames_.size()) return nullptr;
  Frame& frame = frames_[number - first_frame_];
  return frame.done ? nullptr : &frame;
}

void UdpSender::repoint(std::uint32_t sequence, const std::byte* to) {
  for (std::deque<Frame>* frames : {&bulk_, &frames_}) {
    for (Frame& frame : *frames) {
      if (frame.header.sequence == sequence && !frame.released) frame.payload = to;
    }
  }
}

void UdpSender::release(std::uint32_t sequence) {
  if (sequence == 0) return;
  for (std::deque<Frame>* queue : {&urgent_, &bulk_}) {
    std::erase_if(*queue, [&](const Frame& frame) {
      if (frame.header.sequence != sequence) return false;
      waiting_bytes_ -= frame.total;
      return true;
    });
  }
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    Frame& frame = frames_[i];
    if (frame.header.sequence != sequence || frame.done || frame.released) continue;
    frame.released = true;
    frame.payload = nullptr;
    if (first_frame_ + i != current_) continue;
    waiting_bytes_ -= frame.total - frame.begun * frame.unit;
    current_ = kNoFrame;
    skip(first_frame_ + i, frame);
  }
}

// --- choosing the next packet ---

// Return whether the path is presumed dead; only probes are sent then.
bool UdpSender::silent() const { return tries_ >= 3; }

bool UdpSender::allowed(std::int64_t now_ns) {
  if (last_words_) return true;
  if (silent()) return false;
  // Without an open frame only copies of confirmed data are in flight. No timer waits for them, so
  // they must not keep the next frame from being sent.
  const bool full = in_flight_bytes_ >= std::min(congestion_.window(), peer_window_) ||
                    in_flight_packets_ >= kMostInFlight;
  if (full && open_frames_ > 0) {
    congestion_.was_limited();
    return false;
  }
  paced_ = !congestion_.may_send(now_ns);
  return !paced_;
}

bool UdpSender::may_begin(std::uint32_t total) const {
  return open_frames_ == 0 ||
         (frames_.size() < kUdpOpenFrames && open_bytes_ + total <= kUdpOpenBytes);
}

UdpSender::Piece UdpSender::advance(std::uint64_t number, Frame& frame) {
  const std::uint32_t fragment = frame.begun++;
  const std::uint32_t bytes = frame.bytes(fragment);
  waiting_bytes_ -= bytes;
  unconfirmed_bytes_ += bytes;
  frame.unconfirmed_bytes += bytes;
  counters_.bytes += bytes;
  current_ = frame.begun < frame.count ? number : current_ == number ? kNoFrame : current_;
  if (frame.begun == frame.count) ++counters_.frames;
  return Piece{number, fragment, static_cast<std::uint16_t>(bytes), Origin::kFresh};
}

UdpSender::Piece UdpSender::begin(std::deque<Frame>& queue, std::int64_t now_ns) {
  if (open_frames_++ == 0) quiet_since_ns_ = std::max(quiet_since_ns_, now_ns);
  Frame& frame = frames_.emplace_back(std::move(queue.front()));
  queue.pop_front();
  open_bytes_ += frame.total;
  frame.unit = static_cast<std::uint16_t>(unit_);
  frame.count = (frame.total + frame.unit - 1) / frame.unit;
  frame.have = UdpBits(frame.count);
  return advance(first_frame_ + frames_.size() - 1, frame);
}

bool UdpSender::next_lost(Piece* piece) {
  while (!lost_.empty()) {
    *piece = lost_.front();
    lost_.pop_front();
    lost_bytes_ -= piece->bytes;
    Frame* frame = find(piece->frame);
    if (frame == nullptr || frame->have.test(piece->fragment)) continue;
    if (!frame->released) return true;
    skip(piece->frame, *frame);
  }
  return false;
}

bool UdpSender::next_fresh(Piece* piece, std::int64_t now_ns) {
  if (!urgent_.empty() && may_begin(kHeader)) {
    *piece = begin(urgent_, now_ns);
  } else if (Frame* frame = find(current_)) {
    *piece = advance(current_, *frame);
  } else if (!bulk_.empty() && may_begin(bulk_.front().total)) {
    *piece = begin(bulk_, now_ns);
  } else {
    return false;
  }
  return true;
}

// Choose the packet for a probe: the oldest in flight.
bool UdpSender::next_copy(Piece* piece) {
  while (copied_ < records_.size()) {
    const Record& record = records_[copied_++];
    Frame* frame = find(record.piece.frame);
    if (record.state != State::kInFlight || frame == nullptr) continue;
    *piece = record.piece;
    piece->origin = Origin::kCopy;
    if (record.piece.fragment == kSkip) return true;
    if (frame->have.test(record.piece.fragment)) continue;
    if (!frame->released) return true;
    if (frame->skipping) continue;
    frame->skipping = true;
    *piece = Piece{record.piece.frame, kSkip, 0, Origin::kSkip};
    return true;
  }
  return false;
}

bool UdpSender::next_piece(Piece* piece, std::int64_t now_ns) {
  for (;;) {
    if (!skips_.empty()) {
      *piece = Piece{skips_.front(), kSkip, 0, Origin::kSkip};
      skips_.pop_front();
      if (find(piece->frame) != nullptr) return true;
      continue;
    }
    if (next_lost(piece)) return true;
    if (!skips_.empty()) continue;  // the lost data had been released
    return (probes_ > 0 && next_copy(piece)) || next_fresh(piece, now_ns);
  }
}

bool UdpSender::next(UdpPacket& packet, std::int64_t now_ns) {
  paced_ = false;
  const bool probing = probes_ > 0;
  if (!probing) {
    const bool any = !skips_.empty() || !lost_.empty() || !urgent_.empty() ||
                     current_ != kNoFrame || !bulk_.empty();
    if (!any || !allowed(now_ns)) return false;
  }
  Piece piece;
  if (!next_piece(&piece, now_ns)) {
    probes_ = 0;
    return false;
  }
  if (probing) --probes_;
  fill(packet, piece, now_ns);
  return true;
}

void UdpSender::fill(UdpPacket& packet, const Piece& piece, std::int64_t now_ns) {
  const Frame& frame = *find(piece.frame);
  packet.header = UdpHeader{};
  packet.header.number = static_cast<std::uint32_t>(first_record_ + records_.size());
  packet.header.frame = static_cast<std::uint32_t>(piece.frame);
  packet.parts = {};
  if (piece.fragment == kSkip) {
    packet.header.kind = UdpKind::kSkip;
    ++counters_.skips;
  } else {
    const std::uint32_t offset = piece.fragment * frame.unit;
    packet.header.unit = frame.unit;
    packet.header.total = frame.total;
    packet.header.offset = offset;
    if (offset == 0) {
      packet.parts[0] = std::as_bytes(std::span(&frame.header, 1));
      packet.parts[1] = {frame.payload, piece.bytes - kHeader};
    } else {
      packet.parts[1] = {frame.payload + (offset - kHeader), piece.bytes};
    }
  }
  if (piece.origin == Origin::kLost || piece.origin == Origin::kCopy) ++counters_.resent;
  ++counters_.packets;
  records_.push_back(Record{now_ns, piece, State::kInFlight});
  in_flight_bytes_ += packet.bytes();
  ++in_flight_packets_;
  congestion_.sent(packet.bytes(), now_ns);
  last_sent_ns_ = now_ns;
}

void UdpSender::take_back() {
  const Record record = records_.back();
  records_.pop_back();
  const std::size_t bytes = sizeof(UdpHeader) + record.piece.bytes;
  in_flight_bytes_ -= bytes;
  --in_flight_packets_;
  congestion_.took_back(bytes);
  --counters_.packets;
  if (record.piece.origin == Origin::kLost || record.piece.origin == Origin::kCopy)
    --counters_.resent;
  if (record.piece.fragment == kSkip) {
    --counters_.skips;
    skips_.push_front(record.piece.frame);
  } else if (record.piece.origin == Origin::kCopy) {
    ++probes_;
    copied_ = 0;
  } else {
    lost_.push_front(record.piece);
    lost_bytes_ += record.piece.bytes;
  }
}

void UdpSender::last_words() {
  last_words_ = true;
  bulk_.clear();
  skips_.clear();
  lost_.clear();
  waiting_bytes_ = lost_bytes_ = 0;
  current_ = kNoFrame;
  probes_ = 0;
  for (const Frame& frame : urgent_) waiting_bytes_ += frame.total;
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    if (!frames_[i].done && frames_[i].total == kHeader)
      repeat(Piece{first_frame_ + i, 0, static_cast<std::uint16_t>(kHeader), Origin::kLost});
  }
}

}  // namespace slackline
