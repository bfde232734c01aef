// The connection between this engine and one peer: what is to be sent to it, and over which port.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "../rail/rail.h"
#include "asks.h"
#include "byes.h"
#include "clock.h"
#include "port.h"
#include "request.h"
#include "send_queue.h"
#include "slackline/failure.h"

namespace slackline {

class Endings;
class Executor;
class Links;
class Membership;
class Memory;
class ShmRail;
class WirePort;
class WireRail;

struct LinkOptions {
  bool reconnect = false;  // the link outlives its rails, and operations wait for a new one
  // The number of the first frame in each direction; both ends must agree.
  std::uint32_t first_sequence = 1;
  bool shared = false;  // the rail will be shared memory
};

// The queues of one peer. A segment waits here by its priority until the port takes it, or at its
// operation until the peer has granted it. All calls are made under the engine's lock.
class Link {
 public:
  struct Uses {
    Clock& clock;
    Memory& memory;
    Links& links;  // the table that has this link
    Executor& executor;
    Endings& endings;
    Membership& membership;
    FrameSink& sink;
  };

  Link(const Uses& uses, int index, std::string name, const LinkOptions& options = {});
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  Port& port() { return *port_; }
  const Port& port() const { return *port_; }
  // Add a rail. An existing rail with the same index is replaced. Throws std::logic_error if the
  // link uses shared memory.
  void add_rail(int index, std::string name, std::unique_ptr<WireRail> rail);
  // Use shared memory from now on.
  void share(std::unique_ptr<ShmRail> rail);
  // Return whether the link was planned to use shared memory. Wires may have replaced it since, at
  // different times on the two ranks; the plan is what all ranks of a group know equally.
  bool planned_shared() const { return options_.shared; }
  // Use wires in place of the planned shared memory, unless the link has had a rail.
  void use_wires();
  // Ask for the link's first rail, unless the link has or had one: announce that an operation waits
  // for the peer. Frames wait until the rail is there.
  void want();
  // Set the reason why the first rail could not be made yet, for the error message of an operation.
  void hindered(std::string why) { first_.obstacle = std::move(why); }
  // Note that the port has a rail.
  void connected();
  // Return whether the link has or had a rail.
  bool made() const { return first_.made; }
  // End a link that has had no rail; it may be removed then. Does nothing after the first rail.
  void forget(const std::string& reason);
  // Return whether the link has or had a rail, or an operation has asked for one.
  bool wanted() const { return first_.made || first_.wanted; }

  SendQueue& queue() { return queue_; }
  const SendQueue& queue() const { return queue_; }
  // Queue the items again that waited for credit or for a slot.
  void unblock(Request& request, int peer);
  // Send all queued frames that may be sent, most urgent first. Cheap when nothing is queued.
  void pump();
  // Queue a control frame, with `text` as its payload.
  void control(const wire::Header& header, const std::string& text = {});
  // Return the control frames that wait for a rail or for room in a ring, with their texts.
  const std::deque<std::pair<wire::Header, std::string>>& waiting_frames() const {
    return control_;
  }
  // Tell the peer how many bytes of the request it may send.
  void grant(Request& request, int peer);
  Asks& asks() { return asks_; }
  // Return whether nothing is left to send and, on a wire, nothing is left to be acknowledged.
  bool idle() const;

  Byes& byes() { return byes_; }

  // Remove failed rails. Return true when the link has just gone down.
  bool reap();
  // Fail the link because the peer's process is known to be gone. Return false if it is down.
  bool give_up(const std::string& reason);
  void end_without_memory() noexcept;
  // Return a description of the peer's state for the error message of an operation that waits for
  // it.
  std::string condition() const;

  // The reason for an end without memory. The text fits into a string that needs none.
  static constexpr const char* kNoMemory = "out of memory";

  bool down = false;
  bool said_bye = false;  // the peer closed its engine in good order
  Failure failure;        // why the link, or its last rail, is down
  std::int64_t last_heard_ns = 0;
  std::uint64_t unposted = 0;  // frames of operations that have not been posted here

 private:
  // The way to the first rail.
  struct First {
    bool made = false;
    bool wanted = false;
    std::string obstacle;
  };
  Port::Outcome transmit(const SendItem& item);

  const Uses uses_;
  const int index_;
  const std::string name_;
  LinkOptions options_;
  std::unique_ptr<Port> port_;
  First first_;
  SendQueue queue_;
  std::deque<std::pair<wire::Header, std::string>> control_;
  Asks asks_{*this};
  Byes byes_;
};

}  // namespace slackline
