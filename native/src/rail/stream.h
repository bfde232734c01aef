// A rail over a connected stream socket (TCP between hosts; any stream socket in tests).
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "rail.h"

namespace slackline {

struct StreamCounters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t system_calls = 0;
};

class StreamRail {
 public:
  // Takes ownership of `fd`, which becomes non-blocking. `job` is the job code that every frame
  // must carry.
  StreamRail(int fd, std::uint32_t job, bool checksums);
  ~StreamRail();
  StreamRail(const StreamRail&) = delete;
  StreamRail& operator=(const StreamRail&) = delete;

  int fd() const { return fd_; }
  std::uint32_t job() const { return job_; }
  // Whether payloads carry a checksum; headers always do.
  bool checksums() const { return checksums_; }
  // Room for one more frame: keeps the queue short, so that an urgent frame overtakes all but this
  // much.
  bool room() const { return queued_bytes_ < kQueueBytes && !failure_; }
  // `payload` stays valid until the link has seen the frame acknowledged. Nothing is written before
  // flush().
  void enqueue(const wire::Header& header, const std::byte* payload, std::uint32_t length);
  // As enqueue, but the rail keeps a copy of the payload: a resent frame may be acknowledged before
  // it is written.
  void enqueue_copy(const wire::Header& header, const std::byte* payload, std::uint32_t length);
  // The payload of the frame with this number has moved to `to`.
  void repoint(std::uint32_t sequence, const std::byte* to);
  void flush();
  bool blocked() const { return !queue_.empty(); }
  // Reads what is there and hands complete frames to `sink`; true when anything was read.
  bool poll(Link& link, FrameSink& sink);
  // The memory of `job` must not be written any more: a payload on its way there goes to a buffer
  // instead.
  void forget(const Job* job, FrameSink& sink);
  // Gives back the buffer of a payload that will not be completed.
  void abandon(FrameSink& sink);
  void shut_down_sending();

  const Failure& failure() const { return failure_; }
  bool at_end() const { return at_end_; }
  const StreamCounters& counters() const { return counters_; }
  bool armed_for_write = false;  // the engine's note of what epoll watches

 private:
  static constexpr std::size_t kQueueBytes = 512u << 10;
  static constexpr std::size_t kBufferBytes = 160u << 10;
  static constexpr std::size_t kPeekBytes = 4096;
  static constexpr std::size_t kBulkBytes = 16u
                                            << 10;  // longer payloads are read to where they belong

  struct Outgoing {
    wire::Header header;
    const std::byte* payload;
    std::uint32_t length;
    std::unique_ptr<std::byte[]> copy;
  };
  struct Bulk {
    wire::Header header{};
    std::byte* data = nullptr;
    bool owned = false;
    Job* job = nullptr;
    std::size_t got = 0;
  };

  bool read_some(bool* drained);
  void parse(Link& link, FrameSink& sink);
  void finish_bulk(Link& link, FrameSink& sink);
  bool check(const wire::Header& header);
  bool check_payload(const wire::Header& header, const std::byte* data);
  void fail(Fault fault, std::string message);

  int fd_;
  std::uint32_t job_;
  bool checksums_;
  std::deque<Outgoing> queue_;
  std::size_t queued_bytes_ = 0;
  std::size_t front_sent_ = 0;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool in_bulk_ = false;
  Bulk bulk_;
  bool at_end_ = false;
  Failure failure_;
  StreamCounters counters_;
};

}  // namespace slackline
