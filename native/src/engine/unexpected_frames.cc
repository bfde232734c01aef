#include "unexpected_frames.h"

#include <algorithm>
#include <new>
#include <utility>

#include "link.h"

namespace slackline {

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
  link.count_unposted();
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

void UnexpectedFrames::used(const Unexpected& frame) { frame.link->uncount_unposted(); }

void UnexpectedFrames::drop(const Unexpected& frame) {
  frame.link->uncount_unposted();
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

bool UnexpectedFrames::refer_to_memory_of(const Link& link) const {
  return std::ranges::any_of(frames_, [&](const auto& entry) {
    return std::ranges::any_of(entry.second, [&](const Unexpected& frame) {
      return frame.link == &link && (frame.header.flags & wire::kFlagReference) != 0;
    });
  });
}

}  // namespace slackline
