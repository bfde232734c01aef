// The Python bindings of compiled plans, of posted operations and of the queues of ended
// operations.
#include "operations.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "../src/engine/split.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace slackline {
namespace {

using Instruction = std::tuple<int, int, int, bool>;
// The leaves, and for each node its rank and the sums that follow it.
using TreeTuple = std::tuple<int, std::vector<int>, std::vector<int>>;

std::shared_ptr<Program> make_program(int collective, int plan, int ranks, int rank, int chunks,
                                      bool splits, bool forwards, bool adds,
                                      const std::vector<Instruction>& instructions,
                                      std::size_t pieces, std::size_t longest_segment,
                                      bool offloads, const std::vector<int>& starts,
                                      const std::optional<TreeTuple>& tree,
                                      std::shared_ptr<Program> repeated_by) {
  if (pieces < 1) throw std::invalid_argument("pieces must be positive, not 0");
  auto program = std::make_shared<Program>(static_cast<wire::Collective>(collective),
                                           static_cast<std::uint8_t>(plan), ranks, rank, chunks,
                                           splits, forwards, adds);
  program->pieces = pieces;
  program->offloads = offloads;
  if (longest_segment > 0) program->longest_segment = longest_segment;
  program->repeated_by = std::move(repeated_by);
  if (tree)
    program->reduce_in(
        Tree{std::get<0>(*tree), std::get<1>(*tree), std::get<2>(*tree), 0, !splits});
  for (const auto& [opcode, peer, chunk, last] : instructions) {
    if (opcode < 0 || opcode > static_cast<int>(Opcode::kReduceAll))
      throw std::invalid_argument("unknown instruction code " + std::to_string(opcode));
    program->append(static_cast<Opcode>(opcode), peer, chunk, last);
  }
  for (StepList& step_list : program->step_lists) {
    if (step_list.chunk >= starts.size()) continue;
    const int start = starts[step_list.chunk];
    if (start < 0 || start >= ranks)
      throw std::invalid_argument("a chunk cannot start at rank " + std::to_string(start));
    step_list.start = static_cast<std::uint16_t>(start);
  }
  return program;
}

// Return the (offset, count) of each part of a buffer, in elements.
std::vector<std::tuple<std::uint64_t, std::uint64_t>> parts_of(
    std::uint64_t count, int parts, std::size_t item_size,
    const std::vector<std::uint32_t>& weights) {
  std::vector<std::tuple<std::uint64_t, std::uint64_t>> all;
  for (int i = 0; i < parts; ++i) {
    const Part part =
        weights.empty() ? split(count, parts, item_size, i) : split(count, weights, item_size, i);
    all.emplace_back(part.offset, part.count);
  }
  return all;
}

}  // namespace

Failure to_failure(const FailureTuple& failure) {
  const auto& [fault, message, rank, peer, tag, sequence] = failure;
  return Failure{static_cast<Fault>(fault), message, rank, peer, -1, -1};
}

FailureTuple to_tuple(const Failure& f) {
  return {static_cast<int>(f.fault), f.message, f.rank, f.peer, f.tag, f.sequence};
}

std::uintptr_t key_of(const std::shared_ptr<Request>& request) {
  return reinterpret_cast<std::uintptr_t>(request.get());
}

