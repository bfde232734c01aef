#include "channel.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "executor.h"
#include "headers.h"
#include "links.h"
#include "slackline/crc32c.h"

namespace slackline {
namespace {

constexpr std::uint32_t kAcknowledgeFrames = 64;
constexpr std::uint64_t kAcknowledgeBytes = 512u << 10;
// Limit of frames that the peer has not acknowledged; no payload is sent beyond it. Replies and
// aborts may exceed the limit, because they are few.
constexpr std::size_t kMostRetained = 1u << 16;
// Limits at which the link to a peer is cut. They are far above the limits that an honest peer
// keeps to, because frames of several rails may overtake each other.
constexpr std::uint32_t kMostAhead = 4 * kMostRetained;
constexpr std::size_t kMostAnswers = 1u << 16;  // frames without a number that one rail queues

bool before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

void seal(wire::Header& header) {
  header.header_checksum = crc32c(0, &header, sizeof header - sizeof header.header_checksum);
}

}  // namespace

Channel::Channel(const Link::Uses& uses, Link& link, std::uint32_t first_sequence)
    : uses_(uses), link_(link), numbers_{first_sequence, first_sequence, {}} {}

Channel::~Channel() {
  for (Retained& r : retained_) {
    if (r.owned != nullptr) uses_.memory.buffers().give(r.owned);
  }
  for (auto& rail : rails_.all()) rail->wire->abandon(uses_.sink);
}

void Channel::lend(LinkRail& rail, wire::Header& header, const std::byte* payload,
                   std::uint32_t length, Lease lease) {
  put(rail, header, payload, nullptr, length, std::move(lease));
}

void Channel::copy(LinkRail& rail, wire::Header& header, const std::byte* payload,
                   std::uint32_t length, Lease sender) {
  std::byte* owned = nullptr;
  if (length > 0) {
    owned = uses_.memory.buffers().take(length);
    std::memcpy(owned, payload, length);
  }
  try {
    put(rail, header, owned, owned, length, nullptr);
  } catch (const std::bad_alloc&) {
    if (owned != nullptr) uses_.memory.buffers().give(owned);
    throw;
  }
  if (sender != nullptr)
    departing_.push_back({header.sequence, std::move(sender), &rail, rail.wire->enqueued()});
}

void Channel::put(LinkRail& rail, wire::Header& header, const std::byte* payload, std::byte* owned,
                  std::uint32_t length, Lease lease) {
  header.length = length;
  header.job = rail.wire->job();
  header.sequence =
      header.kind == static_cast<std::uint8_t>(wire::FrameKind::kAck) ? 0 : numbers_.next;
  header.acknowledge = numbers_.expected;
  header.payload_checksum = rail.wire->checksums() && length > 0 ? crc32c(0, payload, length) : 0;
  seal(header);
  // A frame that no memory is left for takes no number: the peer would wait for it for ever.
  if (header.sequence != 0)
    retained_.push_back(Retained{header, payload, owned, length, std::move(lease), &rail});
  try {
    rail.wire->enqueue(header, payload, length);
  } catch (const std::bad_alloc&) {
    if (header.sequence != 0) {
      rail.wire->release(header.sequence);
      retained_.pop_back();
    }
    throw;
  }
  if (header.sequence != 0 && ++numbers_.next == 0) numbers_.next = 1;
  unacknowledged_ = {};
  if (header.sequence == 0) limit_answers(rail);
}

void Channel::send_unnumbered(LinkRail& rail, wire::Header header) {
  header.job = rail.wire->job();
  header.acknowledge = numbers_.expected;
  seal(header);
  rail.wire->enqueue(header, nullptr, 0);
  limit_answers(rail);
  uses_.links.mark_dirty(link_);
}

bool Channel::full() const { return retained_.size() >= kMostRetained; }

void Channel::condemn(const std::string& reason) {
  if (!condemned_.empty()) return;
  condemned_ = reason;
  for (auto& rail : rails_.all()) rail->wire->give_up(reason);
  uses_.links.mark_dirty(link_);
}

bool Channel::may_come(const wire::Header& header) {
  const auto kind = static_cast<wire::FrameKind>(header.kind);
  if (header.sequence == 0) {
    if (kind == wire::FrameKind::kAck || kind == wire::FrameKind::kProbe) return true;
    condemn("it sent a frame of kind " + std::to_string(header.kind) + " without a number");
    return false;
  }
  const std::uint32_t expected = numbers_.expected;
  if (before(header.sequence, expected) || header.sequence - expected <= kMostAhead) return true;
  condemn("it sent frame " + std::to_string(header.sequence) + " although frame " +
          std::to_string(expected) + " had not arrived: at most " + std::to_string(kMostAhead) +
          " frames may overtake one frame");
  return false;
}

// Cut the link to a peer that makes this rank answer and does not read the answers. Numbered frames
// in the queue are also in `retained_`. The number of queued frames minus the number of retained
// ones is therefore at most the number of queued answers (ACKs and probes).
void Channel::limit_answers(const LinkRail& rail) {
  const std::size_t queued = rail.wire->queued_frames();
  if (queued > retained_.size() + kMostAnswers)
    condemn(
        "it does not read the answers to its frames: " + std::to_string(queued - retained_.size()) +
        " answers wait to be sent, at most " + std::to_string(kMostAnswers) + " may");
}

bool Channel::is_new(std::uint32_t sequence) const {
  return sequence == 0 ||
         !(before(sequence, numbers_.expected) || numbers_.early.contains(sequence));
}

bool Channel::admit(std::uint32_t sequence) {
  if (sequence == 0) return true;
  if (!is_new(sequence)) {
    ++counters_.duplicates_dropped;
    // The peer resent the frame because the acknowledgement was lost with a rail.
    unacknowledged_.now = true;
    return false;
  }
  if (sequence == numbers_.expected) {
    // The acknowledgement of a long frame that arrived out of order did not cover the frame's
    // number, so acknowledge again now.
    unacknowledged_.now = unacknowledged_.now || !numbers_.early.empty();
    do {
      if (++numbers_.expected == 0) numbers_.expected = 1;
    } while (numbers_.early.erase(numbers_.expected) > 0);
  } else {
    numbers_.early.insert(sequence);
  }
  ++unacknowledged_.frames;
  return true;
}

void Channel::note_payload(std::uint32_t bytes) {
  unacknowledged_.bytes += bytes;
  unacknowledged_.owed = unacknowledged_.owed || bytes > kCopiedBytes;
}

bool Channel::must_acknowledge() const {
  return unacknowledged_.now || unacknowledged_.frames >= kAcknowledgeFrames ||
         unacknowledged_.bytes >= kAcknowledgeBytes;
}

void Channel::acknowledged(std::uint32_t next_expected) {
  while (!retained_.empty() && before(retained_.front().header.sequence, next_expected)) {
    Retained r = std::move(retained_.front());
    retained_.pop_front();
    for (auto& rail : rails_.all()) rail->wire->release(r.header.sequence);
    if (r.owned != nullptr) uses_.memory.buffers().give(r.owned);
    if (r.lease) uses_.executor.sent(*r.lease);
  }
  if (departing_.empty()) return;
  end_sends(
      [next_expected](const Departing& each) { return before(each.sequence, next_expected); });
}

void Channel::note_departures() {
  if (departing_.empty()) return;
  end_sends([](const Departing& each) {
    return each.rail != nullptr && each.rail->wire->departed(each.place);
  });
}

template <class Gone>
void Channel::end_sends(const Gone& gone) {
  // The end of a request may change `departing_`, so the requests are taken out first. Their vector
  // keeps its memory from call to call.
  std::vector<Lease> ended = std::exchange(ended_sends_, {});
  ended.reserve(departing_.size());  // so that a lack of memory leaves no half moved entries
  std::erase_if(departing_, [&](Departing& each) {
    if (!gone(each)) return false;
    ended.push_back(std::move(each.sender));
    return true;
  });
  for (const Lease& sender : ended) uses_.executor.sent(*sender);
  ended.clear();
  ended_sends_ = std::move(ended);
}

void Channel::forget(const Request& request) {
  std::erase_if(departing_, [&](const Departing& each) { return each.sender.get() == &request; });
  for (Retained& r : retained_) {
    if (r.lease.get() != &request) continue;
    r.lease.reset();
    if (r.owned != nullptr) continue;
    // The frame may have to be resent although its memory returns to the caller, so copy the
    // payload.
    try {
      r.owned = uses_.memory.buffers().take(r.length);
    } catch (const std::bad_alloc&) {
      r.payload = nullptr;
      r.length = 0;
      link_.end_without_memory();
      throw;
    }
    std::memcpy(r.owned, r.payload, r.length);
    for (auto& rail : rails_.all()) rail->wire->repoint(r.header.sequence, r.owned);
    r.payload = r.owned;
  }
}

void Channel::finish_sends() {
  for (Retained& r : retained_) {
    if (r.lease) uses_.executor.sent(*std::exchange(r.lease, nullptr));
  }
  for (const Departing& each : std::exchange(departing_, {})) uses_.executor.sent(*each.sender);
}

// Send a frame again over another rail. Borrowed memory may have been overwritten by a result of
// the same operation. Such a result can only exist if the peer has received the frame, so then only
// the frame's number needs to be acknowledged.
void Channel::resend(Retained& frame, LinkRail& rail) {
  frame.rail = &rail;
  ++counters_.frames_resent;
  ++rail.frames_resent;
  frame.header.job = rail.wire->job();
  frame.header.acknowledge = numbers_.expected;
  // Copy the payload now, because a result that is in flight could still overwrite it while the
  // frame waits in the rail's queue.
  if (frame.lease != nullptr && frame.owned == nullptr) {
    frame.owned = uses_.memory.buffers().take(frame.length);
    std::memcpy(frame.owned, frame.payload, frame.length);
    frame.payload = frame.owned;
  }
  const bool intact = frame.length == 0 || frame.header.payload_checksum == 0 ||
                      crc32c(0, frame.payload, frame.length) == frame.header.payload_checksum;
  wire::Header header = frame.header;
  if (!intact) {
    header = blank_header(wire::FrameKind::kAck);
    header.job = rail.wire->job();
    header.sequence = frame.header.sequence;
    header.acknowledge = numbers_.expected;
  } else if (rail.wire->checksums() && header.payload_checksum == 0 && frame.length > 0) {
    header.payload_checksum = crc32c(0, frame.payload, frame.length);
  }
  seal(header);
  rail.wire->enqueue(header, intact ? frame.payload : nullptr, intact ? frame.length : 0);
}

void Channel::place_frames() {
  unacknowledged_.now = true;  // acknowledgements may have been lost with a rail
  uses_.links.mark_dirty(link_);
  for (Retained& r : retained_) {
    if (r.rail != nullptr && r.rail->up()) continue;
    const bool gone = r.rail == nullptr || r.rail->wire->failure();
    if (LinkRail* other = rails_.pick(uses_.clock.now(), true)) {
      if (!gone) r.rail->wire->release(r.header.sequence);
      resend(r, *other);
    } else if (gone) {
      r.rail = nullptr;
    }
  }
}

void Channel::abandon(const LinkRail& rail) {
  for (Retained& r : retained_) {
    if (r.rail == &rail) r.rail = nullptr;
  }
  await_acknowledgement(rail);
}

void Channel::await_acknowledgement(const LinkRail& rail) {
  for (Departing& each : departing_) {
    if (each.rail == &rail) each.rail = nullptr;
  }
}

bool Channel::carries(const LinkRail& rail) const {
  return std::ranges::any_of(retained_, [&](const Retained& r) { return r.rail == &rail; });
}

}  // namespace slackline
