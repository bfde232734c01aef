// Everything between this engine and one peer: an exactly-once frame channel over one or more
// rails.
//
// Frames that travel over a wire carry the link's sequence number and are kept until the peer
// acknowledges them; when a rail fails, what it had not delivered goes over the others, and the
// peer drops what it has seen. Memory is not a wire: frames on the shared-memory rail are neither
// numbered nor kept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../rail/shm.h"
#include "job.h"
#include "link_rail.h"

namespace slackline {

class Engine;

struct LinkCounters {
  std::uint64_t frames_resent = 0;
  std::uint64_t duplicates_dropped = 0;
  std::uint64_t rails_lost = 0;
  std::uint64_t rails_suspected = 0;
  std::uint64_t rails_restored = 0;
  std::uint64_t reference_bytes = 0;  // read in place by the peer
  std::uint64_t staged_bytes = 0;     // copied into shared slots
  std::uint64_t wire_payload_bytes = 0;
  std::uint64_t inline_bytes = 0;
};

class Link {
 public:
  // With `redial` the link outlives its rails: operations wait for a new one.
  Link(Engine& engine, int index, std::string name, bool redial = false,
       std::uint32_t first_sequence = 1)
      : engine_(engine),
        index_(index),
        name_(std::move(name)),
        redial_(redial),
        next_sequence_(first_sequence),
        expected_(first_sequence) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  bool shared_memory() const { return shm_ != nullptr; }
  ShmRail* shm() { return shm_.get(); }
  const ShmRail* shm() const { return shm_.get(); }
  std::vector<std::unique_ptr<LinkRail>>& rails() { return rails_; }
  const std::vector<std::unique_ptr<LinkRail>>& rails() const { return rails_; }
  void set_shm(std::unique_ptr<ShmRail> rail) { shm_ = std::move(rail); }
  // A rail with an index that is taken replaces the one that has it.
  void add_rail(int index, std::string name, std::unique_ptr<WireRail> rail);
  LinkRail* rail(int index);

  void queue(SendItem item);
  // Nothing of the job that waits may be sent any more.
  void withdraw(const Job& job);
  // Puts back what waited for credit or a slot.
  void unpark(Job& job, int peer);
  // Sends what may be sent, most urgent first. Cheap when nothing waits.
  void pump();
  void control(wire::Header header, const std::string& text = {});
  void grant(Job& job, int peer);
  void ask(Job& job, int peer);  // for a grant: nothing may be sent eagerly
  // The job has failed: nothing of it may be sent or read any more.
  void forget(const Job& job);

  // Whether the frame has not arrived yet.
  bool is_new(std::uint32_t sequence) const;
  // True when the frame is new; false for a duplicate.
  bool admit(std::uint32_t sequence);
  void acknowledged(std::uint32_t next_expected);
  void credit(std::uint64_t total) {  // an older one may come later, on another rail
    eager_credited_ = std::max(eager_credited_, total);
  }
  void finish_borrowed();  // the peer needs nothing more: what is kept for it is done
  // Limits of what the peer may have this rank keep; a peer that exceeds one is cut off. See
  // docs/design.md, "Credits, and why nothing waits in a circle".
  bool within_window(std::uint32_t sequence);
  void eager_arrived(std::uint64_t bytes);
  void eager_consumed(std::uint64_t bytes);
  void hold();  // one more frame of an operation that is not posted here
  void let_go() { --held_; }
  bool condemned() const { return !condemned_.empty(); }
  // A request for a grant is over: answered, or its operation ended.
  void ask_over();
  // Writes acknowledgements that are due and wakes the peer if need be.
  void settle();
  // Deals with failed rails; true when the link has just gone down.
  bool reap();
  // Looks after the rails: which are silent, which are back, how fast each is. With `probing`,
  // operations are open and each rail is asked for a sign of life now and then.
  void watch(std::int64_t now_ns, bool probing);
  void on_probe(const wire::Header& header, std::int64_t now_ns);
  // Sends nothing any more, acknowledgements included. The rails go with the next reap(): one of
  // them may be reading just now.
  void cut(const std::string& reason);
  // The peer's process is known to be gone.
  bool give_up(const std::string& reason);
  // What an operation that waits for the peer can say about it.
  std::string condition(std::int64_t now_ns) const;
  // When watch() wants to be called again, kNever when nothing is expected.
  std::int64_t watch_due_ns(std::int64_t now_ns, bool probing) const;
  bool without_rail() const { return shm_ == nullptr && rails_.empty(); }

