#include "engine.h"

#include <exception>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "describe.h"
#include "gate.h"
#include "notices.h"

namespace slackline {

Engine::Engine(const EngineOptions& options)
    : options_(options), machine_(options_, operation_log_) {
  machine_.driver().begin();
}

Engine::~Engine() {
  try {
    close(0);
  } catch (const std::bad_alloc&) {
    // close() has ended all operations and threads; there was no memory to tell the peers, which
    // find the connections closed.
  }
}

bool Engine::uses_epoch(std::uint32_t epoch) {
  const Lock lock = entry_.lock();
  return machine_.tables().membership.uses(epoch);
}

std::shared_ptr<Group> Engine::open_group(std::uint32_t epoch, int rank,
                                          const std::vector<int>& links, bool rank_order) {
  const Lock lock = entry_.lock();
  std::vector<Link*> by_rank;
  for (const int link : links) {
    by_rank.push_back(link < 0 ? nullptr
                               : &machine_.links().find_or_renew(link, machine_.link_uses()));
  }
  const std::shared_ptr<Group> group =
      machine_.groups().open(epoch, rank, std::move(by_rank), rank_order);
  entry_.change([&] {
    machine_.groups().learn_past(*group);
    machine_.links().send();
    machine_.groups().remove_ended_links();
  });
  return group;
}

std::string Engine::broken(Group& group) {
  const Lock lock = entry_.lock();
  return group.broken.message;
}

std::shared_ptr<Request> Engine::post(Group& group, const Operation& operation, bool drive) {
  Lock lock = entry_.lock();
  if (machine_.tables().membership.closing() || group.leaving)
    throw std::runtime_error("the group is closed");
  std::shared_ptr<Request> request = machine_.executor().builder().build(group, operation);
  if (drive) {
    request->waiting_since_ns = request->posted_ns;
  } else {
    request->async_counted = true;
    machine_.driver().unattended();
  }
  machine_.executor().begin(request, drive);
  if (!drive) {
    if (!request->finished()) machine_.driver().wake_before(request->deadline_ns);
    return request;
  }
  try {
    const auto finished = [&request] { return request->finished(); };
    machine_.driver().drive(lock, finished, request->deadline_ns, request->deadline_ns);
  } catch (...) {
    interrupt(*request);  // the caller has no handle to wait on, and will take its memory back
    throw;
  }
  return request;
}

// Fail an operation on every rank, because a signal handler has ended the call that waited for it.
void Engine::interrupt(Request& request) {
  try {
    machine_.endings().fail(
        request,
        Failure{Fault::kPeer,
                "a signal interrupted rank " + std::to_string(request.group->rank) + " in " +
                    describe(request) + " " + number_words(request.key.tag),
                -1, -1, -1, -1},
        true);
    machine_.links().send();
  } catch (const std::bad_alloc& error) {
    machine_.endings().broke_down(error);
  }
}

bool Engine::wait(Request& request, std::int64_t timeout_ns) {
  if (request.finished()) return true;
  Lock lock = entry_.lock();
  const std::int64_t since = machine_.clock().now();
  if (request.waiting_threads++ == 0 && request.waiting_since_ns == 0)
    request.waiting_since_ns = since;
  const auto note_end = [&] {
    if (--request.waiting_threads > 0 || request.finished()) return;
    request.waited_ns += machine_.clock().next() - request.waiting_since_ns;
    request.waiting_since_ns = 0;
  };
  try {
    machine_.driver().drive(
        lock, [&request] { return request.finished(); },
        timeout_ns < 0 ? request.deadline_ns : later(since, timeout_ns), request.deadline_ns);
  } catch (...) {
    note_end();
    throw;
  }
  note_end();
  return request.finished();
}

void Engine::cancel(Request& request, Failure failure) {
  const Lock lock = entry_.lock();
  entry_.change([&] {
    machine_.endings().fail(request, std::move(failure), true);
    machine_.links().send();
  });
  machine_.driver().wake();
}

bool Engine::watch(Request& request) {
  const Lock lock = entry_.lock();
  if (request.finished()) return true;
  request.wants_callback = true;
  return false;
}

bool Engine::open_at_end(const std::vector<Request*>& requests, std::uint32_t& word,
                         std::uint32_t value) {
  const Lock lock = entry_.lock();
  std::vector<Request*> open;
  for (Request* request : requests) {
    if (request->finished() && request->failure) return false;
    if (!request->finished()) open.push_back(request);
  }
  if (open.empty()) return false;
  const auto gate = std::make_shared<Gate>(word, value, open.size());
  for (Request* request : open) request->gates.reserve(request->gates.size() + 1);
  for (Request* request : open) request->gates.push_back(gate);
  return true;
}

std::shared_ptr<Request> Engine::next_completion() {
  entry_.check_process();
  return machine_.tables().completions.next();
}

void Engine::watch(Request& request, std::shared_ptr<CompletionQueue> queue) {
  const Lock lock = entry_.lock();
  if (request.finished())
    queue->push(request.shared_from_this());
  else
    request.queue = std::move(queue);
}

std::vector<std::shared_ptr<Request>> Engine::next(CompletionQueue& queue,
                                                   std::int64_t timeout_ns) {
  if (timeout_ns == 0 && queue.empty()) return {};
  Lock lock = entry_.lock();
  if (queue.empty()) {
    queue.waiting_since_ns = machine_.clock().now();
    try {
      machine_.driver().drive(
          lock, [&queue] { return !queue.empty(); }, later(queue.waiting_since_ns, timeout_ns),
          std::numeric_limits<std::int64_t>::max());
    } catch (...) {
      queue.waiting_since_ns = 0;
      throw;
    }
    queue.waiting_since_ns = 0;
  }
  return queue.take();
}

void Engine::set_shares(Group& group, Shares& shares, std::vector<std::uint32_t> weights,
                        int number, std::shared_ptr<const Program> program) {
  const Lock lock = entry_.lock();
  shares.set(group, std::move(weights), number, std::move(program));
  entry_.change([&] { machine_.executor().share(shares); });
  machine_.driver().wake();
}

void Engine::decline(Shares& shares, Failure failure) {
  const Lock lock = entry_.lock();
  shares.decline(std::move(failure));
  entry_.change([&] {
    machine_.executor().share(shares);
    machine_.links().send();
  });
  machine_.driver().wake();
}

void Engine::close_group(Group& group, std::int64_t timeout_ns) {
  Lock lock = entry_.lock();
  if (group.closed) return;
  std::exception_ptr interrupted;
  try {
    finish_open(lock, group, later(machine_.clock().now(), timeout_ns));
  } catch (...) {
    interrupted = std::current_exception();
  }
  try {
    machine_.groups().leave(group);
  } catch (const std::exception& error) {
    machine_.endings().broke_down(error);
    throw;
  }
  if (interrupted) std::rethrow_exception(interrupted);
}

// Finish the operations of a group that other ranks may wait for.
void Engine::finish_open(Lock& lock, Group& group, std::int64_t until_ns) {
  machine_.groups().begin_leaving(group);
  machine_.links().send();
  while (!group.closed) {
    const auto open = machine_.tables().operations.open(&group);
    if (open.empty() || machine_.clock().next() >= until_ns) break;
    const Request& first = *open.front();
    machine_.driver().drive(
        lock, [&first] { return first.finished(); }, until_ns, first.deadline_ns);
  }
}

void Engine::abort_group(Group& group, const std::string& reason) {
  const Lock lock = entry_.lock();
  if (group.closed) return;
  entry_.change([&] {
    machine_.groups().give_up(group, reason);
    machine_.links().send();
  });
}

void Engine::close(std::int64_t timeout_ns) {
  if (entry_.elsewhere()) return;
  Endings& endings = machine_.endings();
  Tables& tables = machine_.tables();
  std::exception_ptr interrupted;
  {
    Lock lock = entry_.lock();
    if (tables.membership.closing()) return;
    tables.membership.close_all();
    try {
      const std::int64_t until = later(machine_.clock().now(), timeout_ns);
      machine_.groups().say_bye();
      machine_.links().send();
      // The peers acknowledge all sent data, but a stopped peer never does.
      machine_.driver().linger(lock, [this] { return machine_.links().idle(); }, until);
    } catch (...) {
      interrupted = std::current_exception();
    }
    try {
      endings.fail_all(Failure{Fault::kClosed, "the engine was closed while this was outstanding",
                               -1, -1, -1, -1});
    } catch (const std::bad_alloc&) {
      interrupted = std::current_exception();
      endings.fail_all_without_memory();
    }
    machine_.driver().stop();
    tables.completions.close();
    machine_.links().events().wake_readers();
  }
  machine_.driver().join();
  const Lock lock = machine_.driver().lock();
  try {
    last_counters_ = count();
  } catch (const std::bad_alloc&) {
    interrupted = std::current_exception();
  }
  for (const auto& [epoch, group] : tables.membership.groups())
    group->leaving = group->closed = true;  // the links are destroyed next
  machine_.memory().loans().forget_links();
  machine_.links().clear();
  if (interrupted) std::rethrow_exception(interrupted);
}

std::vector<OpenOperation> Engine::pending() {
  const Lock lock = entry_.lock();
  return machine_.tables().reports.pending();
}

FailureLog::Taken Engine::failures() {
  const Lock lock = entry_.lock();
  return machine_.tables().reports.failures();
}

std::byte* Engine::allocate(std::size_t bytes) {
  entry_.check_process();
  if (std::byte* memory = arena().allocate(bytes)) return memory;
  const Lock lock = entry_.lock();
  return machine_.memory().allocate(bytes);
}

std::map<std::string, std::uint64_t> Engine::withheld() {
  const Lock lock = entry_.lock();
  machine_.memory().loans().collect();
  return machine_.memory().loans().withheld_by_peer();
}

std::map<std::string, std::uint64_t> Engine::counters() {
  const Lock lock = entry_.lock();
  return last_counters_.empty() ? count() : last_counters_;
}

std::map<std::string, std::uint64_t> Engine::count() {
  Memory& memory = machine_.memory();
  memory.loans().collect();
  // Rings belong to links, not to operations, so they are counted apart.
  const std::size_t ring_bytes = machine_.links().rings().bytes();
  std::map<std::string, std::uint64_t> c{
      {"operations", machine_.tables().reports.operations_ended()},
      {"bytes_reduced", machine_.executor().bytes_reduced()},
      {"sleeps", machine_.sleep().count()},
      {"device_frames_taken", roles_.counters().frames_taken},
      {"device_frames_given", roles_.counters().frames_given},
      {"arena_bytes", memory.arena().used() - ring_bytes},
      {"ring_bytes", ring_bytes},
      {"withheld_bytes", memory.loans().withheld_bytes()},
      {"slots", memory.slots()},
      {"busy_slots", memory.busy_slots()}};
  machine_.links().count(c);
  return c;
}

}  // namespace slackline
