#include "link.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "executor.h"
#include "headers.h"
#include "links.h"
#include "memory_port.h"
#include "notices.h"
#include "wire_port.h"
#include "worker.h"

namespace slackline {
namespace {

constexpr std::size_t kLongestText = 4096;

std::unique_ptr<Port> make_port(const Link::Uses& uses, Link& link, const LinkOptions& options) {
  if (options.shared) return std::make_unique<MemoryPort>(uses, link);
  return std::make_unique<WirePort>(uses, link, options);
}

}  // namespace

Link::Link(const Uses& uses, int index, std::string name, const LinkOptions& options)
    : uses_(uses),
      index_(index),
      name_(std::move(name)),
      options_(options),
      port_(make_port(uses, *this, options)) {}

Link::~Link() = default;

// Operations that were posted before took the link for shared memory and promised the peer nothing.
// The peer asks them for a grant as soon as it needs one.
void Link::use_wires() {
  if (made() || down) return;
  port_ =
      std::make_unique<WirePort>(uses_, *this, LinkOptions{true, options_.first_sequence, false});
}

void Link::add_rail(int index, std::string name, std::unique_ptr<WireRail> rail) {
  WirePort* port = wires_of(*this);
  if (port == nullptr) throw std::logic_error("a link in shared memory has no rails over wires");
  port->add_rail(index, std::move(name), std::move(rail));
}

void Link::share(std::unique_ptr<ShmRail> rail) {
  auto port = std::make_unique<MemoryPort>(uses_, *this);
  port->connect(std::move(rail));
  port_ = std::move(port);
  options_.shared = true;
  connected();
}

void Link::want() {
  if (wanted() || down) return;
  first_.wanted = true;
  uses_.links.events().announce(*this, -1, "wanted", "an operation needs the peer");
}

void Link::connected() {
  if (!made()) {
    uses_.links.note_made(*this);
    tell_past(*this, uses_.membership);
  }
  first_.made = true;
  uses_.links.mark_dirty(*this);
}

bool Link::idle() const {
  if (!made()) return true;
  return port_->idle() && control_.empty() && queue_.empty();
}

void Link::unblock(Request& request, int peer) {
  auto& credit_blocked = request.flows[static_cast<std::size_t>(peer)].credit_blocked;
  if (credit_blocked.empty()) return;
  queue_.push_again(request, credit_blocked);
  uses_.links.mark_dirty(*this);
}

void Link::pump() {
  if (down || !made()) return;
  while (!control_.empty()) {
    if (!port_->control(control_.front().first, control_.front().second)) return;
    control_.pop_front();
  }
  bool room = true;
  queue_.send_all([&](SendItem& item) {
    Port::Outcome outcome = transmit(item);
    while (outcome == Port::Outcome::kNoRoom && (room = port_->make_room()))
      outcome = transmit(item);
    if (outcome == Port::Outcome::kBlocked)
      item.request->flows[item.step->peer].credit_blocked.push_back(std::move(item));
    return outcome != Port::Outcome::kNoRoom;
  });
  if (room) port_->push();
}

Port::Outcome Link::transmit(const SendItem& item) {
  Request& request = *item.request;
  Chunk& chunk = request.chunks[item.chunk];
  const Step& step = *item.step;
  const std::size_t first = item.segment * chunk.segment_count;
  const std::size_t elements =
      std::min(chunk.segment_count, chunk.count - std::min(chunk.count, first));
  const bool wide = request.wide && !step.complete;
  const std::size_t item_size = wide ? sizeof(float) : request.item_size;
  const std::byte* base =
      step.complete ? (step.own_data ? chunk.source : chunk.target)
                    : (step.own_data && !wide && !request.offloaded ? chunk.source : chunk.partial);
  wire::Header header = header_for(request, wire::FrameKind::kData);
  header.chunk = chunk.step_list->chunk;
  header.offset = first * request.item_size;
  header.total = total_for(request, chunk);
  if (!step.complete) header.flags |= wire::kFlagPartial;
  const std::byte* data = elements == 0 ? nullptr : base + first * item_size;
  const std::size_t bytes = elements * item_size;
  if (request.group->worker != nullptr && elements > 0)
    data = Worker::keep(request, first * item_size, bytes);
  const Port::Outcome outcome = port_->send(item, header, data, bytes);
  if (outcome == Port::Outcome::kSent && step.copied)
    uses_.executor.copied(request, item.chunk, item.segment);
  return outcome;
}

void Link::control(const wire::Header& header, const std::string& text) {
  if (down) return;
  const std::string short_text = text.substr(0, kLongestText);
  if (!made() || !control_.empty() || !port_->control(header, short_text))
    control_.emplace_back(header, short_text);
  if (made()) uses_.links.mark_dirty(*this);
}

void Link::grant(Request& request, int peer) {
  wire::Header header = header_for(request, wire::FrameKind::kGrant);
  if (request.key.role != kRoleCollective) header.flags |= wire::kFlagToSender;
  header.total = total_for(request);
  header.offset = request.flows[static_cast<std::size_t>(peer)].promised;
  control(header);
}

bool Link::reap() {
  if (down || !port_->reap()) return false;
  uses_.links.events().announce(*this, -1, "down", failure.message);
  return true;
}

bool Link::give_up(const std::string& reason) {
  if (down) return false;
  failure = Failure{Fault::kPeer, reason, -1, -1, -1, -1};
  down = true;
  port_->close();
  uses_.links.events().announce(*this, -1, "down", reason);
  return true;
}

void Link::forget(const std::string& reason) {
  if (made() || down) return;
  failure = Failure{Fault::kPeer, reason, -1, -1, -1, -1};
  down = true;
}

void Link::end_without_memory() noexcept {
  port_->end_without_memory();
  uses_.links.mark_dirty(*this);
}

std::string Link::condition() const {
  if (made() || down) return port_->condition();
  return "no connection to it has been made" +
         (first_.obstacle.empty() ? "" : " (" + first_.obstacle + ")");
}

}  // namespace slackline
