// The Python binding of the simulator's machine. Python owns the faults and the values that are
// reduced; the machine asks for both through functions that Python passes in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "../src/sim/flows.h"
#include "../src/sim/machine.h"
#include "bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace slackline {
namespace {

// rates_bps, latency_ps, cores, frame_ps, reduce_bytes_per_second, memory_bytes_per_second,
// memory_latency_ps, burst_bytes, ahead_bytes; a rate of 0 is no limit.
using HostTuple = std::tuple<std::vector<std::uint64_t>, sim::Time, std::uint32_t, sim::Time,
                             std::uint64_t, std::uint64_t, sim::Time, std::uint64_t, std::uint64_t>;
// header_bytes, packet_bytes (0: no limit), packet_overhead_bytes
using FramingTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
// kind, peer, chunk, last
using InstructionTuple = std::tuple<int, std::uint32_t, std::uint32_t, bool>;
// most, full, rest
using CutTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
// hosts, ranks_per_host, turns_chunks
using RotationTuple = std::tuple<std::uint32_t, std::uint32_t, bool>;
// source, target, chunk, segment, payload_bytes, partial, queued_ps
using FrameTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                              std::uint64_t, bool, sim::Time>;
// down, plain, delay_ps
using StateTuple = std::tuple<bool, bool, sim::Time>;
// lost, doubled, late_ps, overtaken_ps, rate_bps
using LotTuple = std::tuple<std::uint64_t, std::uint64_t, sim::Time, sim::Time, std::uint64_t>;

// The fields of FlowHost in their order.
using FlowHostTuple = std::tuple<sim::Time, sim::Time, sim::Time, sim::Time, sim::Time, sim::Time,
                                 sim::Time, sim::Time, sim::Time, sim::Time, sim::Time, sim::Time>;

sim::FlowHost flow_host(const FlowHostTuple& values) {
  return std::apply([](auto... each) { return sim::FlowHost{each...}; }, values);
}

// The instructions of each member.
using Programs = nb::typed<nb::iterable, nb::object>;

class PythonOwner final : public sim::Owner, public sim::Faults {
 public:
  PythonOwner(nb::object deliver, nb::object settle, nb::object state, nb::object draw)
      : deliver_(std::move(deliver)),
        settle_(std::move(settle)),
        state_(std::move(state)),
        draw_(std::move(draw)) {}

  void deliver(std::int64_t token, std::uint32_t member) override { deliver_(token, member); }
  void settle() override { settle_(); }
  sim::PathState state(const sim::Path& path) override {
    const auto [down, plain, delay] =
        nb::cast<StateTuple>(state_(path.source, path.target, path.nic));
    return sim::PathState{down, plain, delay};
  }
  sim::Lot draw(const sim::Path& path, std::uint64_t packets) override {
    const auto [lost, doubled, late, overtaken, rate_bps] =
        nb::cast<LotTuple>(draw_(path.source, path.target, path.nic, packets));
    return sim::Lot{lost, doubled, late, overtaken, rate_bps};
  }
  int traverse(visitproc visit, void* arg) const {
    for (const nb::object* object : {&deliver_, &settle_, &state_, &draw_}) Py_VISIT(object->ptr());
    return 0;
  }
  void clear() {
    for (nb::object* object : {&deliver_, &settle_, &state_, &draw_}) *object = nb::none();
  }

 private:
  nb::object deliver_, settle_, state_, draw_;
};

class PythonArithmetic final : public sim::Arithmetic {
 public:
  explicit PythonArithmetic(nb::object values) : values_(std::move(values)) {}
  std::int32_t add(std::int32_t incoming, std::int32_t mine, bool last) override {
    return nb::cast<std::int32_t>(values_.attr("add")(incoming, mine, last));
  }
  std::int32_t reduce(const std::vector<std::int32_t>& values) override {
    return nb::cast<std::int32_t>(values_.attr("reduce")(values));
  }

