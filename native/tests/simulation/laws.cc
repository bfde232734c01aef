// The laws that hold in every schedule: results, memory, times.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "world.h"

namespace slackline::simulation {
namespace {

// An operation ends by its deadline, the time in which the engine looks at deadlines, and the time
// in which its process stood still: perhaps between a look at the clock and a sleep.
constexpr std::int64_t kLateNs = 15 * kMillisecond;
constexpr std::int64_t kPromptNs = 3 * kMillisecond;
// A UDP rail whose peer did not answer for a while begins with a small window again, and the peer
// delays its answers to a few packets by a millisecond.
constexpr std::int64_t kPromptDatagramsNs = 10 * kMillisecond;
constexpr std::int64_t kPromptTrips = 40;

}  // namespace

// Check the bytes beside an operation's memory, or all of the memory when the operation has ended.
void World::check_margins(int number, const Doing& doing, bool poisoned) {
  const auto check = [&](const Buffer& buffer, std::size_t from, std::size_t bytes) {
    const std::byte wanted = poisoned ? kPoison : kMark;
    const std::byte* first = buffer.base + from;
    if (bytes == 0 || (first[0] == wanted && std::memcmp(first, first + 1, bytes - 1) == 0)) return;
    const auto place = std::find_if(first, first + bytes, [&](std::byte b) { return b != wanted; });
    broken("byte " + std::to_string(place - buffer.data()) +
           (poisoned ? " of the memory of ended work " : " beside the memory of work ") +
           std::to_string(doing.work) + " has changed at rank " + std::to_string(number));
  };
  for (const Buffer* buffer : {&doing.source, &doing.target}) {
    if (buffer->base == nullptr) continue;
    if (poisoned) {
      check(*buffer, 0, buffer->bytes + 2 * kMargin);
      continue;
    }
    check(*buffer, 0, kMargin);
    check(*buffer, kMargin + buffer->bytes, kMargin);
  }
}

void World::check_result(int number, const Doing& doing) {
  const Work& work = schedule_.work[doing.work];
  // Compare a part of `wanted` with the bytes of a buffer from byte `at` on.
  const auto compare = [&](const Buffer& buffer, const std::vector<std::byte>& wanted,
                           slackline::Part part, const std::string& what, std::size_t at = 0) {
    const std::byte* first = buffer.data() + at + part.offset;
    if (part.count == 0 || std::memcmp(first, wanted.data() + part.offset, part.count) == 0) return;
    const auto differs = std::mismatch(first, first + part.count,
                                       wanted.begin() + static_cast<std::ptrdiff_t>(part.offset));
    broken("byte " + std::to_string(differs.first - buffer.data()) + what + " of work " +
           std::to_string(doing.work) + " is wrong at rank " + std::to_string(number));
  };
  if (is_message(work.verb)) {
    compare(number == work.to ? doing.target : doing.source, truth_of(doing.work, 0).result,
            {0, work.count}, "");
    return;
  }
  const Group& group = group_for(work, number);
  const int members = group.size() - (work.verb == Verb::kAggregated ? 1 : 0);
  const Truth& truth = truth_of(doing.work, members);
  compare(doing.target, truth.result, part_of_result(work, members, group.rank), " of the result",
          doing.result_at);
  const auto& data = truth.data[static_cast<std::size_t>(group.rank)];
  compare(doing.target, data, {0, doing.result_at}, " of the nodes");
  if (!work.in_place) compare(doing.source, data, {0, data.size()}, " of the source");
}

// Check that an operation has ended soon after its timeout, though its rank may not have waited.
void World::check_end(int number, const Request& request) {
  if (!schedule_.progress_thread) return;
  const auto& process = system_.process(number);
  const std::int64_t due = std::max(request.deadline_ns + process.stood_ns,
                                    process.stopped_until_ns + process.clock_offset_ns);
  if (request.ended_ns > due + kLateNs)
    broken("an operation of rank " + std::to_string(number) + " ended " +
           std::to_string((request.ended_ns - request.deadline_ns) / kMillisecond) +
           " ms after its timeout");
}

// Check that a rank whose operations have all ended, and whose groups are closed, uses no memory
// but what the program holds.
void World::check_memory(int number) {
  Rank& here = rank(number);
  auto counters = here.engine->counters();
  std::size_t held = Arena::rounded(sizeof(Doorbell)) + counters["withheld_bytes"];
  const std::size_t slot =
      Arena::rounded(std::max(schedule_.memory_segment_bytes, schedule_.wire_segment_bytes));
  held += counters["slots"] * slot;
  for (const auto& doing : here.doings) {
    for (const Buffer* buffer : {&doing->source, &doing->target}) {
      if (buffer->base != nullptr && buffer->registered)
        held += Arena::rounded(buffer->bytes + 2 * kMargin);
    }
  }
  if (const std::size_t busy = here.engine->counters()["busy_slots"]; busy > 0)
    broken("rank " + std::to_string(number) + " has " + std::to_string(busy) +
           " slots in use after its operations");
  if (counters["arena_bytes"] != held)
    broken("rank " + std::to_string(number) + " uses " + std::to_string(counters["arena_bytes"]) +
           " bytes of its arena in place of " + std::to_string(held));
}

// Check that a rank's wait ended soon after the time `until_ns`.
void World::check_in_time(int number, std::int64_t until_ns) {
  const auto& process = system_.process(number);
  const std::int64_t late =
      std::max(until_ns + process.stood_ns, process.stopped_until_ns) + kLateNs;
  if (system_.now_ns() > late)
    broken("rank " + std::to_string(number) + " waited " +
           std::to_string((system_.now_ns() - until_ns) / kMillisecond) +
           " ms longer than the timeout");
}

// Check that the times of each probe have the order of its way, by the clock of the simulation.
void World::check_probes(int number) {
  const Rank& here = rank(number);
  const std::int64_t offset = system_.process(number).clock_offset_ns;
  for (const RailStatus& rail : here.engine->connections().rails()) {
    const auto link = std::ranges::find(here.links, rail.link);
    const std::int64_t theirs =
        system_.process(static_cast<int>(link - here.links.begin())).clock_offset_ns;
    for (const Probe& probe : rail.probes) {
      const std::int64_t times[] = {probe.sent - offset, probe.received - theirs,
                                    probe.answered - theirs, probe.back - offset};
      if (!std::ranges::is_sorted(times))
        broken("a probe of rank " + std::to_string(number) + " was received " +
               std::to_string(times[1] - times[0]) + " ns after it was sent, and its answer " +
               std::to_string(times[3] - times[2]) + " ns after that was sent");
    }
  }
}

// Check that operations have ended as soon as the lines allow, where nothing goes wrong and every
// rank waits for its operations. A lost wakeup otherwise costs time only, until a timer is due.
void World::check_prompt(int number) {
  const Manners& manners = schedule_.manners;
  if (!schedule_.faults.empty() || !schedule_.benign() || schedule_.aggregator ||
      manners.refusals > 0 || manners.lazy || manners.preempts || ranks_at_end_ < schedule_.ranks)
    return;
  std::size_t bytes = 0;
  for (const Work& work : schedule_.work) {
    std::size_t most = 1;
    for (int place = 0; work.has_nodes() && place < std::ssize(schedule_.groups[work.group]);
         ++place)
      most = std::max(
          most, buffers_of(work, static_cast<int>(schedule_.groups[work.group].size()), place));
    bytes += elements_of(work) * item_bytes(work) * most;
  }
  const auto sent = static_cast<double>(bytes * static_cast<std::size_t>(schedule_.ranks)) /
                    schedule_.line.bytes_per_ns;
  const bool datagrams = std::ranges::find(schedule_.datagrams, 1) != schedule_.datagrams.end();
  const std::int64_t most = (datagrams ? kPromptDatagramsNs : kPromptNs) +
                            static_cast<std::int64_t>(sent) +
                            kPromptTrips * schedule_.line.delay_ns;
  const std::int64_t took = system_.now_ns() - std::max(all_posted_ns_, shares_known_ns_);
  if (took > most)
    broken("rank " + std::to_string(number) + " waited " + std::to_string(took / kMicrosecond) +
           " us for operations that take at most " + std::to_string(most / kMicrosecond) + " us");
}

}  // namespace slackline::simulation
