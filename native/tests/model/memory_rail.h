// A rail in memory for the model checker, which decides when each frame moves. The far end of a
// link uses one too.
#pragma once

#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "../ranks.h"
#include "slackline/crc32c.h"

namespace slackline::model {

// A frame in flight. The payload is read when the frame arrives, as late as a real rail may read
// it, unless the frame was released before.
struct Flying {
  wire::Header header{};
  const std::byte* payload = nullptr;
  std::vector<std::byte> copy;  // of the payload of a released frame
  bool released = false;
  // State at the receiver after the first half of the payload has arrived.
  bool begun = false;
  std::byte* destination = nullptr;
  bool owned = false;
  Request* owner = nullptr;

  void release() {
    if (released) return;
    released = true;
    if (header.length == 0) return;
    copy.assign(payload, payload + header.length);
    payload = copy.data();
  }
};

// A single direction of a rail, from its connection until its failure.
struct Pipe {
  std::deque<Flying> frames;
  bool writer_gone = false;
  bool reader_gone = false;
};

class MemoryRail : public WireRail {
 public:
  static constexpr std::size_t kNothing = ~std::size_t{0};

  MemoryRail(RailKind kind, bool checksums, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in)
      : WireRail(test::kJobCode, checksums),
        kind_(kind),
        out_(std::move(out)),
        in_(std::move(in)) {}
  ~MemoryRail() override {
    for (Flying& frame : out_->frames) frame.release();
    out_->writer_gone = true;
    in_->reader_gone = true;
    in_->frames.clear();
  }

  // --- calls of the model checker ---
  void end(Fault fault) { fail(fault, "the model ends it"); }
  void take_next(std::size_t frame, bool whole) {
    next_ = frame;
    whole_ = whole;
  }
  void prefer(bool preferred) { counters_.bytes_sent = preferred ? 0 : 1; }
  bool quiet = false;  // the rail appears silent
  Pipe& out() { return *out_; }
  Pipe& in() { return *in_; }

  // --- WireRail ---
  RailKind kind() const override { return kind_; }
  int fd() const override { return -1; }
  bool room() const override { return !failure(); }
  std::size_t queued_bytes() const override { return 0; }
  std::size_t queued_frames() const override { return 0; }
  std::uint64_t enqueued() const override { return 0; }
  bool departed(std::uint64_t) const override { return true; }
  void enqueue(const wire::Header& header, const std::byte* payload,
               std::uint32_t length) override {
    CHECK_EQUAL(header.length, length);
    if (out_->reader_gone) return;
    Flying frame;
    frame.header = header;
    frame.payload = payload;
    out_->frames.push_back(std::move(frame));
  }
  void repoint(std::uint32_t sequence, const std::byte* to) override {
    for (Flying& frame : out_->frames) {
      if (frame.header.sequence == sequence && !frame.released) frame.payload = to;
    }
  }
  void release(std::uint32_t sequence) override {
    for (Flying& frame : out_->frames) {
      if (frame.header.sequence == sequence) frame.release();
    }
  }
  void flush(std::int64_t) override {}
  bool blocked() const override { return false; }
  void writable() override {}
  std::int64_t due_ns() const override { return kNever; }
  void tick(std::int64_t) override {}
  bool poll(Link& link, FrameSink& sink, std::int64_t) override {
    if (next_ == kNothing) return false;
    Flying& frame = in_->frames.at(std::exchange(next_, kNothing));
    if (!frame.begun) begin(frame, link, sink);
    if (!whole_) return true;
    const std::size_t half = frame.header.length / 2;
    if (frame.header.length > 0)
      std::memcpy(frame.destination + half, frame.payload + half, frame.header.length - half);
    const Flying done = std::move(frame);
    std::erase_if(in_->frames, [&](const Flying& each) { return &each == &frame; });
    check(done);
    sink.arrive(
        link, done.header,
        Payload{done.destination, done.owned ? done.destination : nullptr, done.header.length});
    return true;
  }
  void forget(const Request* owner, FrameSink& sink) override {
    for (Flying& frame : in_->frames) {
      if (!frame.begun || frame.owned || frame.owner != owner || frame.header.length == 0) continue;
      std::byte* buffer = sink.take_buffer(frame.header.length);
      std::memcpy(buffer, frame.destination, frame.header.length / 2);
      frame.destination = buffer;
      frame.owned = true;
      frame.owner = nullptr;
    }
  }
  void abandon(FrameSink& sink) override {
    for (Flying& frame : in_->frames) {
      if (frame.begun && frame.owned) sink.give_buffer(frame.destination);
    }
    in_->frames.clear();
  }
  Confirmation confirmation(std::int64_t now_ns) override {
    Confirmation c;
    c.in_flight = quiet;
    c.quiet_since_ns = quiet ? now_ns - 500'000'000 : now_ns;
    return c;
  }

 private:
  void begin(Flying& frame, Link& link, FrameSink& sink) {
    frame.begun = true;
    const std::uint32_t length = frame.header.length;
    if (length == 0) return;
    frame.destination = sink.direct_placement(link, frame.header, &frame.owner);
    if (frame.destination == nullptr) {
      frame.destination = sink.take_buffer(length);
      frame.owned = true;
      frame.owner = nullptr;
    }
    std::memcpy(frame.destination, frame.payload, length / 2);
  }
  // Check that the payload of a frame in flight has not been changed, as a real rail does by its
  // checksum.
  void check(const Flying& frame) const {
    CHECK_EQUAL(crc32c(0, &frame.header, 60), frame.header.header_checksum);
    if (checksums() && frame.header.length > 0)
      CHECK_EQUAL(crc32c(0, frame.payload, frame.header.length), frame.header.payload_checksum);
  }

  const RailKind kind_;
  std::shared_ptr<Pipe> out_;
  std::shared_ptr<Pipe> in_;
  std::size_t next_ = kNothing;
  bool whole_ = true;
};

}  // namespace slackline::model