 private:
  nb::object values_;
};

struct BoundMachine {
  PythonOwner owner;
  sim::Machine machine;
};

struct BoundExecution {
  nb::object machine;  // keeps what the execution refers to
  std::shared_ptr<sim::Execution> execution;
};

int traverse_machine(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<BoundMachine>(self)->owner.traverse(visit, arg) : 0;
}

int clear_machine(PyObject* self) {
  nb::inst_ptr<BoundMachine>(self)->owner.clear();
  return 0;
}

int traverse_execution(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<BoundExecution>(self)->machine.ptr());
  return 0;
}

int clear_execution(PyObject* self) {
  nb::inst_ptr<BoundExecution>(self)->execution.reset();
  nb::inst_ptr<BoundExecution>(self)->machine.reset();
  return 0;
}

PyType_Slot machine_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_machine)},
                               {Py_tp_clear, reinterpret_cast<void*>(clear_machine)},
                               {0, nullptr}};
PyType_Slot execution_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_execution)},
                                 {Py_tp_clear, reinterpret_cast<void*>(clear_execution)},
                                 {0, nullptr}};

sim::Fabric fabric_of(const std::vector<HostTuple>& hosts, const FramingTuple& framing,
                      std::optional<std::uint64_t> forwards_after_bytes, sim::Time resend,
                      std::uint32_t shared_cores) {
  sim::Fabric fabric;
  for (const auto& [rates_bps, latency, cores, frame, reduce, memory, memory_latency, burst,
                    ahead] : hosts)
    fabric.hosts.push_back(
        sim::Host{rates_bps, latency, cores, frame, reduce, memory, memory_latency, burst, ahead});
  const auto [header, packet, overhead] = framing;
  fabric.framing = sim::Framing{header, packet, overhead};
  fabric.forwards_after_bytes = forwards_after_bytes.value_or(~std::uint64_t{0});
  fabric.resend = resend;
  fabric.shared_cores = shared_cores;
  return fabric;
}

std::shared_ptr<sim::CompiledPlan> compile(std::uint32_t ranks, const std::vector<CutTuple>& cuts,
                                           std::uint64_t itemsize, std::uint64_t widest_itemsize,
                                           std::uint64_t onset, std::int64_t priority, bool reduces,
                                           std::optional<RotationTuple> rotation,
                                           const Programs& programs,
                                           std::vector<std::uint32_t> nodes) {
  sim::PlanOptions options{.ranks = ranks,
                           .cuts = {},
                           .itemsize = itemsize,
                           .widest_itemsize = widest_itemsize,
                           .onset = onset,
                           .priority = priority,
                           .reduces = reduces,
                           .nodes = std::move(nodes),
                           .rotation = std::nullopt};
  for (const auto& [most, full, rest] : cuts) options.cuts.push_back(sim::Cut{most, full, rest});
  if (rotation) {
    const auto [hosts, ranks_per_host, turns_chunks] = *rotation;
    options.rotation = sim::Rotation{hosts, ranks_per_host, turns_chunks};
  }
  std::vector<std::vector<sim::Instruction>> compiled;
  for (const nb::handle program : programs) {
    std::vector<sim::Instruction>& instructions = compiled.emplace_back();
    for (const auto& [kind, peer, chunk, last] : nb::cast<std::vector<InstructionTuple>>(program))
      instructions.push_back({static_cast<sim::StepKind>(kind), peer, chunk, last});
  }
  return std::make_shared<sim::CompiledPlan>(std::move(options), compiled);
}

std::uint32_t strand_of(const sim::Execution& execution, std::uint32_t member,
                        std::uint32_t chunk) {
  return execution.plan().strand_of(member, chunk);
}

}  // namespace

