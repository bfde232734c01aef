// One life of a group of ranks on an engine, and the description of an operation to post on it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "job.h"

namespace slackline {

class Link;
struct Device;

// What makes a group's last member an aggregator: it begins operations by itself (serve.cc).
struct Service {
  std::shared_ptr<const Program> program;
  std::uint32_t onset = 1;          // segments of every worker that are here before any is added
  std::deque<Key> waiting;          // everybody has begun them, and there is no room
  std::vector<std::uint64_t> tags;  // everybody has their results, and has not been told
  std::uint64_t tags_bytes = 0;     // what workers keep for them
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(std::uint32_t epoch, int rank, std::vector<Link*> links, bool all_shared, bool rank_order)
      : epoch(epoch),
        rank(rank),
        links(std::move(links)),
        all_shared(all_shared),
        rank_order(rank_order) {}

  int size() const { return static_cast<int>(links.size()); }
  // Rank of the peer behind `link`, or -1.
  int rank_of(const Link& link) const {
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (links[i] == &link) return static_cast<int>(i);
    }
    return -1;
  }
  bool all_left() const { return !left.empty() && left.size() + 1 == links.size(); }

  const std::uint32_t epoch;
  const int rank;
  const std::vector<Link*> links;  // by rank; null at the own rank
  const bool all_shared;           // every link is shared memory
  const bool rank_order;           // elements are summed in rank order
  Failure broken;                  // set once a member is lost: nothing can be posted any more
  std::map<int, Failure> left;     // members that closed in good order: what they sent still counts
  bool closed = false;
  std::map<std::uint64_t, std::uint32_t>
      sequences;                     // per (class, tag, role): operations posted so far
  std::unique_ptr<Service> service;  // at an aggregator
  std::shared_ptr<Device> device;    // what adds in the engine's stead, or null

  // At a worker of an aggregator (fallback.cc): who takes over when it is lost, and by which plan.
  std::shared_ptr<Group> fallback;
  std::shared_ptr<const Program> fallback_program;
  std::unordered_map<Key, std::shared_ptr<Kept>, KeyHash> kept;
  std::shared_ptr<Blocks> blocks;      // for them
  std::weak_ptr<Group> stands_in_for;  // the group whose fallback this one is
};

// Memory of one chunk of an operation; addresses may be null where the plan does not need them.
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
  // Either one buffer that the plan's chunks split ...
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t count = 0;
  // ... or memory chunk by chunk.
  std::vector<ChunkMemory> chunks;
  std::uint64_t total_bytes = 0;  // what all ranks must agree on
  int tag = -1;                   // -1: a collective in call order
  int peer = -1;                  // point to point only; -1 with any_source
  bool receives = false;          // point to point only
  bool any_source = false;
  const Key* key = nullptr;  // of an operation that somebody else has begun; else the next one
  int priority = 0;
  std::int64_t timeout_ns = 0;
};

}  // namespace slackline
