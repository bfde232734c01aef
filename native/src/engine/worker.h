// The roles of a worker that can do without its aggregator, and of the group that then takes over.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "blocks.h"
#include "clock.h"
#include "driver.h"
#include "endings.h"
#include "executor.h"
#include "group.h"
#include "links.h"
#include "operations.h"
#include "role.h"

namespace slackline {

class Groups;

// A worker keeps copies of its contributions, and, once the aggregator is lost, hands its
// operations to a group without the aggregator. See docs/design.md, "When an aggregator is lost".
class Worker final : public Role {
 public:
  struct Uses {
    Clock& clock;
    Links& links;
    Operations& operations;
    Executor& executor;
    Endings& endings;
    Groups& groups;
    Bell& bell;
  };

  // `program` is this rank's part of the plan that `fallback` runs for all operations whose own
  // program names none.
  Worker(Group& group, std::shared_ptr<Group> fallback, std::shared_ptr<const Program> program,
         const Uses& uses)
      : group_(group), fallback_(std::move(fallback)), program_(std::move(program)), uses_(uses) {}

  // Copy a contribution up to the end of a segment and return the segment's copy. Called when the
  // segment is about to be sent, because before the send no result of the segment can have
  // overwritten the data.
  static const std::byte* keep(const Request& request, std::size_t offset, std::size_t bytes);
  // Abandon the aggregator and pass the unfinished operations to the fallback.
  void abandon(Failure failure);
  // Return the number of operations of which a copy is kept.
  std::size_t copies() const { return copies_.size(); }
  // Remove and return the copy of this rank's contribution to an operation, or null.
  std::shared_ptr<ReplayCopy> take_copy(const Key& key);

  void started(Request& request) override;
  bool failed(Request& request, Failure& failure) override;
  void reported(const Payload& payload) override;
  bool left(int rank, const Failure& reason, Leave how) override;
  void watch() override;

 private:
  const std::shared_ptr<const Program>& repetition_of(const Request& request) const;
  void divert(Request& request);
  void begin_anew(Request& request, std::byte* source);

  Group& group_;
  const std::shared_ptr<Group> fallback_;
  const std::shared_ptr<const Program> program_;
  const Uses uses_;
  std::unordered_map<Key, std::shared_ptr<ReplayCopy>, KeyHash> copies_;
  const std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();  // memory of the copies
};

// The role of this rank in the group that takes over from the group `served`.
class StandIn final : public Role {
 public:
  struct Uses {
    Operations& operations;
    Inbox& inbox;
    Executor& executor;
    Endings& endings;
    Bell& bell;
  };

  StandIn(Group& group, std::weak_ptr<Group> served, const Uses& uses)
      : group_(group), served_(std::move(served)), uses_(uses) {}

  // Another rank repeats an operation which is not open here. If this rank has finished the
  // operation, send this rank's contribution again. If the operation has failed here, say so. If
  // this rank has not posted the operation yet, do nothing: the later post takes part in the
  // repetition.
  void early(const Key& key) override;

 private:
  Group& group_;
  const std::weak_ptr<Group> served_;
  const Uses uses_;
};

}  // namespace slackline
