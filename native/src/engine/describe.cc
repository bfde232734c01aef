#include "describe.h"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "../base/figures.h"
#include "headers.h"

namespace slackline {
namespace {

const char* name_of(wire::Collective c) {
  constexpr std::array<const char*, 11> kNames = {
      "nothing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
      "gather",  "scatter",    "all_to_all",     "barrier",    "message"};
  const auto i = static_cast<std::size_t>(c);
  return i < kNames.size() ? kNames[i] : "unknown collective";
}

const char* name_of(wire::ReduceOp op) {
  constexpr std::array<const char*, 9> kNames = {"",     "sum",  "avg", "min", "max",
                                                 "prod", "band", "bor", "bxor"};
  const auto i = static_cast<std::size_t>(op);
  return i < kNames.size() ? kNames[i] : "unknown reduction";
}

const char* name_of(wire::DType dtype) {
  constexpr std::array<const char*, 14> kNames = {
      "none",  "float32", "float64", "float16", "bfloat16", "int8",   "int16",
      "int32", "int64",   "uint8",   "uint16",  "uint32",   "uint64", "bool"};
  const auto i = static_cast<std::size_t>(dtype);
  return i < kNames.size() ? kNames[i] : "unknown dtype";
}

std::string describe_operation(wire::Collective collective, wire::ReduceOp op, wire::DType dtype,
                               std::uint64_t total, int plan) {
  if (collective == wire::Collective::kBarrier) return "barrier()";
  std::string text = name_of(collective);
  text += "(";
  if (op != wire::ReduceOp::kNone) text += std::string(name_of(op)) + ", ";
  text += std::string(name_of(dtype)) + ", " + std::to_string(total) + " bytes";
  if (plan != 0) text += ", plan " + std::to_string(plan & 0xF);
  if (plan > 0xF) text += ", shares " + std::to_string(plan >> 4);
  return text + ")";
}

// Return an addition to an error message about a full arena: which peers keep memory from being
// used again.
std::string withheld_words(const std::map<std::string, std::uint64_t>& bytes_by_peer) {
  std::string words;
  for (const auto& [peer, bytes] : bytes_by_peer) {
    if (bytes == 0) continue;
    words += (words.empty() ? ", of which " : " and ") + show_bytes(bytes) +
             " are freed but withheld, because " + peer +
             " may still write to them: it has not noticed yet that an operation has failed";
  }
  return words;
}

}  // namespace

std::string number_words(std::uint64_t tag) {
  const auto sequence = std::to_string(static_cast<std::uint32_t>(tag));
  if (tag >> 56 == kCallbackClass)
    return "in callback " + std::to_string(tag >> 44 & 0xFFF) + " of operation " + sequence +
           ", place " + std::to_string(tag >> 32 & 0xFFF);
  if (tag >> 56 == kNestedCallbackClass)
    return "in a callback of another callback's or group's operation, place " +
           std::to_string(tag & ~(std::uint64_t{0xFF} << 56));
  return "tag " + std::to_string(tag >> 32 & 0xFFFFFF) + " sequence " + sequence;
}

std::string describe(const Request& request) {
  return describe_operation(request.collective, request.op, request.dtype, request.total, 0);
}

Failure mismatch(const Request& request, const wire::Header& header) {
  const auto collective = static_cast<wire::Collective>(header.op >> 4);
  const int plan = header_for(request, wire::FrameKind::kData).flags >> wire::kPlanIdShift;
  const std::string theirs = describe_operation(
      collective, static_cast<wire::ReduceOp>(header.op & 0xF),
      static_cast<wire::DType>(header.dtype), bytes_of(header), header.flags >> 8);
  const std::string ours =
      describe_operation(request.collective, request.op, request.dtype, request.total, plan);
  std::string text;
  if (theirs == ours && header.total != bytes_of(header)) {
    text = "the ranks disagree on " + describe(request) + ": rank " +
           std::to_string(header.source) + " and rank " + std::to_string(request.group->rank) +
           " have different nodes of the tree (are the runs the same on every rank?)";
  } else if (theirs == ours) {
    text = "the ranks disagree on " + describe(request) + ": rank " +
           std::to_string(header.source) + " sent chunk " + std::to_string(header.chunk) +
           ", which rank " + std::to_string(request.group->rank) +
           " does not expect from it (is the root the same on every rank?)";
  } else {
    text = "the ranks disagree: rank " + std::to_string(header.source) + " posted " + theirs +
           " where rank " + std::to_string(request.group->rank) + " posted " + ours;
  }
  return Failure{Fault::kMismatch, std::move(text),    request.group->rank,
                 header.source,    request.user_tag(), request.sequence()};
}

Failure stray(const Group& group, const wire::Header& header) {
  const std::string theirs = describe_operation(
      static_cast<wire::Collective>(header.op >> 4), static_cast<wire::ReduceOp>(header.op & 0xF),
      static_cast<wire::DType>(header.dtype), bytes_of(header), 0);
  const auto tag = static_cast<std::uint32_t>(header.tag >> 32) & 0xFFFFFFu;
  const auto sequence = static_cast<std::uint32_t>(header.tag);
  return Failure{Fault::kMismatch,
                 "the ranks disagree: rank " + std::to_string(header.source) + " sent data of " +
                     theirs + " " + number_words(header.tag) + ", which rank " +
                     std::to_string(group.rank) +
                     " has finished without it (is the root the same on every rank?)",
                 group.rank,
                 header.source,
                 tag,
                 sequence};
}

Failure no_room(const Request& request, const Memory& memory, std::size_t bytes, const char* what) {
  return Failure{Fault::kUsage,
                 "rank " + std::to_string(request.group->rank) + ": the arena has no room for " +
                     show_bytes(bytes) + " of " + what + " for " + describe(request) + ": " +
                     show_bytes(memory.arena().used()) + " of " +
                     show_bytes(memory.arena().capacity()) + " are in use" +
                     withheld_words(memory.loans().withheld_by_peer()),
                 request.group->rank,
                 -1,
                 request.user_tag(),
                 request.sequence()};
}

}  // namespace slackline
