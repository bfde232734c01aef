// The ring buffer of ended operations, and the JSON row that describes each of them.
#include "operation_log.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <stdexcept>
#include <string>

#include "completion_queue.h"
#include "group.h"
#include "request.h"

namespace slackline {
namespace {

// Classes of operations as the engine numbers them (see Engine::build): 0 and 1 are collectives
// without and with a tag, 2 a message, 3 and more collectives of the library itself.
constexpr int kMessageClass = 2;

template <class Number>
void append(std::string& row, Number value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  row.append(text, end);
  row.push_back(',');
}

void append_row(std::string& rows, const OperationRecord& r) {
  rows.push_back('[');
  append(rows, static_cast<int>(r.collective));
  append(rows, static_cast<int>(r.receives));
  append(rows, r.peer);
  append(rows, r.bytes);
  append(rows, static_cast<int>(r.dtype));
  append(rows, r.epoch);
  append(rows, r.tag);
  append(rows, r.sequence);
  append(rows, static_cast<int>(r.internal));
  append(rows, static_cast<int>(r.plan));
  append(rows, r.rails);
  append(rows, r.posted_ns);
  append(rows, r.started_ns);
  append(rows, r.ended_ns);
  append(rows, r.waited_ns);
  append(rows, static_cast<int>(r.failed));
  rows.back() = ']';
}

}  // namespace

OperationRecord record_of(const Request& request) {
  const int cls = static_cast<int>(request.key.tag >> 56);
  const bool message = cls == kMessageClass;
  const bool tagged = message || cls == 1 || in_callback(request.key.tag) ||
                      (cls > kMessageClass && (cls - 1) % 2 == 1);
  // If a thread waits for any of several operations, its wait for this operation began with the
  // thread's call or with the operation's post, whichever was later.
  std::int64_t since_ns = request.waiting_since_ns;
  if (since_ns == 0 && request.queue && request.queue->waiting_since_ns > 0)
    since_ns = std::max(request.queue->waiting_since_ns, request.posted_ns);
  OperationRecord record{};
  record.posted_ns = request.posted_ns;
  record.started_ns = request.started_ns;
  record.ended_ns = request.ended_ns;
  record.waited_ns = request.waited_ns + (since_ns > 0 ? request.ended_ns - since_ns : 0);
  record.bytes = request.total;
  const bool answered = message && (!request.any || request.any_source >= 0);
  record.peer = answered ? static_cast<std::int32_t>(request.key.role & 0xFFFF) : -1;
  record.tag = tagged ? static_cast<std::int32_t>(request.user_tag()) : -1;
  record.epoch = request.key.epoch;
  record.sequence = request.sequence();
  record.rails = request.rails;
  record.collective = static_cast<std::uint8_t>(request.collective);
  record.dtype = static_cast<std::uint8_t>(request.dtype);
  record.plan = request.program ? request.program->plan : 0;
  record.internal = static_cast<std::uint8_t>(
      cls > kMessageClass && !in_callback(request.key.tag) ? (cls - 1) / 2 : 0);
  record.receives = message && (request.any || (request.key.role & role_send(0)) == 0);
  record.failed = static_cast<bool>(request.failure);
  return record;
}

void OperationLog::enable(std::size_t capacity) {
  if (enabled()) throw std::invalid_argument("the engine records its operations already");
  if (!std::has_single_bit(capacity))
    throw std::invalid_argument("the capacity must be a power of two, not " +
                                std::to_string(capacity));
  ring_.resize(capacity);
}

void OperationLog::add(const OperationRecord& record) {
  if (record.internal == 0) {
    waited_ns_.fetch_add(record.waited_ns, std::memory_order_relaxed);
    running_ns_.fetch_add(record.ended_ns - record.posted_ns, std::memory_order_relaxed);
    const auto collective = static_cast<wire::Collective>(record.collective);
    if (collective == wire::Collective::kAllReduce ||
        collective == wire::Collective::kReduceScatter)
      reduced_.fetch_add(record.bytes, std::memory_order_relaxed);
  }
  const std::uint64_t at = added_.load(std::memory_order_relaxed);
  if (at - taken_.load(std::memory_order_acquire) >= ring_.size()) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ring_[at & (ring_.size() - 1)] = record;
  added_.store(at + 1, std::memory_order_release);
}

OperationLog::Sums OperationLog::sums() const {
  return {waited_ns_.load(std::memory_order_relaxed), running_ns_.load(std::memory_order_relaxed),
          reduced_.load(std::memory_order_relaxed)};
}

OperationLog::Taken OperationLog::take() {
  Taken taken;
  const std::uint64_t from = taken_.load(std::memory_order_relaxed);
  const std::uint64_t until = added_.load(std::memory_order_acquire);
  for (std::uint64_t at = from; at < until; ++at) {
    if (at > from) taken.rows.push_back(',');
    append_row(taken.rows, ring_[at & (ring_.size() - 1)]);
    // Free the record's place in the ring as soon as its text exists, so that new records find room
    // while a long batch is still being converted.
    taken_.store(at + 1, std::memory_order_release);
  }
  taken.count = until - from;
  const std::uint64_t lost = lost_.load(std::memory_order_relaxed);
  taken.lost = lost - told_lost_;
  told_lost_ = lost;
  return taken;
}

}  // namespace slackline
