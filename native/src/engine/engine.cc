// The engine's beginning, its groups, and the calls that other threads make.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>

#include "../base/clock.h"
#include "engine_impl.h"
#include "slackline/crc32c.h"

namespace slackline {
namespace {

// Operations up to this size begin in the posting thread, because a hand-over to the driving thread
// would take longer.
constexpr std::uint64_t kInlineStart = 64u << 10;

}  // namespace

Engine::Engine(const EngineOptions& options)
    : options_(options),
      arena_(options.arena_bytes),
      buffers_(options.wire_segment_bytes),
      reserve_(new std::byte[kReserveBytes]) {
  for (auto* events : {&woken_by_, &slept_for_, &polled_}) events->reserve(EventLoop::kMostEvents);
  // The doorbell is the arena's first line, so it is the first allocation and is never freed.
  auto* doorbell = new (arena_.allocate(sizeof(Doorbell))) Doorbell;
  doorbell->sleeping.store(0);
  register_at_fork();
  try {
    if (options.progress_thread) thread_ = std::thread([this] { run(); });
  } catch (...) {
    unregister_at_fork();  // the destructor does not run
    throw;
  }
}

Engine::~Engine() {
  unregister_at_fork();
  try {
    close(0);
  } catch (const std::bad_alloc&) {
    // close() has ended all operations and threads; there was no memory to tell the peers, which
    // find the connections closed.
  }
  for (PendingPayload* pending : idle_pending_) delete pending;
}

Engine::Lock Engine::lock_for_post() {
  check_process();
  wanting_.fetch_add(1, std::memory_order_relaxed);
  Lock lock(mutex_);
  wanting_.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

int Engine::add_link(std::string name, bool reconnect, std::uint32_t first_sequence, bool shared) {
  const Lock lock = lock_for_post();
  return links_.add(*this, std::move(name), reconnect, first_sequence, shared);
}

bool Engine::link_alive(int link) {
  const Lock lock = lock_for_post();
  if (links_.empty()) return false;  // the engine is closed
  const Link& l = links_.at(link);
  return !l.down && !l.said_bye;
}

bool Engine::uses_epoch(std::uint32_t epoch) {
  const Lock lock = lock_for_post();
  return membership_.uses(epoch);
}

std::shared_ptr<Group> Engine::open_group(std::uint32_t epoch, int rank,
                                          const std::vector<int>& links, bool rank_order) {
  const Lock lock = lock_for_post();
  if (closing_) throw std::runtime_error("the engine is closed");
  std::vector<Link*> by_rank;
  bool shared = true;
  for (std::size_t i = 0; i < links.size(); ++i) {
    Link* link = links[i] < 0 ? nullptr : &links_.at(links[i]);
    if ((link == nullptr) != (static_cast<int>(i) == rank))
      throw std::invalid_argument("every rank except this one needs a link");
    shared = shared && (link == nullptr || link->planned_shared());
    by_rank.push_back(link);
  }
  auto group = std::make_shared<Group>(epoch, rank, std::move(by_rank), shared, rank_order);
  group->broken = breakdown_;
  for (std::size_t i = 0; i < group->links.size(); ++i) {
    const Link* link = group->links[i];
    if (link != nullptr && link->down) {
      group->broken = Failure{Fault::kPeer,
                              "the link to rank " + std::to_string(i) + " (" + link->name() +
                                  ") closed: " + link->failure.message,
                              rank,
                              static_cast<int>(i),
                              -1,
                              -1};
    }
  }
  membership_.open(group);
  return group;
}

std::shared_ptr<Request> Engine::post(Group& group, const Operation& operation, bool drive_it) {
  Lock lock = lock_for_post();
  if (closing_ || group.leaving) throw std::runtime_error("the group is closed");
  std::shared_ptr<Request> request = build(group, operation);
  if (operation.any_source) {
    request->any = true;
    request->any_target = operation.target;
    request->any_count = operation.count;
  }
  if (drive_it) {
    request->waiting_since_ns = request->posted_ns;
  } else {
    request->async_counted = true;
    ++async_open_;
  }
  try {
    if (request->undivided || operations_.open_before(*request) != nullptr) {
      operations_.hold(request);
    } else if (operation.any_source) {
      start_any_source(request);
      drain_dirty();
    } else if (drive_it || request->total <= kInlineStart) {
      start(request);
      drain_dirty();
    } else {
      operations_.queue(request);
    }
  } catch (const std::exception& error) {
    broke_down(error);
    end_broken(*request);  // the request may not be in any table yet
  }
  if (drive_it) {
    try {
      drive(lock, *request, request->deadline_ns);
    } catch (...) {
      // The caller has no handle to wait on, and will take its memory back.
      try {
        interrupt(*request);
      } catch (const std::bad_alloc& error) {
        broke_down(error);
      }
      throw;
    }
  } else if (!request->finished()) {
    wake_for(*request);
  }
  return request;
}

bool Engine::wait(Request& request, std::int64_t timeout_ns) {
  if (request.finished()) return true;
  Lock lock = lock_for_post();
  const std::int64_t since = now_ns();
  if (request.waiting_threads++ == 0 && request.waiting_since_ns == 0)
    request.waiting_since_ns = since;
  const auto note_end = [&request] {
    if (--request.waiting_threads > 0 || request.finished()) return;
    request.waited_ns += now_ns() - request.waiting_since_ns;
    request.waiting_since_ns = 0;
  };
  try {
    drive(lock, request, timeout_ns < 0 ? request.deadline_ns : later(since, timeout_ns));
  } catch (...) {
    note_end();
    throw;
  }
  note_end();
  return request.finished();
}

// Tell the peer that the group has failed, and because of which rank.
void Engine::abort_over(Link& link, const GroupNotice& notice) {
  wire::Header header = blank_header(wire::FrameKind::kAbort);
  header.epoch = notice.epoch;
  header.source = static_cast<std::uint16_t>(notice.rank);
  header.tag = ~std::uint64_t{0};
  header.offset = static_cast<std::uint64_t>(notice.cause.fault);
  header.total = static_cast<std::uint64_t>(notice.cause.peer + 1);
  header.chunk = static_cast<std::uint16_t>(notice.cause.departure);
  link.control(header, notice.cause.message);
}

void Engine::abort_group(Group& group, const std::string& reason) {
  const Lock lock = lock_for_post();
  if (group.closed) return;
  change([&] { give_up(group, reason); });
}

// End this rank's part in the group at once, and tell the other members the reason.
void Engine::give_up(Group& group, const std::string& reason) {
  group.told = Failure{Fault::kPeer,
                       "rank " + std::to_string(group.rank) + " aborted the group: " + reason,
                       group.rank,
                       group.rank,
                       -1,
                       -1,
                       Departure::kAborted};
  tell_failure(group);
  const Failure failure{Fault::kClosed,
                        "rank " + std::to_string(group.rank) + " aborted the group: " + reason,
                        group.rank,
                        -1,
                        -1,
                        -1};
  for (const auto& request : operations_.open_in(group)) fail(*request, failure, false);
  group.broken = failure;
  close_device(group);
  drain_dirty();
}

std::byte* Engine::allocate(std::size_t bytes) {
  check_process();
  if (std::byte* memory = arena_.allocate(bytes)) return memory;
  const Lock lock = lock_for_post();
  return allocate_room(bytes);
}

std::byte* Engine::allocate_room(std::size_t bytes) {
  std::byte* memory = arena_.allocate(bytes);
  if (memory != nullptr || lent_.empty()) return memory;
  lent_.collect();
  return arena_.allocate(bytes);
}

std::map<std::string, std::uint64_t> Engine::withheld() {
  const Lock lock = lock_for_post();
  lent_.collect();
  return lent_.withheld_by_peer();
}

int Engine::take_slot() {
  if (free_slots_.empty()) {
    // With room in the tables for all slots, a slot needs no memory at its end.
    const std::size_t count = slots_.size() + 1;
    if (slots_.capacity() < count) slots_.reserve(2 * count);
    for (std::vector<int>* each : {&free_slots_, &vacant_slots_}) {
      if (each->capacity() < count) each->reserve(slots_.capacity());
    }
    std::byte* memory = allocate_room(slot_bytes());
    if (memory == nullptr) return -1;
    if (!vacant_slots_.empty()) {
      const int index = vacant_slots_.back();
      vacant_slots_.pop_back();
      slots_[static_cast<std::size_t>(index)] = memory;
      return index;
    }
    slots_.push_back(memory);
    return static_cast<int>(slots_.size()) - 1;
  }
  const int index = free_slots_.back();
  free_slots_.pop_back();
  return index;
}

std::byte* Engine::remove_slot(int index) noexcept {
  vacant_slots_.push_back(index);
  return std::exchange(slots_[static_cast<std::size_t>(index)], nullptr);
}

void Engine::release_slot(Request& request, Segment& segment) {
  if (segment.slot < 0) return;
  free_slots_.push_back(segment.slot);
  segment.slot = -1;
  --request.flows[segment.slot_peer].slots;
  for (std::size_t peer = 0; peer < request.flows.size(); ++peer) {
    if (!request.flows[peer].credit_blocked.empty())
      request.group->links[peer]->unblock(request, static_cast<int>(peer));
  }
}

}  // namespace slackline
