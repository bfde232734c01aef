// The connection between this engine and one peer: an exactly-once frame channel over one or more
// rails. A rail is one path to the peer: a TCP or UDP socket, or a ring in shared memory.
//
// Frames on a wire carry a sequence number of the link and are kept until the peer acknowledges
// them. When a rail fails, its undelivered frames are resent over the other rails, and the peer
// drops duplicates. Frames on the shared-memory rail are neither numbered nor kept, because memory
// loses nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../rail/shm.h"
#include "clock.h"
#include "link_rail.h"
#include "rail_status.h"
#include "request.h"

namespace slackline {

class Endings;
class Executor;
class Links;
class Membership;
class Memory;

struct LinkCounters {
  std::uint64_t frames_resent = 0;
  std::uint64_t duplicates_dropped = 0;
  std::uint64_t rails_lost = 0;
  std::uint64_t rails_suspected = 0;
  std::uint64_t rails_restored = 0;
  std::uint64_t reference_bytes = 0;  // bytes that the peer read in place
  std::uint64_t staged_bytes = 0;     // bytes copied into shared slots
  std::uint64_t wire_payload_bytes = 0;
  std::uint64_t inline_bytes = 0;
  std::uint64_t shm_wakeups = 0;  // of a shared-memory rail that has been removed
};

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

  // With `reconnect` the link outlives its rails, and operations wait for a new rail. `shared` says
  // that the rail will be shared memory. `first_sequence` is the number of the first frame in each
  // direction; both ends must agree.
  Link(const Uses& uses, int index, std::string name, bool reconnect = false,
       std::uint32_t first_sequence = 1, bool shared = false)
      : uses_(uses),
        index_(index),
        name_(std::move(name)),
        shared_(shared),
        planned_shared_(shared),
        reconnect_(reconnect),
        next_sequence_(first_sequence),
        expected_(first_sequence) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  bool shared_memory() const { return shared_; }
  // Return whether the link was planned to use shared memory. Wires may have replaced it since, at
  // different times on the two ranks; the plan is what all ranks of a group know equally.
  bool planned_shared() const { return planned_shared_; }
  // Use wires in place of the planned shared memory, unless the link has had a rail.
  void use_wires();
  // Ask for the link's first rail, unless the link has or had one: announce that an operation waits
  // for the peer. Frames wait until the rail is there.
  void want();
  // Return whether the link has or had a rail.
  bool made() const { return made_; }
  // Return whether the link has or had a rail, or an operation has asked for one.
  bool wanted() const { return made_ || wanted_; }
  // Set the reason why the first rail could not be made yet, for the error message of an operation.
  void hindered(std::string why) { obstacle_ = std::move(why); }
  ShmRail* shm() { return shm_.get(); }  // null once the peer has gone and no reader is left
  const ShmRail* shm() const { return shm_.get(); }
  std::vector<std::unique_ptr<LinkRail>>& rails() { return rails_; }
  const std::vector<std::unique_ptr<LinkRail>>& rails() const { return rails_; }
  // Close the descriptors of all rails in a forked child.
  void leave_to_parent();
  void set_shm(std::unique_ptr<ShmRail> rail);
  // Remove the shared-memory rail of a link that is down, and return the rail.
  std::unique_ptr<ShmRail> take_shm();
  // Return the state of every rail that has not been removed.
  std::vector<RailStatus> rails_in_use() const;
  // Return the counts of the removed rails, by index. Rails that had the same index count as one.
  const std::map<int, RailStatus>& ended() const { return ended_; }
  // Add a rail. An existing rail with the same index is replaced.
  void add_rail(int index, std::string name, std::unique_ptr<WireRail> rail);
  LinkRail* rail(int index);

  void queue(SendItem item);
  // Return whether an item of the request is queued.
  bool holds(const Request& request) const;
  // Remove all queued items of the request, so that nothing more of it is sent.
  void withdraw(const Request& request);
  // Queue the items again that waited for credit or for a slot.
  void unblock(Request& request, int peer);
  // Send all queued frames that may be sent, most urgent first. Cheap when nothing is queued.
  void transmit_queued();
  // Queue a control frame, with `text` as its payload.
  void control(wire::Header header, const std::string& text = {});
  // Return the number of control frames that wait for a rail or for room in a ring.
  std::size_t waiting_control() const { return control_.size(); }
  // Return the number of frames of a link in shared memory up to the last control frame, counted
  // from the link's first frame. Frames that wait for room count too.
  std::uint64_t frames_up_to_now() const { return shm_->frames_pushed() + control_.size(); }
  // Tell the peer how many bytes of the request it may send.
  void grant(Request& request, int peer);
  // Request a grant from the peer for an operation whose data must not be sent eagerly.
  void ask(Request& request, int peer);
  // Remove all references to a failed request: its data must not be sent and its memory must not be
  // read any more.
  void forget(const Request& request);
  // Stop writing payloads that are still arriving to the memory of a request that has ended.
  void stop_writing(const Request& request);