void bind_operations(nb::module_& m) {
  nb::class_<Program>(m, "Program", "One rank's part of a plan, compiled for the engine.")
      .def_ro("rank", &Program::rank)
      .def_ro("ranks", &Program::ranks);
  m.def("program", &make_program, "collective"_a, "plan"_a, "ranks"_a, "rank"_a, "chunks"_a,
        "splits"_a, "forwards"_a, "adds"_a, "instructions"_a, "pieces"_a = 8,
        "longest_segment"_a = 0, "offloads"_a = false, "starts"_a = std::vector<int>{},
        "tree"_a = nb::none(), "repeated_by"_a = nb::none(),
        "Compile a rank's instructions (opcode, peer, chunk, last). The other arguments are "
        "properties of the whole plan. `splits`: the chunks are parts of one buffer. `forwards`: "
        "some rank forwards data that it received. `adds`: some rank adds. `pieces`: the number of "
        "segments of a pipelined chunk. `longest_segment`: the limit of a segment in bytes, 0 for "
        "the engine's own limit. `offloads`: a device of some rank may add. `starts`: for a ring, "
        "the rank whose data starts each chunk. `tree`: for a sum in a tree, the number of leaves, "
        "the rank of each node, and the number of sums that follow each node; with `splits` each "
        "rank has one node, in the chunks of any plan. `repeated_by`: for a worker of an "
        "aggregator, the program that repeats the operation if the aggregator is lost, where this "
        "is not the one of `fall_back`.");

  m.def("split", &parts_of, "count"_a, "parts"_a, "item_size"_a, "weights"_a = nb::list(),
        "Return the (offset, count) of each part of a buffer, in elements; `weights` set the "
        "parts' sizes.");
  nb::class_<Shares>(m, "Shares", "The weights of the ranks' shares in an operation.")
      .def(nb::init<>());

  nb::class_<BoundRequest>(m, "Request", "A posted operation.")
      .def(
          "done", [](const BoundRequest& j) { return j.request->finished(); },
          "Return whether the operation has ended, with or without an error.")
      .def(
          "wait",
          [](BoundRequest& j, std::int64_t timeout_ns) {
            return j.engine->wait(*j.request, timeout_ns);
          },
          "timeout_ns"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Block until the operation has ended. Return False if `timeout_ns` passed first; a "
          "negative timeout leaves only the operation's own deadline.")
      .def(
          "cancel",
          [](BoundRequest& j, const FailureTuple& failure) {
            j.engine->cancel(*j.request, to_failure(failure));
          },
          "failure"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Fail the operation on every rank with `failure`, a tuple as Request.failure returns. Do "
          "nothing if the operation has ended on this rank.")
      .def(
          "failure",
          [](const BoundRequest& j) -> std::optional<FailureTuple> {
            if (!j.request->finished() || !j.request->failure) return std::nullopt;
            return to_tuple(j.request->failure);
          },
          "Return (fault, message, rank, peer, tag, sequence) of a failed operation, else None.")
      .def(
          "watch", [](BoundRequest& j) { return j.engine->watch(*j.request); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Make next_completion() return the operation's key once. Return True, and do nothing, if "
          "the operation has ended already.")
      .def(
          "open_at_end",
          [](BoundRequest& j, const std::vector<BoundRequest>& others, std::uintptr_t word,
             std::uint32_t value) {
            std::vector<Request*> requests{j.request.get()};
            for (const BoundRequest& other : others) requests.push_back(other.request.get());
            return j.engine->open_at_end(requests, *reinterpret_cast<std::uint32_t*>(word), value);
          },
          "others"_a, "word"_a, "value"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Have the engine write the 32 bits `value` to the address `word` when this operation and "
          "`others` have ended, unless one of them fails, before that end can be seen. Return "
          "False, and do nothing, if all have ended, or one has failed. The word must outlive the "
          "operations.")
      .def(
          "key", [](const BoundRequest& j) { return key_of(j.request); },
          "Return the operation's key, which next_completion() returns too.")
      .def(
          "source", [](const BoundRequest& j) { return j.request->any_source; },
          "Return the rank that sent the message of a receive from any source, or -1 while it is "
          "unknown.")
      .def(
          "ended_ns",
          [](const BoundRequest& j) {
            return j.request->finished() ? j.request->ended_ns : std::int64_t{0};
          },
          "Return the time of the operation's end in ns of the monotonic clock, or 0 before it.");

  nb::class_<BoundQueue>(m, "CompletionQueue",
                         "A queue of the ended operations that a thread watches.")
      .def(
          "watch",
          [](BoundQueue& q, const BoundRequest& j) { q.engine->watch(*j.request, q.queue); },
          "request"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Make `wait` return the operation's key once the operation has ended.")
      .def(
          "wait",
          [](BoundQueue& q, std::int64_t timeout_ns) {
            std::vector<std::uintptr_t> keys;
            for (const auto& request : q.engine->next(*q.queue, timeout_ns))
              keys.push_back(key_of(request));
            return keys;
          },
          "timeout_ns"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Drive the engine until an operation ends, at most `timeout_ns`; return the keys of all "
          "that have ended.");
}

}  // namespace slackline
