// Exactly once: what has arrived, what is acknowledged, what is sent again, and when a link is
// down.
#include <algorithm>
#include <optional>
#include <utility>

#include "clock.h"
#include "engine_impl.h"
#include "link.h"
#include "slackline/crc32c.h"

namespace slackline {
namespace {

constexpr std::uint32_t kAcknowledgeFrames = 64;
constexpr std::uint64_t kAcknowledgeBytes = 512u << 10;

bool before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

}  // namespace

bool Link::is_new(std::uint32_t sequence) const {
  return sequence == 0 || !(before(sequence, expected_) || early_.contains(sequence));
}

bool Link::admit(std::uint32_t sequence) {
  if (sequence == 0) return true;
  if (!is_new(sequence)) {
    ++counters.duplicates_dropped;
    bulk_unacknowledged_ = true;  // the peer resent it: our acknowledgement was lost with a rail
    return false;
  }
  if (sequence == expected_) {
    // A long frame that came early was acknowledged by a number that did not cover it yet.
    bulk_unacknowledged_ = bulk_unacknowledged_ || !early_.empty();
    do {
      if (++expected_ == 0) expected_ = 1;
    } while (early_.erase(expected_) > 0);
  } else {
    early_.insert(sequence);
  }
  ++unacknowledged_frames_;
  return true;
}

std::optional<wire::Header> Link::take_due_bye() {
  if (byes_.empty()) return std::nullopt;
  const wire::Header bye = byes_.front();
  if (bye.sequence != 0 && !before(bye.sequence, expected_)) return std::nullopt;
  byes_.pop_front();
  return bye;
}

void Link::note_bulk_arrival(std::uint32_t bytes) {
  unacknowledged_bytes_ += bytes;
  if (bytes > kOwnedBytes) bulk_unacknowledged_ = true;
}

void Link::acknowledged(std::uint32_t next_expected) {
  while (!retained_.empty() && before(retained_.front().header.sequence, next_expected)) {
    Retained r = std::move(retained_.front());
    retained_.pop_front();
    for (auto& rail : streams_) rail->release(r.header.sequence);
    if (r.owned != nullptr) engine_.give_buffer(r.owned);
    if (r.job) engine_.send_finished(*r.job);
  }
}

void Link::eager_consumed(std::uint64_t bytes) {
  eager_consumed_ += bytes;
  if (eager_consumed_ - eager_reported_ < kEagerPool / 4) return;
  eager_reported_ = eager_consumed_;
  wire::Header header = engine_.blank_header(wire::FrameKind::kCredit);
  header.offset = eager_consumed_;
  control(header);
}

void Link::settle() {
  if (down) return;
  if (shm_) {
    shm_->notify();
    return;
  }
  if (bulk_unacknowledged_ || unacknowledged_frames_ >= kAcknowledgeFrames ||
      unacknowledged_bytes_ >= kAcknowledgeBytes) {
    control(engine_.blank_header(wire::FrameKind::kAck));
  }
  for (auto& rail : streams_) rail->flush(now_ns());
}

// Borrowed memory may have been overwritten since: by a result of the same operation, which only
// exists because the peer has had this frame. The frame then only needs its number acknowledged.
void Link::resend(Retained& frame, WireRail& rail) {
  frame.rail = &rail;
  ++counters.frames_resent;
  if (frame.length == 0 || !rail.checksums() ||
      crc32c(0, frame.payload, frame.length) == frame.header.payload_checksum) {
    rail.enqueue(frame.header, frame.payload, frame.length);
    return;
  }
  wire::Header stub = engine_.blank_header(wire::FrameKind::kAck);
  stub.job = frame.header.job;
  stub.sequence = frame.header.sequence;
  stub.acknowledge = expected_;
  stub.header_checksum = crc32c(0, &stub, sizeof stub - sizeof stub.header_checksum);
  rail.enqueue(stub, nullptr, 0);
}

bool Link::reap() {
  if (down) return false;
  if (shm_) {
    if (shm_->failure()) {
      failure = shm_->failure();
      down = true;
      return true;
    }
    if (!shm_->peer_gone() || shm_->pending()) return false;
    if (!failure) failure = Failure{Fault::kPeer, "its process has ended", -1, -1, -1, -1};
    down = true;
    return true;
  }
  for (std::size_t i = 0; i < streams_.size();) {
    if (!streams_[i]->failure()) {
      ++i;
      continue;
    }
    const std::unique_ptr<WireRail> dead = std::move(streams_[i]);
    streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(i));
    ++counters.rails_lost;
    failure = dead->failure();
    engine_.rail_removed(dead->fd());
    dead->abandon(engine_);
    if (streams_.empty()) continue;
    bulk_unacknowledged_ = true;  // acknowledgements may have been lost with it
    engine_.mark_dirty(*this);
    for (Retained& r : retained_) {
      if (r.rail != dead.get()) continue;
      resend(r, *streams_[r.header.sequence % streams_.size()]);
    }
  }
  if (!streams_.empty()) return false;
  down = true;
  return true;
}

}  // namespace slackline
