// Access of tests to the private state of a link.
#pragma once

#include <algorithm>
#include <string>

#include "../src/engine/link.h"

namespace slackline {

struct LinkView {
  // Append that state as bytes on which the link's further behaviour depends.
  static void write(const Link& link, std::string& state) {
    const auto put = [&](auto value) {
      state.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    put(link.next_sequence_);
    put(link.expected_);
    for (const std::uint32_t sequence : link.early_) put(sequence);
    put('|');
    for (const Link::Retained& r : link.retained_) {
      put(r.header.sequence);
      put(r.rail == nullptr ? -1 : r.rail->index);
      put(r.request != nullptr);
    }
    put('|');
    for (const auto& [header, text] : link.control_) put(header.kind);
    put('|');
    put(link.acknowledgement_owed_);
    put(link.acknowledge_now_);
    for (const auto& [priority, queue] : link.ready_) put(queue.size());
  }

  // Return whether every frame that the peer has not acknowledged is on a rail that is up, or no
  // rail is up. The link keeps this invariant after every event.
  static bool every_frame_has_rail(const Link& link) {
    const auto is_up = [](const auto& rail) { return rail->up(); };
    return link.down || std::ranges::none_of(link.rails_, is_up) ||
           std::ranges::all_of(link.retained_, [](const Link::Retained& r) {
             return r.rail != nullptr && r.rail->up();
           });
  }
};

}  // namespace slackline
