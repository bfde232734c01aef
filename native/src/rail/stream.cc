#include "stream.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "../base/clock.h"
#include "../base/descriptor.h"
#include "slackline/crc32c.h"

namespace slackline {
namespace {

constexpr std::int64_t kMillisecondNs = 1'000'000;
constexpr std::int64_t kRepairNs = 1'000'000;  // smallest time that TCP needs to repair a loss

}  // namespace

StreamRail::StreamRail(int fd, std::uint32_t job, bool checksums, bool far)
    : WireRail(job, checksums), fd_(fd), far_(far), buffer_(new std::byte[kBufferBytes]) {
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  // Stream sockets other than TCP refuse the option, but have no such delay.
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  begin_limits();
}

StreamRail::~StreamRail() { close_once(fd_); }

void StreamRail::leave_to_parent() { close_once(fd_); }

void StreamRail::enqueue(const wire::Header& header, const std::byte* payload,
                         std::uint32_t length) {
  Outgoing frame{header, payload, length, nullptr};
  if (injector_ != nullptr) {
    apply_faults(std::move(frame));
  } else {
    queue_.push_back(std::move(frame));
    queued_bytes_ += sizeof header + length;
  }
  ++enqueued_;
}

// Apply injected faults to a frame. TCP repairs a lost packet, so a loss appears as a frame that is
// late by one round trip.
void StreamRail::apply_faults(Outgoing frame) {
  const std::int64_t now = now_ns();
  const Injector::Decision decision = injector_->decide(now, sizeof frame.header + frame.length);
  frame.sent_ns = decision.sent_ns;
  frame.release_ns = decision.release_ns;
  if (injector_->state().down) {
    frame.sent_ns = frame.release_ns = kNever;
  } else if (decision.drop) {
    const std::int64_t round_trip =
        confirmation(now).round_trip_ns + 2 * injector_->state().delay_ns;
    frame.release_ns += std::max(round_trip, kRepairNs);
  }
  if (decision.corrupt) frame.header.header_checksum ^= 1u << injector_->place(32);
  const std::size_t bytes = sizeof frame.header + frame.length;
  for (int copy = 0; copy < decision.copies; ++copy) {
    auto place = queue_.end();
    const bool first_is_under_way = front_sent_ > 0;
    if (decision.overtaken && queue_.size() > (first_is_under_way ? 1u : 0u)) --place;
    queue_.insert(place, Outgoing{frame.header, frame.payload, frame.length, nullptr, frame.sent_ns,
                                  frame.release_ns});
    queued_bytes_ += bytes;
  }
}

void StreamRail::inject(const std::optional<FaultState>& state) {
  WireRail::inject(state);
  for (Outgoing& out : queue_) {
    if (out.release_ns == kNever) out.sent_ns = out.release_ns = 0;
  }
  held_ = false;
}

// Return the bytes that wait to be sent. Frames that an injected delay holds are under way: on a
// long path they would be in the network, and the path takes more.
std::size_t StreamRail::waiting_bytes_at(std::int64_t now_ns) const {
  std::size_t bytes = 0;
  for (const Outgoing& out : queue_) {
    const bool under_way = out.sent_ns <= now_ns && out.release_ns > now_ns;
    if (!under_way) bytes += sizeof out.header + out.length;
  }
  return bytes;
}

// Return when the next frame that an injected rate holds has been sent, kNever if none is held.
std::int64_t StreamRail::next_room_ns(std::int64_t now_ns) const {
  std::int64_t next = kNever;
  for (const Outgoing& out : queue_) {
    if (out.sent_ns > now_ns) next = std::min(next, out.sent_ns);
  }
  return next;
}

void StreamRail::repoint(std::uint32_t sequence, const std::byte* to) {
  for (Outgoing& out : queue_) {
    if (out.header.sequence == sequence && out.copy == nullptr) out.payload = to;
  }
}

void StreamRail::copy_payload(Outgoing& out) {
  if (out.copy != nullptr || out.length == 0) return;
  out.copy.reset(new (std::nothrow) std::byte[out.length]);
  if (out.copy == nullptr)  // the memory must not be read any more, so the rail ends in mid-frame
    return fail(Fault::kLink, "no memory for the rest of a frame");
  std::memcpy(out.copy.get(), out.payload, out.length);
  out.payload = out.copy.get();
}

void StreamRail::release(std::uint32_t sequence) {
  for (std::size_t i = 0; i < queue_.size();) {
    Outgoing& out = queue_[i];
    if (out.header.sequence != sequence) {
      ++i;
    } else if (i == 0 && front_sent_ > 0) {
      copy_payload(out);  // a stream must finish a frame that it has begun
      ++i;
    } else {
      queued_bytes_ -= sizeof out.header + out.length;
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

void StreamRail::flush(std::int64_t now_ns) {
  held_ = false;
  while (!queue_.empty() && !full_ && !failure() && send_error_ == 0) {
    held_ = front_sent_ == 0 && queue_.front().release_ns > now_ns;
    if (held_) {
      held_until_ns_ = queue_.front().release_ns;
      if (waiting_bytes_at(now_ns) >= queue_bytes_)
        held_until_ns_ = std::min(held_until_ns_, next_room_ns(now_ns));
      return;
    }
    std::array<iovec, 32> parts;
    std::size_t used = 0;
    std::size_t skip = front_sent_;
    for (Outgoing& out : queue_) {
      if (used + 2 > parts.size() || (out.release_ns > now_ns && used > 0)) break;
      if (skip < sizeof out.header) {
        parts[used++] = {reinterpret_cast<char*>(&out.header) + skip, sizeof out.header - skip};
        skip = 0;
      } else {
        skip -= sizeof out.header;
      }
      if (out.length > skip)
        parts[used++] = {const_cast<std::byte*>(out.payload) + skip, out.length - skip};
      skip = 0;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = used;
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    ++counters_.system_calls;
    if (n < 0) {
      if (errno == EINTR) continue;
      full_ = errno == EAGAIN || errno == EWOULDBLOCK;
      if (full_) return follow_rate(now_ns);
      send_error_ = errno;  // poll() first reads what the peer sent before its end
      return;
    }
    counters_.bytes_sent += static_cast<std::uint64_t>(n);
    front_sent_ += static_cast<std::size_t>(n);
    while (!queue_.empty() && front_sent_ >= sizeof(wire::Header) + queue_.front().length) {
      const std::size_t whole = sizeof(wire::Header) + queue_.front().length;
      front_sent_ -= whole;
      queued_bytes_ -= whole;
      ++counters_.frames_sent;
      queue_.pop_front();
    }
    follow_rate(now_ns);
  }
}

bool StreamRail::check(const wire::Header& header) {
  if (header.magic != wire::kMagic || header.version != wire::kVersion) {
    fail(Fault::kFrame, "a frame began with magic " + std::to_string(header.magic) + " version " +
                            std::to_string(header.version) + ": the stream is corrupted");
  } else if (crc32c(0, &header, sizeof header - sizeof header.header_checksum) !=
             header.header_checksum) {
    fail(Fault::kFrame, "a frame's header checksum is wrong: the stream is corrupted");
  } else if (header.job != job()) {
    fail(Fault::kFrame, "a frame belongs to another job");
  } else if (header.length > kMaxPayload) {
    fail(Fault::kFrame, "a frame claims " + std::to_string(header.length) +
                            " payload bytes, more than the longest valid frame has");
  }
  return !failure();
}

bool StreamRail::check_payload(const wire::Header& header, const std::byte* data) {
  if (checksums() && header.length > 0 &&
      crc32c(0, data, header.length) != header.payload_checksum) {
    fail(Fault::kFrame, "a frame's payload checksum is wrong (sequence " +
                            std::to_string(header.sequence) + "): the data is corrupted");
  }
  return !failure();
}

bool StreamRail::read_some(bool* drained) {
  ssize_t n = 0;
  std::size_t asked = 0;
  std::size_t before = 0;
  if (in_bulk_) {
    // Read the rest of the payload directly to its destination, and the next header in the same
    // call.
    const std::size_t rest = bulk_.header.length - bulk_.got;
    const std::array<iovec, 2> parts{iovec{bulk_.data + bulk_.got, rest},
                                     iovec{buffer_.get(), kPeekBytes}};
    asked = rest + kPeekBytes;
    before = rest;
    n = ::readv(fd_, parts.data(), 2);
  } else {
    if (begin_ > 0) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    // A long frame is usually followed by another. Read little more than the header of the next
    // frame, so that the payload of the next frame goes directly to its destination and not through
    // this buffer.
    const bool expect_long = bulk_.header.length > kBufferBytes / 2;
    asked = std::min(expect_long ? kPeekBytes : kBufferBytes, kBufferBytes - end_);
    n = ::recv(fd_, buffer_.get() + end_, asked, MSG_DONTWAIT);
  }
  ++counters_.system_calls;
  *drained = n < static_cast<ssize_t>(asked);
  if (n == 0) {
    at_end_ = true;
    if (in_bulk_ || end_ > begin_) {
      fail(Fault::kFrame, "the connection closed in the middle of a frame");
    } else {
      fail(Fault::kPeer, "the connection was closed");
    }
    return false;
  }
  if (n < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      fail(Fault::kLink, std::string("receiving failed: ") + std::strerror(errno));
    return false;
  }
  const auto got = static_cast<std::size_t>(n);
  counters_.bytes_received += got;
  if (in_bulk_) {
    bulk_.got += std::min(got, before);
    begin_ = 0;
    end_ = got > before ? got - before : 0;
  } else {
    end_ += got;
  }
  return true;
}

void StreamRail::finish_bulk(Link& link, FrameSink& sink) {
  in_bulk_ = false;
  if (!check_payload(bulk_.header, bulk_.data)) {
    if (bulk_.owned) sink.give_buffer(bulk_.data);
    return;
  }
  ++counters_.frames_received;
  sink.arrive(link, bulk_.header,
              Payload{bulk_.data, bulk_.owned ? bulk_.data : nullptr, bulk_.header.length});
}

void StreamRail::parse(Link& link, FrameSink& sink) {
  while (!failure() && end_ - begin_ >= sizeof(wire::Header)) {
    wire::Header header;
    std::memcpy(&header, buffer_.get() + begin_, sizeof header);
    if (!check(header)) return;
    const std::size_t available = end_ - begin_ - sizeof header;
    const std::byte* payload = buffer_.get() + begin_ + sizeof header;
    if (header.length <= available) {
      begin_ += sizeof header + header.length;
      if (!check_payload(header, payload)) return;
      ++counters_.frames_received;
      if (header.length > 0) bulk_.header.length = 0;  // short frames usually come in groups
      sink.arrive(link, header, Payload{payload, nullptr, header.length});
      continue;
    }
    if (header.length > kBulkBytes) {
      bulk_ = Bulk{header, nullptr, false, nullptr, available};
      bulk_.data = sink.direct_placement(link, header, &bulk_.owner);
      if (bulk_.data == nullptr) {
        bulk_.data = sink.take_buffer(header.length);
        bulk_.owned = true;
        bulk_.owner = nullptr;
      }
      std::memcpy(bulk_.data, payload, available);
      begin_ = end_ = 0;
      in_bulk_ = true;
    }
    return;
  }
  if (begin_ == end_) begin_ = end_ = 0;
}

// Set the number of bytes at which the socket wakes the engine. A partial payload is useless, so on
// a slow wire the engine sleeps until a larger part has arrived. When unread bytes are left in the
// socket, the limit is one byte so that they are reported at once.
void StreamRail::await_payload(bool drained) {
  const std::size_t rest = drained && in_bulk_ && !failure() ? bulk_.header.length - bulk_.got : 1;
  const int wanted = static_cast<int>(std::min(rest, kMostAwaited));
  if (wanted == awaited_) return;
  awaited_ = wanted;
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
  ++counters_.system_calls;
}

bool StreamRail::poll(Link& link, FrameSink& sink, std::int64_t) {
  bool any = false;
  bool drained = false;
  bool empty = false;
  for (int round = 0; round < 8 && !drained && !failure() && !(any && sink.lock_wanted());
       ++round) {
    empty = !read_some(&drained);
    if (empty) break;
    any = true;
    if (in_bulk_ && bulk_.got == bulk_.header.length) finish_bulk(link, sink);
    if (!in_bulk_) parse(link, sink);
  }
  if (empty && ending())
    fail(Fault::kLink, std::string("sending failed: ") + std::strerror(send_error_));
  if (far_) await_payload(drained);
  return any;
}

void StreamRail::forget(const Request* owner, FrameSink& sink) {
  if (!in_bulk_ || bulk_.owned || bulk_.owner != owner) return;
  std::byte* buffer = nullptr;
  try {
    buffer = sink.take_buffer(bulk_.header.length);
  } catch (const std::bad_alloc&) {
    // The owner's memory must not be written to any more, so the rail ends in mid-frame.
    in_bulk_ = false;
    return fail(Fault::kLink, "no memory for the rest of a frame");
  }
  std::memcpy(buffer, bulk_.data, bulk_.got);
  bulk_.data = buffer;
  bulk_.owned = true;
  bulk_.owner = nullptr;
}

void StreamRail::abandon(FrameSink& sink) {
  if (in_bulk_ && bulk_.owned) sink.give_buffer(bulk_.data);
  in_bulk_ = false;
}

// Return what the peer's system has acknowledged according to TCP. Other stream sockets count as
// confirmed at once.
Confirmation StreamRail::confirmation(std::int64_t now_ns) {
  Confirmation result;
  tcp_info info{};
  socklen_t size = sizeof info;
  int outstanding = 0;
  if (::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      ::ioctl(fd_, SIOCOUTQ, &outstanding) != 0)
    return result;
  silence_.look({held_, info.tcpi_unacked, info.tcpi_probes, info.tcpi_bytes_acked,
                 now_ns - std::int64_t{info.tcpi_last_ack_recv} * kMillisecondNs},
                now_ns);
  result.in_flight = silence_.in_flight();
  result.quiet_since_ns = silence_.quiet_since_ns();
  result.unconfirmed = queued_bytes_ + static_cast<std::uint64_t>(outstanding);
  result.round_trip_ns = std::int64_t{info.tcpi_rtt} * 1000;
  result.tries = info.tcpi_retransmits;
  counters_.packets_sent = info.tcpi_data_segs_out;
  counters_.packets_resent = info.tcpi_total_retrans;
  return result;
}

}  // namespace slackline
