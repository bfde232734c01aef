// The state of a world as bytes. Two worlds whose states have equal bytes behave alike from then
// on.
#include <string>

#include "../../src/engine/wire_port.h"
#include "world.h"

namespace slackline::model {
namespace {

template <class T>
void put(std::string& state, const T& value) {
  state.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Append the state of a link on which its further behaviour depends.
void put_link(std::string& state, const Link& link) {
  const Channel& channel = wires_of(link)->channel();
  put(state, channel.numbers().next);
  put(state, channel.numbers().expected);
  for (const std::uint32_t sequence : channel.numbers().early) put(state, sequence);
  put(state, '|');
  for (const Channel::Retained& r : channel.retained()) {
    put(state, r.header.sequence);
    put(state, r.rail == nullptr ? -1 : r.rail->index);
    put(state, r.lease != nullptr);
  }
  put(state, '|');
  for (const auto& [header, text] : link.waiting_frames()) put(state, header.kind);
  put(state, '|');
  put(state, channel.unacknowledged().owed);
  put(state, channel.unacknowledged().now);
  for (const auto& [priority, queue] : link.queue().items()) put(state, queue.size());
}

}  // namespace

std::string World::state() {
  std::string state;
  state.reserve(512);
  put(state, failures_);
  put(state, suspicions_);
  put(state, changes_of_mind_);
  for (int e = 0; e < 2; ++e) {
    End& end = ends_[static_cast<std::size_t>(e)];
    put(state, end.prefers_second);
    put(state, end.shares != nullptr && end.shares->known);
    for (const auto* list : {&end.sends, &end.receives}) {
      for (const auto& memory : *list) {
        put(state, memory->request->finished());
        for (const Chunk& chunk : memory->request->chunks) {
          for (const Segment& segment : chunk.segments) put(state, segment.position);
        }
      }
    }
    put_link(state, *end.link);
    for (int r = 0; r < kRails; ++r) {
      MemoryRail* here = rail(e, r);
      put(state, here != nullptr);
      if (here == nullptr) continue;
      const LinkRail& known = *known_rail(e, r);
      put(state, known.state);
      put(state, known.probe_sent_ns != 0);
      put(state, here->in().writer_gone);
      put(state, here->out().reader_gone);
      for (const Flying& frame : here->in().frames) {
        put(state, frame.header.kind);
        put(state, frame.header.sequence);
        put(state, frame.header.acknowledge);
        put(state, frame.header.flags);
        put(state, frame.header.chunk);
        put(state, frame.header.length);
        put(state, frame.begun);
        put(state, frame.begun && !frame.owned);
        put(state, frame.released);
        const bool probe = frame.header.kind == static_cast<std::uint8_t>(wire::FrameKind::kProbe);
        const bool answer = (frame.header.flags & wire::kFlagAnswer) != 0;
        const LinkRail* asker = known_rail(answer ? e : 1 - e, frame.header.chunk);
        put(state, probe && asker != nullptr &&
                       asker->probe_sent_ns == static_cast<std::int64_t>(frame.header.offset));
      }
      put(state, '|');
    }
  }
  for (const auto& dialled : dialled_) {
    put(state, dialled != nullptr);
    if (dialled != nullptr) put(state, dialled->out->frames.size());
  }
  return state;
}

}  // namespace slackline::model
