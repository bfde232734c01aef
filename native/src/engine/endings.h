// The ends of operations: success, failure, and the failure of the whole engine.
#pragma once

#include <exception>

#include "clock.h"
#include "completions.h"
#include "driver.h"
#include "inbox.h"
#include "links.h"
#include "membership.h"
#include "memory.h"
#include "operations.h"
#include "reports.h"

namespace slackline {

// All calls are made under the engine's lock.
class Endings {
 public:
  struct Uses {
    Clock& clock;
    Memory& memory;
    Links& links;
    Membership& membership;
    Operations& operations;
    Inbox& inbox;
    Reports& reports;
    Completions& completions;
    Bell& bell;
  };

  explicit Endings(const Uses& uses) : uses_(uses) {}

  // End an operation with success.
  void succeed(Request& request);
  // End an operation with a failure; nothing happens if it has ended. Its peers are told if they
  // cannot see the end by themselves, which `tell_peers` says, or if they may use memory of this
  // rank. A role of this rank may go on with the operation instead.
  void fail(Request& request, Failure failure, bool tell_peers);
  // Fail an operation that is not open here: tell the members of its group, and whoever posts it.
  void refuse(const Group& group, const Key& key, const Failure& failure);
  // Fail the request because the arena has no room for a staging slot.
  void lacks_slot(Request& request);
  // Return all buffers and slots of a request that has ended, or that begins anew.
  void retire(Request& request);
  // Return a staging slot, and let the segments that wait for one go on.
  void release_slot(Request& request, Segment& segment);
  // Unmap the arena of a peer that has gone, and free the ring that the peer wrote to, once nothing
  // reads them any more.
  void release_memory(Link& link);

  // Fail the engine after an exception in its own work, most likely a lack of memory. The
  // interrupted work is half done (a frame may have been read and not handled), so no operation can
  // safely continue, and no new one can be posted.
  void broke_down(const std::exception& error) noexcept;
  // Return why the engine has failed, so that nothing can be posted any more; none while it works.
  const Failure& breakdown() const { return breakdown_; }
  // End an operation that may be in no table, after the engine has failed.
  void end_broken(Request& request) noexcept;
  void end_without_memory(Request& request) noexcept;
  // Fail every operation, and let every group refuse new ones.
  void fail_all(const Failure& failure);
  // Do the same where the memory does not even suffice to tell the peers, which find the links cut.
  void fail_all_without_memory() noexcept;

 private:
  void end(Request& request, RequestState state);
  void tell_peers_of(Request& request, bool tell_peers, bool bound);
  void tell_breakdown(const std::exception& error);
  void give_back_pending(Request& request);
  void withhold_lent(Request& request) noexcept;
  template <class Note>
  void each_lent(const Request& request, const Note& note) const;

  const Uses uses_;
  Failure breakdown_;
};

}  // namespace slackline
