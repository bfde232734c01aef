#include "headers.h"

#include "group.h"

namespace slackline {

wire::Header blank_header(wire::FrameKind kind) {
  wire::Header header{};
  header.magic = wire::kMagic;
  header.version = wire::kVersion;
  header.kind = static_cast<std::uint8_t>(kind);
  return header;
}

wire::Header header_for(const Request& request, wire::FrameKind kind) {
  wire::Header header = blank_header(kind);
  header.epoch = request.key.epoch;
  header.source = static_cast<std::uint16_t>(request.group->rank);
  header.dtype = static_cast<std::uint8_t>(request.dtype);
  header.op = static_cast<std::uint8_t>(static_cast<unsigned>(request.collective) << 4 |
                                        static_cast<unsigned>(request.op));
  header.tag = request.key.tag;
  header.flags = static_cast<std::uint16_t>(
      (request.program ? request.program->plan : 0u) << wire::kPlanIdShift |
      (request.shares ? static_cast<unsigned>(request.shares->number) : 0u) << wire::kSharesShift);
  return header;
}

std::uint64_t total_for(const Request& request) {
  return request.total | std::uint64_t{request.digest} << kTotalBits;
}

std::uint64_t total_for(const Request& request, const Chunk& chunk) {
  if (request.collective == wire::Collective::kAllToAll) return chunk.count * request.item_size;
  return total_for(request);
}

std::uint64_t bytes_of(const wire::Header& header) {
  return header.total & ((std::uint64_t{1} << kTotalBits) - 1);
}

std::uint16_t digest_of(const wire::Header& header) {
  return static_cast<std::uint16_t>(header.total >> kTotalBits);
}

Key key_of(const wire::Header& header) {
  std::uint32_t role = kRoleCollective;
  if (header.tag >> 56 == 2)
    role = (header.flags & wire::kFlagToSender) != 0 ? role_send(header.source)
                                                     : role_receive(header.source);
  return Key{header.tag, header.epoch, role};
}

}  // namespace slackline
