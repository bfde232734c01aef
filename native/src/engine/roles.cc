#include "roles.h"

#include <memory>
#include <stdexcept>
#include <utility>

#include "aggregator.h"
#include "device_role.h"
#include "notices.h"
#include "worker.h"

namespace slackline {

void Roles::serve(Group& group, std::shared_ptr<const Program> program, std::uint32_t onset,
                  std::shared_ptr<const Program> tree) {
  const Driver::Lock lock = entry_.lock();
  Machine& machine = entry_.machine;
  group.aggregator = true;
  auto role = std::make_unique<Aggregator>(
      group, Aggregation(std::move(program), std::move(tree), onset),
      Aggregator::Uses{machine.memory(), machine.links(), machine.tables().inbox,
                       machine.executor(), machine.driver()});
  Aggregator& aggregator = *role;
  group.roles.push_back(std::move(role));
  entry_.change([&] {
    for (const Key& key : machine.tables().inbox.frames().keys_in(group.epoch))
      aggregator.early(key);
    machine.links().send();
  });
  machine.driver().wake();
}

void Roles::fall_back(Group& group, std::shared_ptr<Group> fallback,
                      std::shared_ptr<const Program> program) {
  const Driver::Lock lock = entry_.lock();
  Machine& machine = entry_.machine;
  Tables& tables = machine.tables();
  fallback->roles.push_back(
      std::make_unique<StandIn>(*fallback, group.weak_from_this(),
                                StandIn::Uses{tables.operations, tables.inbox, machine.executor(),
                                              machine.endings(), machine.driver()}));
  auto role = std::make_unique<Worker>(
      group, std::move(fallback), std::move(program),
      Worker::Uses{machine.clock(), machine.links(), tables.operations, machine.executor(),
                   machine.endings(), machine.groups(), machine.driver()});
  group.worker = role.get();
  group.roles.push_back(std::move(role));
}

void Roles::attach(Group& group, std::string name) {
  const Driver::Lock lock = entry_.lock();
  if (!group.sequences.empty() || group.aggregator)
    throw std::invalid_argument("a device must be attached before the group's first operation");
  group.device =
      std::make_shared<Offload>(std::move(name), entry_.machine.memory().arena(), counters_);
  group.roles.push_back(
      std::make_unique<DeviceRole>(group, group.device, entry_.machine.executor()));
}

std::optional<DeviceWork> Roles::device_work(const Group& group) {
  const std::shared_ptr<Offload> device = group.device;
  Driver::Lock lock = entry_.machine.driver().lock_to_wait();
  return device->next(lock, entry_.machine.tables().membership.closing());
}

void Roles::device_answer(const Group& group, std::span<const std::span<const std::byte>> frames,
                          std::span<const DeviceKey> completed,
                          std::span<const DeviceKey> released) {
  const Driver::Lock lock = entry_.lock();
  group.device->release(completed);
  group.device->release(released);
  if (group.broken || entry_.machine.tables().membership.leaves(group)) return;
  entry_.change([&] {
    take(group, frames, completed);
    entry_.machine.links().send();
  });
  entry_.machine.driver().wake();
}

void Roles::take(const Group& group, std::span<const std::span<const std::byte>> frames,
                 std::span<const DeviceKey> completed) {
  Executor& executor = entry_.machine.executor();
  // An operation that is not found, or not offloaded, has failed in the meantime.
  for (const std::span<const std::byte> frame : frames) {
    const Key key{Offload::header_of(frame).tag, group.epoch, kRoleCollective};
    const std::shared_ptr<Request> request = executor.find_started(key);
    if (!request || !request->offloaded) continue;
    const auto [chunk, segment] = group.device->store(*request, frame);
    executor.advance(*request, chunk, segment);
    executor.maybe_end(*request);
  }
  for (const DeviceKey& key : completed) {
    const std::shared_ptr<Request> request =
        executor.find_started(Key{key.tag, group.epoch, kRoleCollective});
    if (request && request->offloaded) complete(*request, Offload::completed(*request, key));
  }
}

// Complete a chunk whose whole result the device has written to the device memory. The parts of the
// result that the plan makes this rank send to a peer have arrived earlier, as frames.
void Roles::complete(Request& request, std::uint32_t index) {
  Chunk& chunk = request.chunks[index];
  for (std::uint32_t segment = 0; segment < chunk.segments.size(); ++segment) {
    if (Offload::store_completed(request, chunk, segment))
      entry_.machine.executor().advance(request, index, segment);
  }
  entry_.machine.memory().arena().free(std::exchange(chunk.device_memory, nullptr));
  entry_.machine.executor().sent(request);
}

void Roles::device_closed(const Group& group) {
  const Driver::Lock lock = entry_.lock();
  group.device->device_gone();
}

void Roles::device_failed(Group& group, const std::string& reason) {
  const Driver::Lock lock = entry_.lock();
  if (group.broken || entry_.machine.tables().membership.leaves(group)) return;
  // The loss of an aggregator's device is a peer failure, which the aggregator's workers survive.
  // The loss of any other rank's device is an internal failure of the group.
  const Failure failure{group.aggregator ? Fault::kPeer : Fault::kInternal,
                        "the device of rank " + std::to_string(group.rank) + " (" +
                            group.device->name() + ") failed: " + reason,
                        group.rank,
                        -1,
                        -1,
                        -1};
  entry_.change([&] {
    group.told = failure;
    tell_failure(group);
    entry_.machine.groups().broke(group, failure);
    entry_.machine.links().send();
  });
  group.device->close();
  entry_.machine.driver().wake();
}

}  // namespace slackline
