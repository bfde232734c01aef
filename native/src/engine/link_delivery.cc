// Exactly-once delivery: detection of duplicates, and acknowledgements.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "executor.h"
#include "headers.h"
#include "link.h"
#include "links.h"

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
    // The peer resent the frame because the acknowledgement was lost with a rail.
    acknowledge_now_ = true;
    return false;
  }
  if (sequence == expected_) {
    // The acknowledgement of a long frame that arrived out of order did not cover the frame's
    // number, so acknowledge again now.
    acknowledge_now_ = acknowledge_now_ || !early_.empty();
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

void Link::note_arrival(std::uint32_t bytes) {
  unacknowledged_bytes_ += bytes;
  acknowledgement_owed_ = acknowledgement_owed_ || bytes > kOwnedBytes;
}

void Link::acknowledged(std::uint32_t next_expected) {
  while (!retained_.empty() && before(retained_.front().header.sequence, next_expected)) {
    Retained r = std::move(retained_.front());
    retained_.pop_front();
    for (auto& rail : rails_) rail->wire->release(r.header.sequence);
    if (r.owned != nullptr) uses_.memory.buffers().give(r.owned);
    if (r.request) uses_.executor.sent(*r.request);
  }
  if (!departing_.empty()) note_arrivals(next_expected);
}

bool Link::within_window(std::uint32_t sequence) {
  if (sequence == 0 || before(sequence, expected_) || sequence - expected_ <= kMostAhead)
    return true;
  condemn("it sent frame " + std::to_string(sequence) + " although frame " +
          std::to_string(expected_) + " had not arrived: at most " + std::to_string(kMostAhead) +
          " frames may overtake one frame");
  return false;
}

bool Link::rightly_numbered(const wire::Header& header) {
  const auto kind = static_cast<wire::FrameKind>(header.kind);
  if (shared_ || header.sequence != 0 || kind == wire::FrameKind::kAck ||
      kind == wire::FrameKind::kProbe)
    return true;
  condemn("it sent a frame of kind " + std::to_string(header.kind) + " without a number");
  return false;
}

// Numbered frames in the queue are also in `retained_`. The number of queued frames minus the
// number of retained ones is therefore at most the number of queued answers (ACKs and probes).
void Link::limit_answers(const LinkRail& rail) {
  const std::size_t queued = rail.wire->queued_frames();
  if (queued > retained_.size() + kMostAnswers)
    condemn(
        "it does not read the answers to its frames: " + std::to_string(queued - retained_.size()) +
        " answers wait to be sent, at most " + std::to_string(kMostAnswers) + " may");
}

void Link::arrived_early(std::uint16_t flags, std::uint64_t bytes) {
  if ((flags & wire::kFlagEager) == 0 || shared_) return;
  eager_arrived_ += bytes + kEagerFrame;
  const std::uint64_t kept = eager_arrived_ - eager_consumed_;
  if (kept > kEagerPool)
    condemn("it sent " + std::to_string(kept) +
            " bytes, headers included, that nothing had asked "
            "for: " +
            std::to_string(kEagerPool) + " may wait at a time");
}

void Link::count_unposted() {
  if (++unposted_ > kMostHeld && !shared_)
    condemn("it sent " + std::to_string(unposted_) + " frames of operations that are not posted: " +
            std::to_string(kMostHeld) + " may wait at a time");
}

// Cut the link for good, because the peer violates the protocol. The link is not re-established.
void Link::condemn(const std::string& reason) {
  if (condemned()) return;
  condemned_ = reason;
  cut(reason);
}

void Link::consumed_early(std::uint16_t flags, std::uint64_t bytes) {
  if ((flags & wire::kFlagEager) == 0 || shared_) return;
  eager_consumed_ += bytes + kEagerFrame;
  if (eager_consumed_ - eager_reported_ < kEagerPool / 4) return;
  eager_reported_ = eager_consumed_;
  wire::Header header = blank_header(wire::FrameKind::kCredit);
  header.offset = eager_consumed_;
  control(header);
}

// End the sends whose frames would reach the peer even if this process ended now.
void Link::note_departures() {
  end_sends([](const Departing& each) {
    return each.rail != nullptr && each.rail->wire->departed(each.place);
  });
}

// End the sends whose frames the peer has received: those before frame `next_expected`.
void Link::note_arrivals(std::uint32_t next_expected) {
  end_sends(
      [next_expected](const Departing& each) { return before(each.sequence, next_expected); });
}

template <class Gone>
void Link::end_sends(const Gone& gone) {
  // The end of a request may change `departing_`, so the requests are taken out first. Their vector
  // keeps its memory from call to call.
  std::vector<std::shared_ptr<Request>> ended = std::exchange(ended_sends_, {});
  ended.reserve(departing_.size());  // so that a lack of memory leaves no half moved entries
  std::erase_if(departing_, [&](Departing& each) {
    if (!gone(each)) return false;
    ended.push_back(std::move(each.request));
    return true;
  });
  for (const auto& request : ended) uses_.executor.sent(*request);
  ended.clear();
  ended_sends_ = std::move(ended);
}

// Send what the rails hold, with the acknowledgement that is due, if any: in one burst.
void Link::flush_rails() {
  if (rails_.empty()) return;
  if (acknowledge_now_ || unacknowledged_frames_ >= kAcknowledgeFrames ||
      unacknowledged_bytes_ >= kAcknowledgeBytes) {
    control(blank_header(wire::FrameKind::kAck));
  }
  for (auto& rail : rails_) rail->wire->flush(uses_.clock.now());
}

void Link::flush() {
  if (down) return;
  if (shm_) {
    shm_->notify();
    return;
  }
  flush_rails();
  if (!departing_.empty()) note_departures();
}

}  // namespace slackline
