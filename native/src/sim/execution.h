// The execution of one collective's plan, segment by segment, as the engine executes it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "clock.h"
#include "plan.h"
#include "processor.h"
#include "wires.h"

namespace slackline::sim {

class Machine;

inline constexpr std::int32_t kNoValue = -1;

// The arithmetic of an execution whose values are computed too. A value is identified by a number.
class Arithmetic {
 public:
  virtual ~Arithmetic() = default;
  // Return the number of the result of an ADD; `last` is true if the chunk is then complete.
  virtual std::int32_t add(std::int32_t incoming, std::int32_t mine, bool last) = 0;
  // Return the number of the result of a REDUCE_ALL over the values of all ranks, in rank order.
  virtual std::int32_t reduce(const std::vector<std::int32_t>& values) = 0;
};

// A frame that a member has handed to its NICs.
struct SentFrame {
  std::uint32_t source, target, chunk, segment;
  std::uint64_t payload_bytes;
  bool partial;
  Time queued;
};

struct ExecutionOptions {
  std::vector<std::uint32_t> members;                // the machine's member for each plan member
  bool records = false;                              // keeps every frame in `frames`
  std::int64_t token = 0;                            // delivered when a member has ended
  std::unique_ptr<Arithmetic> arithmetic = nullptr;  // null: only times are computed
};

// A collective operation on members of a machine; a member begins when `begin` is called for it.
class Execution {
 public:
  Execution(Machine& machine, std::shared_ptr<const CompiledPlan> plan, ExecutionOptions options);

  // Begin the operation at a member: start the first segment of every chunk, then the second
  // segment of every chunk, and so on.
  void begin(std::uint32_t member);
  bool finished() const { return open_ == 0; }
  // Return the time at which a member finished its part, or -1 if it has not finished.
  Time ended(std::uint32_t member) const { return members_.at(member).ended; }
  // Set or return the value of a segment of a strand (the steps of one chunk) at a member.
  void set_value(std::uint32_t member, std::uint32_t strand, std::uint32_t segment,
                 std::int32_t value);
  std::int32_t value(std::uint32_t member, std::uint32_t strand, std::uint32_t segment) const;
  const CompiledPlan& plan() const { return *plan_; }
  const std::vector<SentFrame>& frames() const { return frames_; }
  std::uint64_t messages() const { return messages_; }
  // Return whether the machine may delete the execution: all members have finished and none of its
  // frames is in flight.
  bool over() const { return open_ == 0 && under_way_ == 0; }

  // Calls that the machine makes:
  void queue(std::uint32_t frame);    // hand a frame to the NICs
  void sent(std::uint32_t frame);     // handle a frame that has left its host
  void arrived(std::uint32_t frame);  // handle a frame that has arrived at the receiver's host
  void take(std::uint32_t frame);     // handle a frame that the receiver's engine has processed
  void reduced(std::uint32_t member, std::uint32_t strand, std::uint32_t segment);

 private:
  // A segment of a chunk at a member; `position` is the step of its strand that is next.
  struct Segment {
    std::uint32_t position = 0;
    std::uint32_t buffered = 0;  // number of values buffered for a later REDUCE_ALL
    std::int32_t value = kNoValue;
    bool busy = false;
  };
  struct Member {
    bool begun = false;
    bool gated = false;
    Time ended = -1;
    std::uint64_t open_segments = 0;
    std::uint64_t open_sends = 0;
    std::uint64_t first_segment = 0;
    std::uint64_t first_cell = 0;
    std::vector<std::uint32_t> early;  // frames that arrived before the member began
    std::unordered_map<std::uint32_t, std::uint64_t> arrivals;  // segments by rank, before adding
  };

  Segment& segment_at(std::uint32_t member, const Strand& strand, std::uint32_t segment) {
    return segments_[members_[member].first_segment + strand.first_segment + segment];
  }
  std::uint64_t cell(std::uint32_t member, const Strand& strand, std::uint32_t segment,
                     std::uint32_t step) const {
    return members_[member].first_cell + strand.first_cell + std::uint64_t{segment} * strand.steps +
           step;
  }
  const Host& host_of(std::uint32_t member) const;
  Thread& engine_of(std::uint32_t member);
  void advance(std::uint32_t member, std::uint32_t strand, std::uint32_t segment);
  void send(std::uint32_t member, std::uint32_t strand, std::uint32_t segment, std::uint32_t step);
  std::uint32_t place_of(const Step& step) const;
  std::uint64_t more_nodes(std::uint32_t member) const;
  void reduce(std::uint32_t member, std::uint32_t strand, std::uint32_t segment,
              std::uint64_t operands);
  void compute(std::uint32_t member, const Strand& strand, std::uint32_t segment, const Step& step,
               std::uint32_t index);
  void count(std::uint32_t member, std::uint32_t peer);
  void check_end(std::uint32_t member);

  Machine& machine_;
  std::shared_ptr<const CompiledPlan> plan_;
  ExecutionOptions options_;
  std::vector<Member> members_;
  std::vector<Segment> segments_;
  std::vector<char> arrived_;                 // by cell
  std::vector<std::int32_t> arrived_values_;  // by cell, with arithmetic only
  // The buffered values of each segment, by the segment's first cell and then by rank; used with
  // arithmetic only.
  std::unordered_map<std::uint64_t, std::map<std::uint32_t, std::int32_t>> held_;
  std::vector<SentFrame> frames_;
  std::uint64_t messages_ = 0;
  std::uint64_t under_way_ = 0;
  std::uint32_t open_;
};

}  // namespace slackline::sim