void bind_simulation(nb::module_& m) {
  m.def(
      "ring_flows",
      [](const std::vector<FlowHostTuple>& values, const std::vector<sim::Time>& starts) {
        std::vector<sim::FlowHost> hosts;
        for (std::size_t i = 0; i < values.size(); ++i) {
          hosts.push_back(flow_host(values[i]));
          hosts.back().begin = sim::after(hosts.back().begin, starts.at(i));
          hosts.back().begin_last = sim::after(hosts.back().begin_last, starts.at(i));
        }
        const nb::gil_scoped_release release;
        return sim::ring_flows(hosts);
      },
      "hosts"_a, "starts_ps"_a,
      "Return the time in picoseconds at which each host of a ring has the result of an "
      "all_reduce. `hosts` has the fields of FlowHost in native/src/sim/flows.h for each host; "
      "`starts_ps` delays the start of each host.");
  m.def(
      "ring_flows_alike",
      [](const FlowHostTuple& host, std::uint32_t hosts) {
        return sim::ring_flows_alike(flow_host(host), hosts);
      },
      "host"_a, "hosts"_a, "Return the same time for `hosts` hosts that are all like `host`.");

  nb::class_<sim::CompiledPlan>(m, "SimulatedPlan", "A collective's plan, compiled for simulation.")
      .def(nb::new_(&compile), "ranks"_a, "cuts"_a, "itemsize"_a, "widest_itemsize"_a, "onset"_a,
           "priority"_a, "reduces"_a, "rotation"_a.none(), "programs"_a,
           "nodes"_a = std::vector<std::uint32_t>{},
           "`cuts` has (most, full, rest) for each chunk: `full` segments of `most` elements, then "
           "one of `rest` elements. `programs` has the instructions (kind, peer, chunk, last) of "
           "each member. `nodes` has the rank of each node of a sum in a tree.");

  nb::class_<BoundMachine>(m, "SimulatedMachine", nb::type_slots(machine_slots),
                           "A simulated machine: one clock, the wires, and every member's threads.")
      .def(
          "__init__",
          [](BoundMachine* self, const std::vector<HostTuple>& hosts, const FramingTuple& framing,
             std::optional<std::uint64_t> forwards_after_bytes, sim::Time resend_ps,
             std::uint32_t shared_cores, std::vector<std::uint32_t> placement, bool faulty,
             nb::object deliver, nb::object settle, nb::object state, nb::object draw) {
            new (&self->owner) PythonOwner(std::move(deliver), std::move(settle), std::move(state),
                                           std::move(draw));
            new (&self->machine) sim::Machine(
                fabric_of(hosts, framing, forwards_after_bytes, resend_ps, shared_cores),
                std::move(placement), faulty ? &self->owner : nullptr, self->owner);
          },
          "hosts"_a, "framing"_a, "forwards_after_bytes"_a.none(), "resend_ps"_a, "shared_cores"_a,
          "placement"_a, "faulty"_a, "deliver"_a, "settle"_a, "state"_a, "draw"_a,
          "`deliver(token, member)` is called for an event, a finished task and a member's end, "
          "`settle()` after all events of one time. If `faulty`, `state` and `draw` are called for "
          "the faults of the network.")
      .def_prop_ro("now_ps", [](BoundMachine& b) { return b.machine.clock().now(); })
      .def_prop_ro("executed", [](BoundMachine& b) { return b.machine.clock().executed(); })
      .def_prop_ro("sent_bytes", [](BoundMachine& b) { return b.machine.wires().sent_bytes; })
      .def_prop_ro("received_bytes",
                   [](BoundMachine& b) { return b.machine.wires().received_bytes; })
      .def_prop_ro("resent_packets",
                   [](BoundMachine& b) { return b.machine.wires().resent_packets; })
      .def(
          "at",
          [](BoundMachine& b, sim::Time time_ps, std::int64_t token) {
            b.machine.at(time_ps, token);
          },
          "time_ps"_a, "token"_a, "Deliver a token at a time that has not passed.")
      .def(
          "compute",
          [](BoundMachine& b, std::uint32_t member, sim::Time work_ps, std::int64_t token) {
            b.machine.compute(member, work_ps, token);
          },
          "member"_a, "work_ps"_a, "token"_a,
          "Deliver a token after `work_ps` of work of the member's computing thread.")
      .def(
          "condition",
          [](BoundMachine& b, std::uint32_t member, std::uint64_t numerator,
             std::uint64_t denominator, bool stopped) {
            b.machine.condition(member, sim::Slowness{numerator, denominator}, stopped);
          },
          "member"_a, "numerator"_a, "denominator"_a, "stopped"_a,
          "Set how many times slower than usual a member works, and whether it stands still.")
      .def(
          "set_rate",
          [](BoundMachine& b, std::uint32_t host, std::uint32_t nic, std::uint64_t rate_bps) {
            b.machine.wires().set_rate(host, nic, rate_bps);
          },
          "host"_a, "nic"_a, "rate_bps"_a)
      .def(
          "change", [](BoundMachine& b) { b.machine.wires().change(); },
          "Ask for the state of every path again; drop the frames in flight on paths that are now "
          "down.")
      .def(
          "execute",
          [](nb::handle self, std::shared_ptr<sim::CompiledPlan> plan,
             std::vector<std::uint32_t> members, std::int64_t token, bool records,
             nb::object values) {
            sim::ExecutionOptions options{.members = std::move(members),
                                          .records = records,
                                          .token = token,
                                          .arithmetic = nullptr};
            if (!values.is_none())
              options.arithmetic = std::make_unique<PythonArithmetic>(std::move(values));
            BoundMachine& bound = nb::cast<BoundMachine&>(self);
            return BoundExecution{nb::borrow(self),
                                  bound.machine.execute(std::move(plan), std::move(options))};
          },
          "plan"_a, "members"_a, "token"_a, "records"_a = false, "values"_a = nb::none(),
          "Prepare an execution of a plan; `token` is delivered with each member that has ended. "
          "`values` adds and reduces values, which are identified by numbers; None computes times "
          "only.")
      .def(
          "run", [](BoundMachine& b, sim::Time limit_ps) { b.machine.run(limit_ps); }, "limit_ps"_a,
          "Run events until `stop` is called, none is left, or `limit_ps` has passed.")
      .def(
          "stop", [](BoundMachine& b) { b.machine.stop(); },
          "Make `run` return after all events of the current time.")
      .def(
          "waiting", [](BoundMachine& b) { return b.machine.wires().waiting(); },
          "Return the (source, target) hosts of every frame that waits in a queue.");

  nb::class_<BoundExecution>(m, "SimulatedExecution", nb::type_slots(execution_slots),
                             "One collective operation on members of a simulated machine.")
      .def(
          "begin",
          [](BoundExecution& e, std::uint32_t member) {
            const std::shared_ptr<sim::Execution> execution = e.execution;
            execution->begin(member);
          },
          "member"_a)
      .def_prop_ro("finished", [](BoundExecution& e) { return e.execution->finished(); })
      .def_prop_ro("messages", [](BoundExecution& e) { return e.execution->messages(); })
      .def_prop_ro("frames",
                   [](BoundExecution& e) {
                     std::vector<FrameTuple> found;
                     for (const sim::SentFrame& frame : e.execution->frames())
                       found.emplace_back(frame.source, frame.target, frame.chunk, frame.segment,
                                          frame.payload_bytes, frame.partial, frame.queued);
                     return found;
                   })
      .def(
          "ended_ps",
          [](BoundExecution& e, std::uint32_t member) { return e.execution->ended(member); },
          "member"_a, "Return the time at which a member ended, or -1 if it has not ended.")
      .def(
          "set_value",
          [](BoundExecution& e, std::uint32_t member, std::uint32_t chunk, std::uint32_t segment,
             std::int32_t value) {
            e.execution->set_value(member, strand_of(*e.execution, member, chunk), segment, value);
          },
          "member"_a, "chunk"_a, "segment"_a, "value"_a)
      .def(
          "value",
          [](BoundExecution& e, std::uint32_t member, std::uint32_t chunk,
             std::uint32_t segment) -> std::optional<std::int32_t> {
            const std::uint32_t strand = strand_of(*e.execution, member, chunk);
            if (strand == sim::kNone) return std::nullopt;
            return e.execution->value(member, strand, segment);
          },
          "member"_a, "chunk"_a, "segment"_a,
          "Return the number of a segment's value, or None if the member has no instruction for "
          "the chunk.");
}

}  // namespace slackline