  // Return whether the frame has not arrived before.
  bool is_new(std::uint32_t sequence) const;
  // Record the arrival of a frame. Return true when the frame is new, false for a duplicate.
  bool admit(std::uint32_t sequence);
  void acknowledged(std::uint32_t next_expected);
  void credit(std::uint64_t total) {  // an older value may arrive later, over another rail
    eager_credited_ = std::max(eager_credited_, total);
  }
  // Complete all sends whose memory was kept for the peer, because the peer needs nothing more.
  void finish_borrowed();
  // Limits of the memory that a peer may make this rank use. The link to a peer that exceeds a
  // limit is cut. See docs/design.md, "Credits, and why nothing waits in a circle".
  bool within_window(std::uint32_t sequence);
  // Check that a frame on a wire has a sequence number, by which duplicates are detected. Only
  // acknowledgements and probes have none.
  bool rightly_numbered(const wire::Header& header);
  // Count a payload that has arrived, and later its consumption. Payloads that were sent before a
  // grant, which the flags of their frames tell, have a limit over a wire.
  void arrived_early(std::uint16_t flags, std::uint64_t bytes);
  void consumed_early(std::uint16_t flags, std::uint64_t bytes);
  // Count one more frame of an operation that has not been posted here. Between ranks of one host
  // the number of such frames has no limit.
  void count_unposted();
  // Undo one count_unposted(), because the frame was used or dropped.
  void uncount_unposted() { --unposted_; }
  bool condemned() const { return !condemned_.empty(); }
  // Count a request for a grant as over: the peer has answered it, or its operation has ended.
  void ask_over();
  // Send what the rails hold, with the acknowledgement that is due, and wake the peer if it sleeps.
  void flush();
  // Remove failed rails. Return true when the link has just gone down.
  bool reap();
  // Monitor the rails: suspend silent rails, restore rails that answer again, and measure the speed
  // of each. With `probing`, which means that operations are open, each rail is probed
  // periodically.
  void watch(std::int64_t now_ns, bool probing);
  void on_probe(const wire::Header& header);
  // Cut the link: it sends nothing any more, acknowledgements included. The rails are removed at
  // the next reap(), because one of them may be reading at this moment.
  void cut(const std::string& reason);
  // Cut the link for good, and let the peer see its end, where there is no memory to tell the peer
  // anything. Takes no memory.
  void end_without_memory() noexcept;
  // Fail the link because the peer's process is known to be gone.
  bool give_up(const std::string& reason);
  // Return a description of the peer's state for the error message of an operation that waits for
  // it.
  std::string condition(std::int64_t now_ns) const;
  // Return the time at which watch() should be called next, kNever when nothing is expected.
  std::int64_t watch_due_ns(std::int64_t now_ns, bool probing) const;
  bool without_rail() const { return !made_ || (!shared_ && rails_.empty()); }

  // Return whether nothing is left to send and, on a wire, nothing is left to be acknowledged.
  bool idle() const;
  // Keep a BYE frame until all frames that were sent before it have arrived. A BYE may overtake
  // them when it travels over another connection.
  void keep_bye(const wire::Header& header) { byes_.push_back(header); }
  std::optional<wire::Header> take_due_bye();
  // Note the arrival of a payload, for which an acknowledgement is owed: the sender keeps the
  // payload's memory until then. The acknowledgement may be delayed while more data is sure to
  // follow.
  void note_arrival(std::uint32_t bytes);
  void acknowledge_owed() { acknowledge_now_ = acknowledge_now_ || acknowledgement_owed_; }

  // The reason for an end without memory. The text fits into a string that needs none.
  static constexpr const char* kNoMemory = "out of memory";

  bool down = false;
  bool said_bye = false;  // the peer closed its engine in good order
  Failure failure;        // why the link is down
  LinkCounters counters;
  std::int64_t last_heard_ns = 0;

 private:
  // Payloads up to this size are copied, so that the operation need not wait for the
  // acknowledgement.
  static constexpr std::uint32_t kOwnedBytes = 32u << 10;
  // Limit of eagerly sent bytes that the peer has not consumed yet, including each frame's header.
  static constexpr std::uint64_t kEagerPool = 4u << 20;
  static constexpr std::uint64_t kEagerFrame = sizeof(wire::Header);
  // Number of operations that may request a grant from the peer at the same time; the others wait.
  static constexpr std::size_t kMostAsked = 4096;
  // Limit of frames that the peer has not acknowledged; no payload is sent beyond it. Replies and
  // aborts may exceed the limit, because they are few.
  static constexpr std::size_t kMostRetained = 1u << 16;
  // Limits at which the link to a peer is cut. These limits are far above the limits that an honest
  // peer keeps to, because frames of several rails may overtake each other.
  static constexpr std::uint64_t kMostHeld = 2 * (kEagerPool / kEagerFrame + kMostAsked);
  static constexpr std::uint32_t kMostAhead = 4 * kMostRetained;
  // Limit of answers, which are frames without a number, that one rail queues.
  static constexpr std::size_t kMostAnswers = 1u << 16;

