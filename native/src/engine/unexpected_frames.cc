#include "unexpected_frames.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "eager.h"
#include "link.h"

namespace slackline {
namespace {

// Limit of frames of operations that are not posted. It is far above the number of an honest peer,
// because frames of several rails may overtake each other.
constexpr std::size_t kMostUnposted = 2 * (EagerBytes::kPool / EagerBytes::kFrame + Asks::kMost);

}  // namespace

void UnexpectedFrames::keep(const Key& key, Link& link, const wire::Header& header,
                            const Payload& payload) {
  Unexpected frame{&link, header, {}};
  frame.payload.assign(payload.data, payload.data + payload.length);
  std::deque<Unexpected>& frames = frames_[key];
  try {
    frames.push_back(std::move(frame));
  } catch (const std::bad_alloc&) {
    if (frames.empty()) frames_.erase(key);  // each operation here has a frame
    throw;
  }
  count(link);
}

void UnexpectedFrames::count(Link& link) {
  if (++link.unposted <= kMostUnposted || link.port().rules().ungranted) return;
  link.port().condemn("it sent " + std::to_string(link.unposted) +
                      " frames of operations that are not posted: " +
                      std::to_string(kMostUnposted) + " may wait at a time");
}

const std::deque<Unexpected>* UnexpectedFrames::find(const Key& key) const {
  const auto found = frames_.find(key);
  return found == frames_.end() ? nullptr : &found->second;
}

std::deque<Unexpected> UnexpectedFrames::take(const Key& key) {
  const auto found = frames_.find(key);
  if (found == frames_.end()) return {};
  std::deque<Unexpected> taken = std::move(found->second);
  frames_.erase(found);
  return taken;
}

void UnexpectedFrames::used(const Unexpected& frame) { --frame.link->unposted; }

void UnexpectedFrames::drop(const Unexpected& frame) {
  --frame.link->unposted;
  if (frame.header.kind == static_cast<std::uint8_t>(wire::FrameKind::kData))
    frame.link->port().consumed_early(frame.header.flags, frame.header.length);
}

void UnexpectedFrames::drop_all(const Key& key) {
  for (const Unexpected& frame : take(key)) drop(frame);
}

void UnexpectedFrames::drop_group(std::uint32_t epoch) {
  for (const Key& key : keys_in(epoch)) drop_all(key);
}

std::vector<Key> UnexpectedFrames::keys_in(std::uint32_t epoch) const {
  std::vector<Key> found;
  for (const auto& [key, frames] : frames_) {
    if (key.epoch == epoch) found.push_back(key);
  }
  return found;
}

std::optional<Key> UnexpectedFrames::begun_by(int rank, std::uint32_t epoch,
                                              std::uint32_t role) const {
  for (const auto& [key, frames] : frames_) {
    if (key.epoch == epoch && key.role == role && frames.front().header.source == rank) return key;
  }
  return std::nullopt;
}

template <class Holds>
bool UnexpectedFrames::any_frame(const Holds& holds) const {
  return std::ranges::any_of(
      frames_, [&](const auto& entry) { return std::ranges::any_of(entry.second, holds); });
}

bool UnexpectedFrames::hold_any_of(const Link& link) const {
  return any_frame([&](const Unexpected& frame) { return frame.link == &link; });
}

bool UnexpectedFrames::refer_to_memory_of(const Link& link) const {
  return any_frame([&](const Unexpected& frame) {
    return frame.link == &link && (frame.header.flags & wire::kFlagReference) != 0;
  });
}

}  // namespace slackline
