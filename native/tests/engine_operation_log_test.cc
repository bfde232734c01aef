// Tests of the records of ended operations: their values, and a ring that is full.
#include <algorithm>
#include <string>

#include "../src/base/clock.h"
#include "frames.h"

namespace slackline::test {
namespace {

TEST("the record of an operation has its kind, size, number, times and rails") {
  Ranks ranks(2, Kind::kStream);
  for (int rank = 0; rank < 2; ++rank) ranks.engine(rank).operation_log().enable(64);
  const Bytes words = pattern(300'000, 1);
  Bytes got(words.size());
  const std::int64_t before = now_ns();
  const auto in =
      ranks.engine(1).post(ranks.group(1), receive_from(0, got.data(), got.size()), false);
  const auto out =
      ranks.engine(0).post(ranks.group(0), send_to(1, words.data(), words.size()), false);
  finish(ranks.engine(0), out);
  finish(ranks.engine(1), in);
  const OperationRecord sent = record_of(*out), received = record_of(*in);
  CHECK(sent.collective == static_cast<std::uint8_t>(wire::Collective::kPointToPoint));
  CHECK(!sent.receives && received.receives);
  CHECK(sent.peer == 1 && received.peer == 0);
  CHECK(sent.bytes == words.size() && received.bytes == words.size());
  CHECK(sent.sequence == 0 && received.sequence == 0);
  CHECK(sent.rails == 1u && received.rails == 0u);
  CHECK(!sent.failed && !received.failed);
  for (const OperationRecord& record : {sent, received}) {
    CHECK(before <= record.posted_ns && record.posted_ns <= record.started_ns);
    CHECK(record.started_ns <= record.ended_ns && record.ended_ns <= now_ns());
    CHECK(record.waited_ns <= record.ended_ns - record.posted_ns);
  }
  const OperationLog::Taken taken = ranks.engine(0).operation_log().take();
  CHECK(taken.count == 1 && taken.lost == 0);
  CHECK(taken.rows.starts_with("[10,0,1,300000,"));
  std::string end(",");
  end.append(std::to_string(sent.waited_ns)).append(",0]");
  CHECK(taken.rows.ends_with(end));
  CHECK(ranks.engine(0).operation_log().take().count == 0);
  const OperationLog::Sums sums = ranks.engine(0).operation_log().sums();
  CHECK(sums.waited_ns == sent.waited_ns && sums.reduced == 0);
  CHECK(sums.running_ns == sent.ended_ns - sent.posted_ns);
}

TEST("the program's operations add up, also of those that find the ring full") {
  OperationLog log;
  log.enable(1);
  OperationRecord record{};
  for (const std::int64_t waited_ns : {300, 40}) {
    record.waited_ns = waited_ns;
    record.ended_ns = 2 * waited_ns;
    record.collective = static_cast<std::uint8_t>(wire::Collective::kAllReduce);
    record.bytes = 1000;
    log.add(record);
  }
  record.internal = 1;
  log.add(record);
  const OperationLog::Sums sums = log.sums();
  CHECK(sums.waited_ns == 340 && sums.running_ns == 680 && sums.reduced == 2000);
}

TEST("a full ring keeps its records and counts the others") {
  OperationLog log;
  log.enable(4);
  OperationRecord record{};
  for (std::uint32_t i = 0; i < 6; ++i) {
    record.sequence = i;
    log.add(record);
  }
  const OperationLog::Taken taken = log.take();
  CHECK(taken.count == 4 && taken.lost == 2);
  CHECK(std::ranges::count(taken.rows, '[') == 4);
  CHECK(taken.rows.find(",3,0,0,0,0,0,0,0,0]") != std::string::npos);
  CHECK(taken.rows.find(",4,0,0,0,0,0,0,0,0]") == std::string::npos);
  log.add(record);
  const OperationLog::Taken after = log.take();
  CHECK(after.count == 1 && after.lost == 0);
}

TEST("a capacity that is no power of two is refused") {
  OperationLog log;
  bool refused = false;
  try {
    log.enable(6);
  } catch (const std::invalid_argument& error) {
    refused = std::string(error.what()) == "the capacity must be a power of two, not 6";
  }
  CHECK(refused && !log.enabled());
}

}  // namespace
}  // namespace slackline::test