  // Nothing is left to send and, on a wire, nothing to be acknowledged.
  bool idle() const;
  // A BYE counts once all frames that were sent before it have arrived: on another connection it
  // may have overtaken them.
  void keep_bye(const wire::Header& header) { byes_.push_back(header); }
  std::optional<wire::Header> take_due_bye();
  // Long payloads owe the peer an acknowledgement, whose memory they are. It may wait for more
  // while more is sure to come.
  void note_arrival(std::uint32_t bytes);
  void acknowledge_owed() { acknowledge_now_ = acknowledge_now_ || acknowledgement_owed_; }

  bool down = false;
  bool said_bye = false;  // the peer closed its engine in good order
  Failure failure;        // why it is down
  LinkCounters counters;
  std::int64_t last_heard_ns = 0;

 private:
  // Payloads up to this size are copied: the operation need not wait for the acknowledgement.
  static constexpr std::uint32_t kOwnedBytes = 64u << 10;
  // Unexpected bytes that a peer may have to keep for this link, each frame's header included.
  static constexpr std::uint64_t kEagerPool = 4u << 20;
  static constexpr std::uint64_t kEagerFrame = sizeof(wire::Header);
  // Operations that may ask the peer for a grant at a time; the others ask later.
  static constexpr std::size_t kMostAsked = 4096;
  // Frames that the peer has not acknowledged: no payload is sent beyond. Answers and aborts, of
  // which there are few, may be.
  static constexpr std::size_t kMostRetained = 1u << 16;
  // A peer that keeps to these limits is far from those at which it is cut off: frames of several
  // rails overtake each other.
  static constexpr std::uint64_t kMostHeld = 2 * (kEagerPool / kEagerFrame + kMostAsked);
  static constexpr std::uint32_t kMostAhead = 4 * kMostRetained;

  enum class Outcome { kSent, kNoRoom, kParked };
  struct Retained {
    wire::Header header;
    const std::byte* payload;
    std::byte* owned;
    std::uint32_t length;
    std::shared_ptr<Job> job;  // set while the payload is the job's memory
    const LinkRail* rail;      // null: its rail is gone and there was no other
  };

  Outcome transmit(const SendItem& item);
  Outcome transmit_shared(const SendItem& item, wire::Header& header, const std::byte* data,
                          std::size_t bytes);
  Outcome transmit_wire(const SendItem& item, wire::Header& header, const std::byte* data,
                        std::size_t bytes);
  // `crowded`: whether it has room or not.
  LinkRail* pick_rail(const LinkRail* except = nullptr, bool crowded = false);
  void condemn(const std::string& reason);
  double typical_rate() const;
  LinkRail* any_rail();  // for what must not wait for room
  void resend(Retained& frame, LinkRail& rail);
  void move_frames(const LinkRail* from);
  void suspect(LinkRail& rail, std::int64_t now_ns, const std::string& why);
  void restore(LinkRail& rail);
  void measure(LinkRail& rail, std::int64_t now_ns);
  bool has_allowance(LinkRail& rail);
  bool another_is_well(const LinkRail& rail, std::int64_t now_ns) const;
  void probe(LinkRail& rail, std::int64_t now_ns);
  void send_unnumbered(LinkRail& rail, wire::Header header);
  void put_on_wire(LinkRail& rail, wire::Header& header, const std::byte* payload, std::byte* owned,
                   std::uint32_t length, std::shared_ptr<Job> job);

  friend struct LinkView;  // the model checker tells states apart by what is below

  Engine& engine_;
  const int index_;
  const std::string name_;
  std::unique_ptr<ShmRail> shm_;
  const bool redial_;
  std::vector<std::unique_ptr<LinkRail>> rails_;
  std::uint64_t picks_ = 0;
  std::int64_t bare_since_ns_ = 0;  // when the last rail was lost
  std::map<int, std::deque<SendItem>> ready_;
  std::deque<std::pair<wire::Header, std::string>> control_;
  std::deque<Retained> retained_;
  std::uint32_t next_sequence_;
  std::uint32_t expected_;
  std::set<std::uint32_t> early_;
  std::deque<wire::Header> byes_;
  std::uint32_t unacknowledged_frames_ = 0;
  std::uint64_t unacknowledged_bytes_ = 0;
  bool acknowledgement_owed_ = false;
  bool acknowledge_now_ = false;
  std::uint64_t eager_sent_ = 0;
  std::uint64_t eager_credited_ = 0;
  std::uint64_t eager_arrived_ = 0;
  std::uint64_t eager_consumed_ = 0;
  std::uint64_t eager_reported_ = 0;
  std::uint64_t held_ = 0;
  std::size_t asked_ = 0;
  std::deque<std::pair<std::weak_ptr<Job>, int>> unasked_;  // and the peer's rank in its group
  std::string condemned_;                                   // which limit the peer has exceeded
};

}  // namespace slackline
