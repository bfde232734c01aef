// A group of ranks on an engine, and the description of an operation to post on it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "operation_log.h"
#include "request.h"
#include "role.h"

namespace slackline {

class Link;
class Offload;
class Worker;

// The members of a group that have left, or are lost, and why.
struct GroupLosses {
  // Set once a member is lost; no operation can be posted any more.
  Failure broken;
  // The failure that this rank itself caused and told to the other members, or none. A member that
  // connects later is told too.
  Failure told;
  // Members that closed the group in good order. Data that they sent before closing is still used.
  std::map<int, Failure> left;
  // Members whose BYE has arrived: no frame of the group comes from them any more.
  std::set<int> parted;
  // Members whose link to this rank has ended without a goodbye. Data that they sent is still used.
  std::map<int, Failure> lost;
  // Members that are lost according to another member, while the link to them still seems to live:
  // the failure, and the time until which data of the member, or the end of the link, is awaited.
  std::map<int, std::pair<Failure, std::int64_t>> told_losses;
};

// The numbers of the operations of a group, by (class, tag, role).
struct GroupNumbers {
  std::map<std::uint64_t, std::uint32_t> sequences;  // operations posted so far
  // The last posted operation that was aborted and is remembered no more.
  std::map<std::uint64_t, std::uint32_t> forgotten;
};

// The special roles of this rank in a group: of an aggregator, of a worker, or of the host of a
// device that adds. Most groups have none.
struct GroupRoles {
  std::vector<std::unique_ptr<Role>> roles;
  std::shared_ptr<Offload> device;  // the device that adds in place of the engine, or null
  bool aggregator = false;          // this rank only adds for the others, and posts nothing itself
  Worker* worker = nullptr;  // the role of a worker that can do without its aggregator, or null
};

class Group : public std::enable_shared_from_this<Group>,
              public GroupLosses,
              public GroupNumbers,
              public GroupRoles {
 public:
  Group(std::uint32_t epoch, int rank, std::vector<Link*> links, bool all_shared, bool rank_order)
      : epoch(epoch),
        rank(rank),
        links(std::move(links)),
        all_shared(all_shared),
        rank_order(rank_order) {}

  int size() const { return static_cast<int>(links.size()); }
  // Return the rank of the peer behind `link`, or -1.
  int rank_of(const Link& link) const {
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (links[i] == &link) return static_cast<int>(i);
    }
    return -1;
  }
  // Return the key in `sequences` of an operation: the operations of one key are numbered together.
  static std::uint64_t stream_of(const Key& key) {
    return (key.tag & ~std::uint64_t{0xFFFFFFFF}) | key.role;
  }
  // Return the number of operations that were posted here under the stream of this operation.
  std::uint32_t posted(const Key& key) const {
    const auto found = sequences.find(stream_of(key));
    return found == sequences.end() ? 0 : found->second;
  }
  // Call visit(rank, reason) for each member that takes no further part. A member that has left a
  // group which had failed is not the cause.
  template <class Visit>
  void each_absent(const Visit& visit) const {
    for (const auto& [member, reason] : left) visit(member, broken ? broken : reason);
    for (const auto& [member, reason] : lost) visit(member, reason);
  }
  bool all_left() const { return !left.empty() && left.size() + 1 == links.size(); }
  // Return the number of members with data of their own.
  int contributors() const { return size() - (aggregator ? 1 : 0); }
  // Return whether an aggregator adds for the group, at the aggregator and at its workers.
  bool has_aggregator() const { return aggregator || worker != nullptr; }

  const std::uint32_t epoch;
  const int rank;
  const std::vector<Link*> links;  // by rank; null at this rank's own index
  const bool all_shared;           // every link was planned to use shared memory
  const bool rank_order;           // elements are summed in rank order
  bool leaving = false;            // this rank closes the group and posts nothing any more
  bool closed = false;
};

// Memory of one chunk of an operation. An address may be null when the plan does not use it.
struct ChunkMemory {
  std::uint32_t chunk;
  std::byte* source;
  std::byte* target;
  std::uint64_t count;
};

struct Operation {
  std::shared_ptr<const Program> program;
  wire::DType dtype = wire::DType::kFloat32;
  wire::ReduceOp op = wire::ReduceOp::kNone;
  // The data is either one buffer that the plan's chunks split ...
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t count = 0;
  // ... or separate memory for each chunk.
  std::vector<ChunkMemory> chunks;
  // The shares of the ranks in the buffer; null for equal shares.
  std::shared_ptr<const Shares> shares;
  std::uint64_t total_bytes = 0;  // must be equal on all ranks
  // The checksum of the workers' tree at an aggregator, which has no such tree in its program; else
  // 0.
  std::uint16_t digest = 0;
  // -1: a collective, matched by the order of the calls. Below 2^24: a tag. From kCallbackClass <<
  // 56 on: the whole identity of a collective that was posted in a callback.
  std::int64_t tag = -1;
  int peer = -1;          // point-to-point only; -1 with any_source
  bool receives = false;  // point-to-point only
  bool any_source = false;
  // 1 or 2 marks an operation of the library itself, 0 an operation of the caller. The operations
  // of each value have sequence numbers of their own.
  int internal = 0;
  // Identity of an operation that other ranks have begun; null takes the next sequence number.
  const Key* key = nullptr;
  int priority = 0;
  std::int64_t timeout_ns = 0;
};

}  // namespace slackline
