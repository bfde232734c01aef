#include "arrivals.h"

#include <optional>
#include <utility>

#include "describe.h"
#include "headers.h"
#include "link.h"

namespace slackline {
namespace {

bool is_eager(const wire::Header& header) { return (header.flags & wire::kFlagEager) != 0; }

// A buffer that goes back to the pool at the end, unless it has another owner by then.
struct Returning {
  Returning(Buffers& pool, std::byte* buffer) : pool(pool), buffer(buffer) {}
  ~Returning() {
    if (buffer != nullptr) pool.give(buffer);
  }
  Returning(const Returning&) = delete;
  Returning& operator=(const Returning&) = delete;
  Buffers& pool;
  std::byte* buffer;
};

}  // namespace

std::byte* Arrivals::direct_placement(Link& link, const wire::Header& header, Request** owner) {
  // The acknowledgement in the header counts at once, because the payload may take milliseconds to
  // arrive and the peer sends no separate ACK. A duplicate of a partial sum may arrive while its
  // segment waits for the result.
  const bool is_new = link.port().begins(header);
  uses_.links.mark_dirty(link);
  return is_new ? uses_.executor.place_for(link, header, owner) : nullptr;
}

void Arrivals::arrive(Link& link, const wire::Header& header, const Payload& payload) {
  Returning arriving(uses_.memory.buffers(), payload.owned);
  handle(link, header, payload, &arriving.buffer);
}

void Arrivals::handle(Link& link, const wire::Header& header, const Payload& payload,
                      std::byte** owned) {
  uses_.links.mark_dirty(link);
  if (!link.port().admit(header)) return;
  bool more_comes = false;
  switch (static_cast<wire::FrameKind>(header.kind)) {
    case wire::FrameKind::kData:
      more_comes = on_data(link, header, payload, owned);
      break;
    case wire::FrameKind::kGrant:
      on_grant(link, header);
      break;
    case wire::FrameKind::kRelease:
      on_release(link, header, payload);
      break;
    case wire::FrameKind::kAbort:
      uses_.groups.aborted(link, header, payload);
      break;
    case wire::FrameKind::kBye:
      link.byes().keep(header);
      break;
    case wire::FrameKind::kCredit:
    case wire::FrameKind::kProbe:
      link.port().note(header);
      break;
    case wire::FrameKind::kAck:
    case wire::FrameKind::kHello:
      break;
  }
  link.port().handled(more_comes);
  while (const std::optional<wire::Header> bye = link.byes().take_due(link.port()))
    uses_.groups.said_bye(link, *bye);
}

// Accept a DATA frame. Return whether the same peer will certainly send more data of the operation.
bool Arrivals::on_data(Link& link, const wire::Header& header, const Payload& payload,
                       std::byte** owned) {
  link.port().arrived_early(header.flags, header.length);
  if (uses_.membership.excludes(link, header.epoch)) {
    link.port().consumed_early(header.flags, header.length);
    return false;
  }
  const Key key = key_of(header);
  const std::shared_ptr<Request> request = uses_.executor.find(key, link, header.source);
  if (request) {
    uses_.executor.payload(*request, link, header, payload, owned);
    const int peer = request->finished() ? -1 : request->group->rank_of(link);
    return peer >= 0 && request->flows[static_cast<std::size_t>(peer)].lacks_data();
  }
  if ((header.flags & wire::kFlagWritten) != 0) uses_.memory.loans().returned(key, link);
  keep_or_drop(link, header, payload);
  return false;
}

// Handle a DATA frame of an operation that is not open here.
void Arrivals::keep_or_drop(Link& link, const wire::Header& header, const Payload& payload) {
  const Key key = key_of(header);
  // Wire data that is not eager was sent after a grant, so its operation was posted here. A missing
  // operation has therefore already ended.
  const bool wanted = is_eager(header) || link.port().rules().ungranted;
  if (const std::shared_ptr<Group> group = uses_.groups.finished_in(key)) {
    link.port().consumed_early(header.flags, header.length);
    uses_.groups.broke(*group, stray(*group, header));
  } else if (uses_.groups.refuses(link, header)) {
    Groups::refuse(link, *uses_.membership.find(header.epoch), header);
    link.port().consumed_early(header.flags, header.length);
  } else if (wanted && !uses_.inbox.was_aborted(key) &&
             !uses_.membership.was_closed(header.epoch)) {
    uses_.inbox.frames().keep(key, link, header, payload);
    early(key);
  } else {
    link.port().consumed_early(header.flags, header.length);
  }
}

void Arrivals::on_grant(Link& link, const wire::Header& header) {
  if (uses_.membership.excludes(link, header.epoch)) return;
  const bool asks = is_eager(header);
  const Key key = key_of(header);
  std::shared_ptr<Request> request = uses_.executor.find_started(key);
  const bool finished = !request && uses_.groups.finished_in(key) != nullptr;
  // The message may have overtaken the question on another rail.
  if (asks && key.role != kRoleCollective && finished) return;
  if (!request && asks) request = uses_.executor.find(key, link, header.source);
  if (request) return uses_.executor.granted(*request, link, header);
  const bool over = uses_.inbox.was_aborted(key) || uses_.membership.was_closed(header.epoch) ||
                    (!asks && finished);
  if (over) return;
  if (uses_.groups.refuses(link, header))
    return Groups::refuse(link, *uses_.membership.find(header.epoch), header);
  // The peer was the first to post the operation, so keep its grant. Otherwise this rank would have
  // to request one, and the answer would wait behind the data that the peer sends.
  uses_.inbox.frames().keep(key, link, header);
  if (asks) early(key);
}

void Arrivals::on_release(Link& link, const wire::Header& header, const Payload& payload) {
  if (payload.length > 0) {
    const std::shared_ptr<Group> group = uses_.membership.find(header.epoch);
    if (group == nullptr) return;
    for (const auto& role : group->roles) role->reported(payload);
    return;
  }
  const Key key = key_of(header);
  const std::shared_ptr<Request> request = uses_.executor.find_started(key);
  if (!request) return uses_.memory.loans().returned(key, link);
  uses_.executor.released(*request, link, header);
}

// The first frames of an operation that has not been posted here concern a role that begins it.
void Arrivals::early(const Key& key) {
  const std::shared_ptr<Group> group = uses_.membership.find(key.epoch);
  if (group == nullptr) return;
  for (const auto& role : group->roles) role->early(key);
}

}  // namespace slackline
