// The role of an aggregator: the last member of a group, which adds for the others.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "aggregation.h"
#include "driver.h"
#include "executor.h"
#include "group.h"
#include "inbox.h"
#include "links.h"
#include "memory.h"
#include "role.h"

namespace slackline {

// An aggregator posts no operations. An operation begins when every worker has sent some of its
// data, with the parameters in the headers of the workers' frames.
class Aggregator final : public Role {
 public:
  struct Uses {
    Memory& memory;
    Links& links;
    Inbox& inbox;
    Executor& executor;
    Bell& bell;
  };

  Aggregator(Group& group, Aggregation aggregation, const Uses& uses)
      : group_(group), aggregation_(std::move(aggregation)), uses_(uses) {}

  void arrived(Request& request, int peer) override;
  void ended(const Request& request) override;
  void early(const Key& key) override;
  bool left(int rank, const Failure& reason, Leave how) override;

 private:
  bool begin(const Key& key);
  void refuse(const Key& key, Failure failure);
  void start(const std::shared_ptr<Request>& request);
  void report_results(const std::vector<std::uint64_t>& tags);

  Group& group_;
  Aggregation aggregation_;
  const Uses uses_;
};

}  // namespace slackline
