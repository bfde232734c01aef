// The sending half of a UDP rail, which cuts frames into packets. Every transmission has a new
// packet number. The data of a lost packet goes into a new packet, unless another packet has
// delivered it already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>

#include "slackline/wire.h"
#include "udp_congestion.h"
#include "udp_packet.h"

namespace slackline {

struct UdpSendCounters {
  std::uint64_t frames = 0;    // frames of which all fragments were sent
  std::uint64_t bytes = 0;     // bytes of frames, each counted once
  std::uint64_t packets = 0;   // ACKs not included
  std::uint64_t resent = 0;    // packets that repeat data taken for lost
  std::uint64_t spurious = 0;  // packets taken for lost, but confirmed later
  std::uint64_t skips = 0;
  std::uint64_t timeouts = 0;
};

class UdpSender {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  UdpSender(std::size_t packet_bytes, std::uint64_t first_number);

  // The contracts of these calls are given in wire_rail.h.
  void enqueue(const wire::Header& header, const std::byte* payload, std::uint32_t length);
  void repoint(std::uint32_t sequence, const std::byte* to);
  void release(std::uint32_t sequence);
  std::uint64_t waiting_bytes() const { return waiting_bytes_; }  // never sent so far
  std::size_t waiting_frames() const { return urgent_.size() + bulk_.size(); }
  std::uint64_t queued_bytes() const { return waiting_bytes_ + lost_bytes_; }
  // Return the unconfirmed bytes of frames, sent or not.
  std::uint64_t unconfirmed_bytes() const { return waiting_bytes_ + unconfirmed_bytes_; }

  // Return the next packet that may be sent, without its checksum, and count it as sent.
  bool next(UdpPacket& packet, std::int64_t now_ns);
  // Take back the last packet that next() returned, because it was not sent.
  void take_back();
  // Process an ACK that arrived at `arrival_ns`. Return false when the ACK reports packets that
  // were never sent.
  bool acknowledge(const UdpHeader& ack, std::span<const std::byte> map, std::int64_t arrival_ns,
                   std::int64_t now_ns);
  void tick(std::int64_t now_ns);
  std::int64_t due_ns() const;
  // Set the packet size for frames that are begun from now on.
  void resize(std::size_t packet_bytes);
  // Make next() return once more, regardless of the window, every control frame that the peer may
  // lack. Called before the rail closes.
  void last_words();

  bool in_flight() const { return open_frames_ > 0; }
  std::uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  std::int64_t quiet_since_ns() const { return quiet_since_ns_; }
  int tries() const { return tries_; }
  const UdpCongestion& congestion() const { return congestion_; }
  const UdpSendCounters& counters() const { return counters_; }

 private:
  static constexpr std::uint32_t kSkip = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint64_t kNoFrame = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::size_t kMostRecords = 2 * kUdpMapBits;

  struct Frame {
    wire::Header header;
    const std::byte* payload;
    std::uint32_t total;
    std::uint16_t unit = 0;
    std::uint32_t count = 0;  // fragments
    std::uint32_t begun = 0;  // fragments sent at least once
    std::uint32_t confirmed = 0;
    std::uint32_t unconfirmed_bytes = 0;  // bytes of the begun fragments
    UdpBits have{};                       // confirmed fragments
    bool released = false;                // the payload memory is gone
    bool skipping = false;                // a SKIP is in flight or queued
    bool done = false;

    std::uint32_t bytes(std::uint32_t fragment) const {
      return std::min<std::uint32_t>(unit, total - fragment * unit);
    }
  };
  enum class State : std::uint8_t { kInFlight, kConfirmed, kLost };
  enum class Origin : std::uint8_t { kFresh, kLost, kSkip, kCopy };
  struct Piece {
    std::uint64_t frame;
    std::uint32_t fragment;  // index, or kSkip for a SKIP packet
    std::uint16_t bytes;
    Origin origin;
  };
  struct Record {  // the record of a packet that was sent
    std::int64_t sent_ns;
    Piece piece;
    State state;
  };

  Frame* find(std::uint64_t number);
  bool allowed(std::int64_t now_ns);
  bool may_begin(std::uint32_t total) const;
  Piece begin(std::deque<Frame>& queue, std::int64_t now_ns);
  Piece advance(std::uint64_t number, Frame& frame);
  bool next_piece(Piece* piece, std::int64_t now_ns);
  bool next_lost(Piece* piece);
  bool next_fresh(Piece* piece, std::int64_t now_ns);
  bool next_copy(Piece* piece);
  void fill(UdpPacket& packet, const Piece& piece, std::int64_t now_ns);
  void finish(Frame& frame);
  void skip(std::uint64_t number, Frame& frame);
  void confirm(Record& record);
  void lose(Record& record, std::uint64_t number);
  void repeat(Piece piece);
  void note_reordering(std::int64_t needed_ns, std::int64_t now_ns);
  void detect_losses(std::int64_t now_ns);
  void drop_old_records(std::int64_t now_ns);
  void time_out(std::int64_t now_ns);
  std::int64_t probe_due_ns() const;
  bool silent() const;
  // Return whether any open frame waits for a confirmation. A copy of confirmed data may be in
  // flight without an open frame, and nothing waits for it.
  bool outstanding() const {
    return open_frames_ > 0 && (in_flight_bytes_ > 0 || !lost_.empty() || !skips_.empty());
  }

  std::size_t unit_;
  // Queues of frames that have not begun. Frames without payload are control frames of the engine
  // and are sent first.
  std::deque<Frame> urgent_;
  std::deque<Frame> bulk_;
  std::uint64_t waiting_bytes_ = 0;  // bytes never sent
  std::deque<Frame> frames_;         // begun frames; first_frame_ is the number of the front
  std::uint64_t first_frame_;
  std::uint64_t current_ = kNoFrame;  // a begun frame with fragments that were never sent
  std::uint64_t open_frames_ = 0;
  std::uint64_t open_bytes_ = 0;
  std::uint64_t unconfirmed_bytes_ = 0;  // bytes sent at least once

  std::deque<Record> records_;  // first_record_ is the packet number of the front
  std::uint64_t first_record_;
  std::uint64_t in_flight_bytes_ = 0;
  std::size_t in_flight_packets_ = 0;
  std::deque<Piece> lost_;
  std::uint64_t lost_bytes_ = 0;
  std::deque<std::uint64_t> skips_;  // frames whose rest the peer need not expect

  UdpCongestion congestion_;
  std::uint64_t peer_window_;
  std::uint64_t latest_ = 0;  // one more than the highest confirmed packet number
  std::int64_t latest_round_trip_ns_ = 0;
  std::int64_t reordering_ns_ = 0;  // how much later than its successors a packet may arrive
  std::int64_t reordering_seen_ns_ = 0;
  std::int64_t loss_due_ns_ = kNever;
  bool paced_ = false;

  std::int64_t last_sent_ns_ = 0;
  std::int64_t quiet_since_ns_ = 0;
  int tries_ = 0;
  int probes_ = 0;          // probes that may be sent regardless of the window
  std::size_t copied_ = 0;  // records that probes have already repeated
  bool last_words_ = false;
  UdpSendCounters counters_;
};

}  // namespace slackline
