// The texts that describe failed operations.
#include <array>
#include <optional>
#include <string>

#include "engine_impl.h"

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

// Return, for each rank of the group, whether the request still needs data from it. `*device` says
// whether the group's device works on some part.
std::vector<bool> awaited_by(const Request& request, bool* device) {
  std::vector<bool> awaited(request.flows.size(), false);
  *device = false;
  for (const Chunk& chunk : request.chunks) {
    for (const Segment& segment : chunk.segments) {
      *device = *device || segment.handed;
      if (segment.handed) continue;
      for (std::size_t i = segment.position; i < chunk.step_list->steps.size(); ++i) {
        const Step& step = chunk.step_list->steps[i];
        if (step.opcode == Opcode::kSend || step.opcode == Opcode::kReduceAll) continue;
        bool here = false;
        for (const PendingPayload* s = segment.first; s != nullptr; s = s->next)
          here = here || s->peer == step.peer;
        if (!here) awaited[step.peer] = true;
        if (step.opcode != Opcode::kBuffer) break;
      }
    }
  }
  return awaited;
}

// Return whether the request has data for `rank` that the rank has not taken.
bool takes_data(const Request& request, std::size_t rank) {
  const PeerFlow& flow = request.flows[rank];
  return request.group->links[rank] != nullptr && (!flow.credit_blocked.empty() || flow.sent > 0);
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

std::string Engine::describe(const Request& request) const {
  return describe_operation(request.collective, request.op, request.dtype, request.total, 0);
}

Failure Engine::mismatch(const Request& request, const wire::Header& header) const {
  const auto collective = static_cast<wire::Collective>(header.op >> 4);
  const int plan = header_for(request, wire::FrameKind::kData).flags >> wire::kPlanIdShift;
  const std::string theirs =
      describe_operation(collective, static_cast<wire::ReduceOp>(header.op & 0xF),
                         static_cast<wire::DType>(header.dtype), header.total, header.flags >> 8);
  const std::string ours =
      describe_operation(request.collective, request.op, request.dtype, request.total, plan);
  std::string text;
  if (theirs == ours) {
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

// Return an operation of the same kind that `rank` has posted, and possibly aborted, but this rank
// has not. Such an operation shows that the ranks disagree about the order.
std::optional<Key> Engine::posted_instead(const Request& request, int rank) const {
  if (const auto begun = unexpected_.begun_by(rank, request.key.epoch, request.key.role))
    return begun;
  return aborted_.told_by(rank, request.key.epoch, request.key.role);
}

// Return a description of the ranks that the request waits for, and of the state of each. `*peer`
// is set to the first such rank, or to -1 when only acknowledgements are missing.
std::string Engine::waiting_for(const Request& request, int* peer) const {
  *peer = -1;
  if (request.any && request.any_source < 0)
    return "any rank, and none has sent a message with this tag";
  if (request.undivided)
    return "the end of earlier operations, which decide on the shares of the ranks";
  if (const Request* earlier = operations_.open_before(request)) {
    return "the end of " + describe(*earlier) + " sequence " + std::to_string(earlier->sequence()) +
           ", which waits for " + waiting_for(*earlier, peer);
  }
  bool device = false;
  const std::vector<bool> awaited = awaited_by(request, &device);
  std::string text;
  if (device) text = "its device (" + request.group->device->name() + ")";
  for (std::size_t rank = 0; rank < awaited.size(); ++rank) {
    if (!awaited[rank]) continue;
    if (*peer < 0) *peer = static_cast<int>(rank);
    if (!text.empty()) text += ", ";
    text += "rank " + std::to_string(rank) +
            (request.flows[rank].heard   ? " (which has begun it)"
             : request.program->forwards ? " (which has not posted it, or waits for others itself)"
                                         : " (which has not posted it)");
    if (request.flows[rank].heard) continue;
    if (const std::optional<Key> other = posted_instead(request, static_cast<int>(rank))) {
      text += " but has posted " + number_words(other->tag);
    }
  }
  if (text.empty()) {
    for (std::size_t rank = 0; rank < request.flows.size(); ++rank) {
      if (takes_data(request, rank)) {
        if (*peer < 0) *peer = static_cast<int>(rank);
        text +=
            (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " to take what was sent";
      }
    }
  }
  return text.empty() ? "its peers" : text;
}

// Return the other ranks whose parts of the request are missing. An operation without missing parts
// waits for an earlier operation, for its device, or for any sender.
std::vector<MissingPart> Engine::missing(const Request& request) const {
  if ((request.any && request.any_source < 0) || request.undivided) return {};
  if (const Request* earlier = operations_.open_before(request)) return missing(*earlier);
  bool device = false;
  const std::vector<bool> awaited = awaited_by(request, &device);
  std::vector<MissingPart> parts;
  for (std::size_t rank = 0; rank < awaited.size(); ++rank) {
    if (awaited[rank])
      parts.push_back({static_cast<int>(rank),
                       request.flows[rank].heard ? PartState::kBegun : PartState::kSilent});
  }
  if (!parts.empty() || device) return parts;
  for (std::size_t rank = 0; rank < request.flows.size(); ++rank) {
    if (takes_data(request, rank)) parts.push_back({static_cast<int>(rank), PartState::kTaking});
  }
  return parts;
}

// Return the failure for data of an operation that this rank has finished without the data. The
// sender must have posted a different operation.
Failure Engine::stray(const Group& group, const wire::Header& header) const {
  const std::string theirs = describe_operation(
      static_cast<wire::Collective>(header.op >> 4), static_cast<wire::ReduceOp>(header.op & 0xF),
      static_cast<wire::DType>(header.dtype), header.total, 0);
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

}  // namespace slackline
