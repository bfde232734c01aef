// The first rail of a link, which is made when an operation needs the peer.
#include "link.h"
#include "links.h"
#include "notices.h"

namespace slackline {
void Link::want() {
  if (made_ || wanted_ || down) return;
  wanted_ = true;
  uses_.links.announce(*this, -1, "wanted", "an operation needs the peer");
}

void Link::note_made() {
  if (!made_) {
    uses_.links.note_made(*this);
    tell_past(*this, uses_.membership);
  }
  made_ = true;
  uses_.links.mark_dirty(*this);
}

void Link::leave_to_parent() {
  if (shm_ != nullptr) shm_->leave_to_parent();
  for (const auto& rail : rails_) rail->wire->leave_to_parent();
}

void Link::set_shm(std::unique_ptr<ShmRail> rail) {
  shm_ = std::move(rail);
  shared_ = planned_shared_ = true;
  note_made();
}

// Operations that were posted before took the link for shared memory and promised the peer nothing.
// The peer asks them for a grant as soon as it needs one.
void Link::use_wires() {
  if (made_ || down) return;
  shared_ = false;
  reconnect_ = true;
}

}  // namespace slackline