  enum class Outcome { kSent, kNoRoom, kBlocked };
  struct Retained {
    wire::Header header;
    const std::byte* payload;
    std::byte* owned;
    std::uint32_t length;
    std::shared_ptr<Request> request;  // set while the payload is memory of the request
    // The rail that carries the frame; null when that rail is gone and no other was up. Invariant:
    // while any rail is up, the rail of every frame is up.
    const LinkRail* rail;
  };
  // A send whose payload was copied. It ends when its frame has departed (see WireRail::departed),
  // so that a process may end right after its last operation without a loss for the peer.
  struct Departing {
    std::uint32_t sequence;
    std::shared_ptr<Request> request;
    // Null once the rail failed or fell silent: the send then ends with the acknowledgement.
    const LinkRail* rail;
    std::uint64_t place;
  };

  void note_departures();
  void flush_rails();
  void note_arrivals(std::uint32_t next_expected);
  template <class Gone>
  void end_sends(const Gone& gone);
  void await_acknowledgement(const LinkRail& rail);
  Outcome transmit(const SendItem& item);
  Outcome transmit_shared(const SendItem& item, wire::Header& header, const std::byte* data,
                          std::size_t bytes);
  Outcome transmit_wire(const SendItem& item, wire::Header& header, const std::byte* data,
                        std::size_t bytes);
  // Choose the rail for a frame among those that are up. With `crowded` also accept a rail without
  // room.
  LinkRail* pick_rail(bool crowded = false);
  void condemn(const std::string& reason);
  RailStatus status_of(const ShmRail& shm) const;
  RailStatus status_of(const LinkRail& rail) const;
  void note_end(RailStatus ended);
  void note_made();
  // Cut the link to a peer that makes this rank answer and does not read the answers.
  void limit_answers(const LinkRail& rail);
  double typical_rate() const;
  LinkRail* any_rail();  // for frames that must not wait for room
  void resend(Retained& frame, LinkRail& rail);
  void place_frames();
  void suspect(LinkRail& rail, std::int64_t now_ns, const std::string& why);
  void restore(LinkRail& rail);
  bool carries(const LinkRail& rail) const;
  void measure(LinkRail& rail, std::int64_t now_ns);
  bool within_slow_start(LinkRail& rail);
  bool another_is_well(const LinkRail& rail, std::int64_t now_ns) const;
  void probe(LinkRail& rail, std::int64_t now_ns);
  void send_unnumbered(LinkRail& rail, wire::Header header);
  void put_on_wire(LinkRail& rail, wire::Header& header, const std::byte* payload, std::byte* owned,
                   std::uint32_t length, std::shared_ptr<Request> request);
  void put_owned(LinkRail& rail, wire::Header& header, std::byte* owned, std::uint32_t length);
  void lose_rail(std::size_t place);

  // Lets tests and the model checker look at the private state below.
  friend struct LinkView;

  const Uses uses_;
  const int index_;
  const std::string name_;
  std::unique_ptr<ShmRail> shm_;
  bool shared_;
  bool planned_shared_;
  bool made_ = false;
  bool wanted_ = false;
  std::string obstacle_;
  bool reconnect_;
  std::vector<std::unique_ptr<LinkRail>> rails_;
  std::map<int, RailStatus> ended_;
  std::uint64_t picks_ = 0;
  std::int64_t no_rail_since_ns_ = 0;          // when the last rail was lost
  std::map<int, std::deque<SendItem>> ready_;  // by priority; in each queue by the requests' order
  std::list<std::pair<wire::Header, std::string>> control_;
  std::deque<Retained> retained_;
  std::vector<Departing> departing_;
  std::vector<std::shared_ptr<Request>> ended_sends_;  // empty; its memory is used again
  std::uint32_t next_sequence_;
  std::uint32_t expected_;
  std::set<std::uint32_t> early_;
  std::list<wire::Header> byes_;
  std::uint32_t unacknowledged_frames_ = 0;
  std::uint64_t unacknowledged_bytes_ = 0;
  bool acknowledgement_owed_ = false;
  bool acknowledge_now_ = false;
  std::uint64_t eager_sent_ = 0;
  std::uint64_t eager_credited_ = 0;
  std::uint64_t eager_arrived_ = 0;
  std::uint64_t eager_consumed_ = 0;
  std::uint64_t eager_reported_ = 0;
  std::uint64_t unposted_ = 0;
  std::size_t asked_ = 0;
  std::list<std::pair<std::weak_ptr<Request>, int>> unasked_;  // with the peer's rank in its group
  std::string condemned_;  // a sentence on the limit that the peer has exceeded
};

}  // namespace slackline
