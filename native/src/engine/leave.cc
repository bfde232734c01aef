// The end of a group and of the engine on this rank.
#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "../base/clock.h"
#include "engine_impl.h"

namespace slackline {
namespace {

constexpr auto kCloseStep = std::chrono::milliseconds(1);

// Return whether the request is a receive of which nothing has been heard from the sender.
bool awaits_sender(const Request& request) {
  if (request.any && request.any_source < 0) return true;
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    if (request.key.role == role_receive(static_cast<int>(peer))) return !request.flows[peer].heard;
  }
  return false;
}

bool asks_or_lends(const wire::Header& header) {
  const bool ask = header.kind == static_cast<std::uint8_t>(wire::FrameKind::kGrant) &&
                   (header.flags & wire::kFlagEager) != 0;
  const bool lends = header.kind == static_cast<std::uint8_t>(wire::FrameKind::kData) &&
                     (header.flags & wire::kFlagReference) != 0;
  return ask || lends;
}

}  // namespace

// Finish the operations of the group that other ranks may wait for. A receive whose message has not
// begun to arrive ends at once: the sender may never send. Messages that this rank has not asked
// for are refused, so that ranks that leave at the same time do not wait for each other.
void Engine::leave(Lock& lock, Group& group, std::int64_t until_ns) {
  group.leaving = true;
  for (const auto& request : operations_.open_in(group)) {
    if (awaits_sender(*request)) fail(*request, closed_here(group), false);
  }
  for (const Key& key : unexpected_.keys_in(group.epoch)) {
    if (key.role == kRoleCollective) continue;
    for (const Unexpected& frame : unexpected_.take(key)) {
      refuse_message(*frame.link, group, frame.header);
      UnexpectedFrames::drop(frame);
    }
  }
  drain_dirty();
  while (!group.closed) {
    const auto open = operations_.open_in(group);
    if (open.empty() || now_ns() >= until_ns) break;
    drive(lock, *open.front(), until_ns);
  }
}

// Return whether the group will post no operation for this message any more.
bool Engine::refuses(const Key& key) const {
  if (key.role == kRoleCollective) return false;
  const std::shared_ptr<Group> group = membership_.find(key.epoch);
  return group != nullptr && group->leaving;
}

// Tell the sender that this rank, which leaves the group, does not receive the message. A short
// message needs no answer: its send ends without the receiver.
void Engine::refuse_message(Link& link, const Group& group, const wire::Header& header) {
  if (!asks_or_lends(header)) return;
  wire::Header answer = blank_header(wire::FrameKind::kAbort);
  answer.epoch = header.epoch;
  answer.source = static_cast<std::uint16_t>(group.rank);
  answer.dtype = header.dtype;
  answer.op = header.op;
  answer.tag = header.tag;
  answer.flags = wire::kFlagToSender;
  answer.offset = static_cast<std::uint64_t>(Fault::kPeer);
  link.control(answer, "rank " + std::to_string(group.rank) +
                           " closed the group and did not receive this message");
}

Failure Engine::closed_here(const Group& group) {
  return Failure{
      Fault::kClosed, "the group was closed while this was outstanding", group.rank, -1, -1, -1};
}

void Engine::close_group(Group& group, std::int64_t timeout_ns) {
  Lock lock = lock_for_post();
  if (group.closed) return;
  std::exception_ptr interrupted;
  try {
    leave(lock, group, later(now_ns(), timeout_ns));
  } catch (...) {
    interrupted = std::current_exception();
  }
  try {
    end_group(group);
  } catch (const std::exception& error) {
    broke_down(error);
    throw;
  }
  if (interrupted) std::rethrow_exception(interrupted);
}

// Fail what is still open in the group, and tell the other members that this rank has left.
void Engine::end_group(Group& group) {
  if (group.closed) return;  // another thread closed the group meanwhile
  group.closed = true;
  close_device(group);
  for (const auto& request : operations_.open_in(group)) fail(*request, closed_here(group), false);
  const std::shared_ptr<Group> alive = group.shared_from_this();
  const GroupNotice notice = membership_.close(group);
  for (Link* link : group.links) {
    if (link != nullptr && !link->down && link->made()) tell_left(*link, notice);
  }
  drain_dirty();
  unexpected_.drop_group(group.epoch);
  group.sequences.clear();
  for (Link* link : group.links) {
    if (link != nullptr) release_memory(*link);
  }
}

// Fail an operation on every rank, because a signal handler has ended the call that waited for it.
void Engine::interrupt(Request& request) {
  fail(request,
       Failure{Fault::kPeer,
               "a signal interrupted rank " + std::to_string(request.group->rank) + " in " +
                   describe(request) + " " + number_words(request.key.tag),
               -1, -1, -1, -1},
       true);
  drain_dirty();
}

void Engine::close(std::int64_t timeout_ns) {
  if (elsewhere_) return;
  std::exception_ptr interrupted;
  {
    Lock lock = lock_for_post();
    if (closing_) return;
    closing_ = true;
    try {
      say_bye(lock, later(now_ns(), timeout_ns));
    } catch (...) {
      interrupted = std::current_exception();
    }
    try {
      fail_everything(Failure{Fault::kClosed, "the engine was closed while this was outstanding",
                              -1, -1, -1, -1});
    } catch (const std::bad_alloc&) {
      interrupted = std::current_exception();
      fail_without_memory();
    }
    stopped_ = true;
    work_.notify_all();
    completions_.close();
    links_.wake_readers();
    finished_.notify_all();
    loop_.ring();
  }
  if (thread_.joinable()) thread_.join();
  Lock lock(mutex_);
  while (callers_driving_ > 0) {  // waiting callers find their operations finished once they wake
    loop_.ring();
    finished_.notify_all();
    finished_.wait_for(lock, kCloseStep);
  }
  try {
    last_counters_ = count();
  } catch (const std::bad_alloc&) {
    interrupted = std::current_exception();
  }
  for (const auto& [epoch, group] : membership_.groups())
    group->leaving = group->closed = true;  // the links are destroyed next
  lent_.forget_links();
  links_.clear();
  if (interrupted) std::rethrow_exception(interrupted);
}

// Tell the peers that this engine closes. Return once they have acknowledged all sent data, but not
// after `until_ns`, because a stopped peer never acknowledges.
void Engine::say_bye(Lock& lock, std::int64_t until_ns) {
  for (const auto& [epoch, group] : membership_.groups()) {
    close_device(*group);
    // A member that learns of the group's failure later than this rank must not take this rank for
    // its cause.
    const GroupNotice notice = Membership::notice_of(*group);
    if (!notice.cause) continue;
    for (Link* link : group->links) {
      if (link != nullptr && !link->down && link->made()) abort_over(*link, notice);
    }
  }
  for (Link* link : links_.made()) {
    if (!link->down) link->control(blank_header(wire::FrameKind::kBye));
  }
  drain_dirty();
  std::int64_t look_ns = 0;
  for (std::int64_t now = now_ns(); now < until_ns && !links_.idle(); now = now_ns()) {
    look_around(lock, now, look_ns);
    if (progress()) {
      hand_over_lock(lock);
    } else if (asleep_) {
      finished_.wait_for(lock, kCloseStep);  // the thread in epoll_wait watches the links
    } else {
      sleep(lock, std::min(until_ns, now_ns() + 1'000'000));
    }
  }
}

}  // namespace slackline
