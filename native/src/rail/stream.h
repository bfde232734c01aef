// A rail (one path to a peer) over a connected stream socket: TCP between hosts, any stream socket
// in tests.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "../base/clock.h"
#include "median_rate.h"
#include "stream_silence.h"
#include "wire_rail.h"

namespace slackline {

class StreamRail final : public WireRail {
 public:
  // Take ownership of `fd`, unless the constructor throws, and make it non-blocking. `job` is the
  // job code that every frame must carry. `far` states that the peer is on another host.
  StreamRail(int fd, std::uint32_t job, bool checksums, bool far = false);
  ~StreamRail() override;

  RailKind kind() const override { return RailKind::kTcp; }
  int fd() const override { return fd_; }
  void leave_to_parent() override;
  bool room() const override {
    return waiting_bytes() < queue_bytes_ && !failure() && send_error_ == 0;
  }
  std::size_t queued_bytes() const override { return queued_bytes_; }
  std::size_t waiting_bytes() const override {
    return injector_ == nullptr ? queued_bytes_ : waiting_bytes_at(now_ns());
  }
  std::size_t queued_frames() const override { return queue_.size(); }
  void enqueue(const wire::Header& header, const std::byte* payload, std::uint32_t length) override;
  std::uint64_t enqueued() const override { return enqueued_; }
  bool departed(std::uint64_t number) const override {
    return queue_.empty() || (injector_ == nullptr && counters_.frames_sent >= number);
  }
  bool ending() const override { return send_error_ != 0 && !failure(); }
  void repoint(std::uint32_t sequence, const std::byte* to) override;
  void release(std::uint32_t sequence) override;
  void flush(std::int64_t now_ns) override;
  bool blocked() const override { return full_; }
  void writable() override { full_ = false; }
  std::int64_t due_ns() const override { return held_ ? held_until_ns_ : kNever; }
  void tick(std::int64_t now_ns) override { flush(now_ns); }
  bool poll(Link& link, FrameSink& sink, std::int64_t now_ns) override;
  void forget(const Request* owner, FrameSink& sink) override;
  void abandon(FrameSink& sink) override;
  Confirmation confirmation(std::int64_t now_ns) override;
  void inject(const std::optional<FaultState>& state) override;
  void keep_back() override;
  void expect_urgent() override;
  bool far() const override { return far_; }
  bool at_end() const { return at_end_; }
  // Return the limit of unsent bytes in the socket at this rate: 4 ms of data. The limit keeps the
  // wire busy while the sending thread waits up to that long for a processor. If urgent frames are
  // expected, the limit is 1 ms of data, because an urgent frame waits behind these bytes on every
  // hop of its plan; at rates above 500 Mbit/s it stays at 4 ms, because there the additional
  // wake-ups cost more time than the urgent frames save.
  static int unsent_at(std::uint64_t bytes_per_second, bool urgent_expected = false);
  // Return the limit, in bytes, of a queue to another host at this rate: 64 KiB. If urgent frames
  // are expected, the limit is 16 KiB at rates up to 500 Mbit/s.
  static std::size_t queue_at(std::uint64_t bytes_per_second, bool urgent_expected);
  int unsent_limit() const { return unsent_limit_; }
  // Return whether twice the bytes that the path needs in flight fit into 256 KiB. On such a path
  // the send buffer is held at 256 KiB: the kernel enlarges the buffers of fast connections to
  // megabytes, which have left the processor's cache when the network or the peer copies them.
  static bool is_short(std::uint64_t bytes_per_second, std::uint32_t shortest_round_trip_us);
  void limit_buffer(std::uint64_t bytes_per_second, std::uint32_t shortest_round_trip_us);

 private:
  static constexpr int kUnsentShare = 250;  // divides the bytes per second: 1/250 s is 4 ms
  static constexpr int kLeastUnsent = 128 << 10;
  static constexpr std::uint64_t kMostBriefRate = 62'500'000;  // in bytes per second
  static constexpr int kBriefUnsentShare = 1000;
  static constexpr int kLeastBriefUnsent = 16 << 10;
  static constexpr int kMostUnsent = 2 << 20;
  static constexpr int kHeldBuffer = 256 << 10;
  static constexpr std::size_t kQueueBytes = 512u << 10;
  // The limit, in bytes, of a queue to another host. An urgent frame waits until the queue's bytes
  // and those in the socket have been sent.
  static constexpr std::size_t kFarQueueBytes = 64u << 10;
  static constexpr std::size_t kBriefQueueBytes = 16u << 10;
  static constexpr std::size_t kBufferBytes = 160u << 10;
  static constexpr std::size_t kPeekBytes = 4096;
  static constexpr std::size_t kMostAwaited = 64u << 10;
  static constexpr std::size_t kBulkBytes =
      16u << 10;  // longer payloads are read directly to their destination

  struct Outgoing {
    wire::Header header;
    const std::byte* payload;
    std::uint32_t length;
    std::unique_ptr<std::byte[]> copy;
    std::int64_t sent_ns = 0;     // an injected rate keeps the frame in the queue until then
    std::int64_t release_ns = 0;  // a fault delays the frame until then
  };
  struct Bulk {
    wire::Header header{};
    std::byte* data = nullptr;
    bool owned = false;
    Request* owner = nullptr;
    std::size_t got = 0;
  };

  void apply_faults(Outgoing frame);
  std::size_t waiting_bytes_at(std::int64_t now_ns) const;
  std::int64_t next_room_ns(std::int64_t now_ns) const;
  void begin_limits();
  void hold_buffer();
  void limit_unsent(int bytes);
  void follow_rate(std::int64_t now_ns);
  void limit_ahead();
  void copy_payload(Outgoing& out);
  bool read_some(bool* drained);
  void parse(Link& link, FrameSink& sink);
  void await_payload(bool drained);
  void finish_bulk(Link& link, FrameSink& sink);
  bool check(const wire::Header& header);
  bool check_payload(const wire::Header& header, const std::byte* data);

  int fd_;
  const bool far_;
  std::size_t queue_bytes_ = kQueueBytes;
  std::deque<Outgoing> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t enqueued_ = 0;  // frames queued so far
  int send_error_ = 0;          // the error that ended sending, or 0
  std::size_t front_sent_ = 0;
  bool full_ = false;               // the socket is full
  bool held_ = false;               // a fault delays the first frame in the queue
  std::int64_t held_until_ns_ = 0;  // when to look again while the first frame is delayed
  bool keeps_back_ = false;
  bool holds_buffer_ = false;
  bool urgent_expected_ = false;
  bool expected_lately_ = false;  // expect_urgent() was called since the last look at the rate
  MedianRate rate_;
  int unsent_limit_ = 0;
  std::int64_t rate_due_ns_ = 0;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool in_bulk_ = false;
  Bulk bulk_;
  int awaited_ = 1;  // in bytes: the current SO_RCVLOWAT
  bool at_end_ = false;
  StreamSilence silence_;
};

}  // namespace slackline
