// The binding between Python and the engine. Addresses, sizes and codes cross this boundary; it
// contains no logic.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "../src/engine/engine.h"
#include "../src/kernels/float_modes.h"
#include "bind.h"
#include "group.h"
#include "operations.h"
#include "rails.h"
#include "slackline/crc32c.h"
#include "slackline/fingerprint.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace slackline {
namespace {

using ChunkTuple = std::tuple<std::uint32_t, std::uintptr_t, std::uintptr_t, std::uint64_t>;

// The default floating-point modes on the thread that enters, until the same thread exits.
struct BoundModes {
  std::optional<kernels::DefaultFloatModes> modes;
};

// An operation on one buffer that can be posted again and again, each time on other memory.
struct PreparedRun {
  BoundGroup group;
  Operation operation;
};

std::vector<std::tuple<int, int, int>> kernel_fingerprints() {
  std::vector<std::tuple<int, int, int>> rows;
  for (const auto& [dtype, op, checksum] : kernels::fingerprints())
    rows.emplace_back(static_cast<int>(dtype), static_cast<int>(op), checksum);
  return rows;
}

// Convert an address from Python. The caller keeps the memory alive until the operation has
// finished.
std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// Return a function of an engine that makes this call.
template <class Result, class... Arguments>
auto on_connections(Result (Connections::*call)(Arguments...)) {
  return [call](Engine& engine, Arguments... arguments) -> Result {
    return (engine.connections().*call)(std::forward<Arguments>(arguments)...);
  };
}

// Run the handlers of the signals that have arrived, and throw the exception of a handler. Python
// runs handlers on the main thread alone.
void run_signal_handlers() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

Operation reduction(const std::shared_ptr<Program>& program, int dtype, int op, std::int64_t tag,
                    int priority, std::int64_t timeout_ns) {
  Operation operation;
  operation.program = program;
  operation.dtype = static_cast<wire::DType>(dtype);
  operation.op = static_cast<wire::ReduceOp>(op);
  operation.tag = tag;
  operation.priority = priority;
  operation.timeout_ns = timeout_ns;
  return operation;
}

// Post an operation. Return null when it has already been carried out, else a handle to wait on or
// to ask for the failure.
std::optional<BoundRequest> submit(BoundGroup& self, const Operation& operation, bool blocking) {
  std::shared_ptr<Request> request = self.engine->post(*self.group, operation, blocking);
  if (request->state.load(std::memory_order_acquire) == RequestState::kDone &&
      !operation.any_source)
    return std::nullopt;
  return BoundRequest{self.engine, std::move(request)};
}

}  // namespace
}  // namespace slackline

NB_MODULE(_native, m) {
  using namespace slackline;
  m.doc() = "The native core of Slackline: the NIC engine, and the machine of the simulator.";
  bind_lab(m);
  bind_simulation(m);
  bind_operations(m);

  m.def(
      "crc32c",
      [](nb::bytes data, std::uint32_t seed) { return crc32c(seed, data.data(), data.size()); },
      "data"_a, "seed"_a = 0, "Return the CRC32C of `data`, continued from `seed`.");

  m.def("kernel_fingerprints", &kernel_fingerprints,
        "Return (dtype, op, checksum of 16 bits) of the kernels' results on fixed inputs, for each "
        "element type and reduction, always in the same order.");
  nb::class_<BoundModes>(m, "DefaultFloatModes",
                         "A context manager that sets the default floating-point modes (rounding "
                         "to nearest, subnormals kept) on its thread, and at the end the thread's "
                         "own again.")
      .def(nb::init<>())
      .def("__enter__", [](BoundModes& self) { self.modes.emplace(); })
      .def(
          "__exit__", [](BoundModes& self, const nb::args&) { self.modes.reset(); },
          nb::sig("def __exit__(self, *error: object) -> None"));

  nb::class_<PreparedRun>(m, "PreparedRun",
                          "An operation on one buffer, ready to be posted any number of times.")
      .def(
          "post",
          [](PreparedRun& self, std::uintptr_t source, std::uintptr_t target, int priority,
             std::int64_t timeout_ns, bool blocking) {
            Operation operation = self.operation;
            operation.source = at(source);
            operation.target = at(target);
            operation.priority = priority;
            operation.timeout_ns = timeout_ns;
            return submit(self.group, operation, blocking);
          },
          "source"_a, "target"_a, "priority"_a, "timeout_ns"_a, "blocking"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Post the operation on this memory. Return None if the operation is done already.");

  nb::class_<BoundGroup> group(m, "Group",
                               "A group of ranks on an engine, from its opening to its end.");
  group.def_prop_ro("rank", [](const BoundGroup& g) { return g.group->rank; })
      .def_prop_ro("size", [](const BoundGroup& g) { return g.group->size(); })
      .def_prop_ro(
          "all_shared", [](const BoundGroup& g) { return g.group->all_shared; },
          "True when every link was planned to use shared memory, which all ranks know equally.")
      .def(
          "run",
          [](BoundGroup& self, const std::shared_ptr<Program>& program, std::uintptr_t source,
             std::uintptr_t target, std::uint64_t count, int dtype, int op,
             std::uint64_t total_bytes, std::int64_t tag, int priority, std::int64_t timeout_ns,
             bool blocking, std::shared_ptr<Shares> shares, int internal) {
            Operation operation = reduction(program, dtype, op, tag, priority, timeout_ns);
            operation.shares = std::move(shares);
            operation.internal = internal;
            operation.source = at(source);
            operation.target = at(target);
            operation.count = count;
            operation.total_bytes = total_bytes;
            return submit(self, operation, blocking);
          },
          "program"_a, "source"_a, "target"_a, "count"_a, "dtype"_a, "op"_a, "total_bytes"_a,
          "tag"_a, "priority"_a, "timeout_ns"_a, "blocking"_a, "shares"_a = nb::none(),
          "internal"_a = 0, nb::call_guard<nb::gil_scoped_release>(),
          "Post an operation on one buffer. Return None if the operation is done already. With "
          "`shares` the operation begins once their weights are set.")
      .def(
          "prepare",
          [](BoundGroup& self, const std::shared_ptr<Program>& program, std::uint64_t count,
             int dtype, int op, std::uint64_t total_bytes, std::int64_t tag) {
            PreparedRun prepared{self, reduction(program, dtype, op, tag, 0, 0)};
            prepared.operation.count = count;
            prepared.operation.total_bytes = total_bytes;
            return prepared;
          },
          "program"_a, "count"_a, "dtype"_a, "op"_a, "total_bytes"_a, "tag"_a,
          "Prepare an operation on one buffer of `count` elements, as `run` posts it.")
      .def(
          "run_chunks",
          [](BoundGroup& self, const std::shared_ptr<Program>& program,
             const std::vector<ChunkTuple>& chunks, int dtype, int op, std::uint64_t total_bytes,
             std::int64_t tag, int priority, std::int64_t timeout_ns, bool blocking, int internal) {
            Operation operation = reduction(program, dtype, op, tag, priority, timeout_ns);
            operation.internal = internal;
            for (const auto& [chunk, source, target, count] : chunks)
              operation.chunks.push_back(ChunkMemory{chunk, at(source), at(target), count});
            operation.total_bytes = total_bytes;
            return submit(self, operation, blocking);
          },
          "program"_a, "chunks"_a, "dtype"_a, "op"_a, "total_bytes"_a, "tag"_a, "priority"_a,
          "timeout_ns"_a, "blocking"_a, "internal"_a = 0, nb::call_guard<nb::gil_scoped_release>(),
          "Post an operation on chunks (chunk, source, target, count). Return None if the "
          "operation is done already. An `internal` operation has sequence numbers apart from "
          "those of the caller's operations.")
      .def(
          "set_shares",
          [](BoundGroup& self, Shares& shares, std::vector<std::uint32_t> weights, int number,
             std::shared_ptr<Program> program) {
            self.engine->set_shares(*self.group, shares, std::move(weights), number,
                                    std::move(program));
          },
          "shares"_a, "weights"_a, "number"_a, "program"_a = nb::none(),
          nb::call_guard<nb::gil_scoped_release>(),
          "Set the weights of the ranks' shares (empty: equal shares) and start the operations "
          "that wait for them. `number`, 0 to 15, identifies the weights in frames; `program` "
          "replaces the operations' program.")
      .def(
          "decline",
          [](BoundGroup& self, Shares& shares, const FailureTuple& failure) {
            self.engine->decline(shares, to_failure(failure));
          },
          "shares"_a, "failure"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Fail the operations that wait for the shares, and all that are posted with them later, "
          "with `failure`, a tuple as Request.failure returns.")
      .def(
          "message",
          [](BoundGroup& self, bool receives, std::uintptr_t address, std::uint64_t count,
             int dtype, std::uint64_t total_bytes, int peer, int tag, int priority,
             std::int64_t timeout_ns, bool blocking) {
            Operation operation = reduction(nullptr, dtype, 0, tag, priority, timeout_ns);
            (receives ? operation.target : operation.source) = at(address);
            operation.count = count;
            operation.total_bytes = total_bytes;
            operation.receives = receives;
            operation.peer = peer;
            operation.any_source = receives && peer < 0;
            return submit(self, operation, blocking);
          },
          "receives"_a, "address"_a, "count"_a, "dtype"_a, "total_bytes"_a, "peer"_a, "tag"_a,
          "priority"_a, "timeout_ns"_a, "blocking"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Send a message to a peer, or receive one from it (-1: from any rank). Return None if "
          "the message is done already.")
      .def(
          "serve",
          [](BoundGroup& self, std::shared_ptr<Program> program, std::uint32_t onset,
             std::shared_ptr<Program> tree) {
            self.engine->roles().serve(*self.group, std::move(program), onset, std::move(tree));
          },
          "program"_a, "onset"_a, "tree"_a = nb::none(), nb::call_guard<nb::gil_scoped_release>(),
          "Make this rank, the group's last member, an aggregator that reduces for the others by "
          "`program`. Frames of the other members begin operations; addition starts when `onset` "
          "segments of each member have arrived. `tree` is the program for sums of one node of "
          "each "
          "member in a tree, None for an aggregator that does not add these.")
      .def(
          "fall_back",
          [](BoundGroup& self, const BoundGroup& fallback, std::shared_ptr<Program> program) {
            self.engine->roles().fall_back(*self.group, fallback.group, std::move(program));
          },
          "fallback"_a, "program"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Make `fallback` finish all open operations, by `program`, when the group's last member "
          "is lost.")
      .def(
          "broken", [](BoundGroup& self) { return self.engine->broken(*self.group); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Return why the group refuses operations, or an empty text if it does not.")
      .def(
          "close",
          [](BoundGroup& self, std::int64_t timeout_ns) {
            self.engine->close_group(*self.group, timeout_ns);
          },
          "timeout_ns"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Finish all open operations, then leave the group and tell its members.")
      .def(
          "abort",
          [](BoundGroup& self, const std::string& reason) {
            self.engine->abort_group(*self.group, reason);
          },
          "reason"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Fail all open operations of the group, on this rank and on the others.");
  bind_device(group);

  bind_rails(m);
  bind_open_operations(m);

  // Silence the leak warnings in a forked process. The child's copies of the parent's objects must
  // not be destroyed, so the copies are left in place.
  ::pthread_atfork(nullptr, nullptr, [] { nb::set_leak_warnings(false); });

  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Elsewhere& error) {
      const nb::object type = nb::module_::import_("slackline.errors").attr("UsageError");
      PyErr_SetString(type.ptr(), error.what());
    } catch (const std::system_error& error) {
      PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what()).ptr());
    }
  });

  nb::class_<PeerArena>(m, "PeerArena",
                        "The arena of a peer on the same host, mapped into this process.")
      .def(nb::init<int, std::size_t>(), "fd"_a, "bytes"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Map the arena behind `fd`, which stays the caller's. Raises ValueError unless the file "
           "has `bytes` bytes and cannot shrink, OSError if this process cannot map it.");

  nb::class_<Engine>(m, "Engine", "The NIC engine of one rank.")
      .def(
          "__init__",
          [](Engine* self, std::size_t arena_bytes, std::size_t wire_segment_bytes,
             std::size_t memory_segment_bytes, std::uint64_t eager_bytes, int spin_microseconds) {
            EngineOptions options;
            options.arena_bytes = arena_bytes;
            options.wire_segment_bytes = wire_segment_bytes;
            options.memory_segment_bytes = memory_segment_bytes;
            options.eager_bytes = eager_bytes;
            options.spin_microseconds = spin_microseconds;
            options.look = run_signal_handlers;
            new (self) Engine(options);
          },
          "arena_bytes"_a, "wire_segment_bytes"_a, "memory_segment_bytes"_a, "eager_bytes"_a,
          "spin_microseconds"_a)
      .def_prop_ro("arena_fd", [](Engine& e) { return e.arena().fd(); })
      .def_prop_ro("arena_bytes", [](Engine& e) { return e.arena().capacity(); })
      .def_prop_ro("doorbell_fd", [](Engine& e) { return e.connections().doorbell_fd(); })
      .def(
          "allocate",
          [](Engine& e, std::size_t bytes) {
            return reinterpret_cast<std::uintptr_t>(e.allocate(bytes));
          },
          "bytes"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Return the address of newly allocated registered memory, or 0 if there is no room.")
      .def(
          "free",
          [](Engine& e, std::uintptr_t address) {
            // Finalizers in a forked process must not free memory that the parent still uses.
            return e.elsewhere() || e.arena().free(at(address));
          },
          "address"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("withheld", &Engine::withheld, nb::call_guard<nb::gil_scoped_release>(),
           "Return the bytes of freed memory that cannot be allocated yet, by the name of the peer "
           "that may still read or write the memory, because it has not noticed that an operation "
           "has failed.")
      .def(
          "contains",
          [](Engine& e, std::uintptr_t address, std::size_t bytes) {
            return e.arena().contains(at(address), bytes);
          },
          "address"_a, "bytes"_a)
      .def("new_ring", on_connections(&Connections::new_ring),
           nb::call_guard<nb::gil_scoped_release>(),
           "Create a receive ring in the arena; return its offset.")
      .def("free_ring", on_connections(&Connections::free_ring), "offset"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Free a ring that no rail has and no peer writes to; return False if `offset` has no "
           "ring.")
      .def(
          "add_link",
          [](Engine& e, std::string name, bool reconnect, bool shared) {
            return e.connections().add_link(std::move(name), reconnect, 1, shared);
          },
          "name"_a, "reconnect"_a = false, "shared"_a = false,
          nb::call_guard<nb::gil_scoped_release>(),
          "Add a link without a rail; return its index. With `reconnect` the link outlives its "
          "rails. `shared` states that its rail will be shared memory.")
      .def(
          "add_rail",
          [](Engine& e, int link, int rail, const std::string& kind, int fd, std::uint32_t job,
             bool checksums, std::string name, std::size_t most_packet_bytes) {
            e.connections().add_rail(link, rail, rail_kind(kind), fd, job, checksums,
                                     std::move(name), most_packet_bytes);
          },
          "link"_a, "rail"_a, "kind"_a, "fd"_a, "job"_a, "checksums"_a = true, "name"_a = "",
          "most_packet_bytes"_a = 65'535, nb::call_guard<nb::gil_scoped_release>(),
          "Add a rail to a link and take ownership of `fd`, a connected socket. `kind` is tcp or "
          "udp. `rail` is the rail's index in the link, the same at both ends; an existing rail "
          "with this index is replaced. `job` is the code that every frame carries; `checksums` "
          "states whether payloads carry a checksum. `most_packet_bytes` limits the payload of a "
          "UDP packet.")
      .def("drop_rail", on_connections(&Connections::drop_rail), "link"_a, "rail"_a, "reason"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "End a rail as if it had failed; its undelivered frames are sent again over the other "
           "rails.")
      .def("unreachable", on_connections(&Connections::unreachable), "link"_a, "reason"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Take a link down because the peer's process is known to be gone.")
      .def("forget_link", on_connections(&Connections::forget_link), "link"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "End a link that has had no rail and that no group has.")
      .def("hindered", on_connections(&Connections::hindered), "link"_a, "why"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Set the reason why a link has no first rail yet.")
      .def("use_wires", on_connections(&Connections::use_wires), "link"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Let a link that has had no rail use TCP or UDP in place of the planned shared memory.")
      .def("set_fault", on_connections(&Connections::set_fault), "link"_a, "rail"_a,
           "state"_a.none(), nb::call_guard<nb::gil_scoped_release>(),
           "Apply faults to frames that this end sends over a rail (-1: all).")
      .def("next_event", on_connections(&Connections::next_event),
           nb::call_guard<nb::gil_scoped_release>(),
           "Block until a rail changes state; return None once the engine is closed.")
      .def("rails", on_connections(&Connections::rails), nb::call_guard<nb::gil_scoped_release>(),
           "Return all rails in use, and the former rails of links that have ended.")
      .def(
          "add_shm_rail",
          on_connections(nb::overload_cast<int, std::shared_ptr<PeerArena>, int, int, std::uint64_t,
                                           std::uint64_t>(&Connections::add_shm_rail)),
          "link"_a, "arena"_a, "doorbell_fd"_a, "control_fd"_a, "receive_ring"_a, "send_ring"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Add a shared-memory rail over a peer's arena and take ownership of the two "
          "descriptors.")
      .def("uses_epoch", &Engine::uses_epoch, "epoch"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Return whether a group with this epoch is open, or closed while frames of it may still "
           "come from a peer.")
      .def("link_alive", on_connections(&Connections::link_alive), "link"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "open_group",
          [](const std::shared_ptr<Engine>& self, std::uint32_t epoch, int rank,
             const std::vector<int>& links, bool rank_order) {
            return BoundGroup{self, self->open_group(epoch, rank, links, rank_order)};
          },
          "epoch"_a, "rank"_a, "links"_a, "rank_order"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Open a group; links[i] is the link to rank i, -1 for this rank itself.")
      .def(
          "completion_queue",
          [](const std::shared_ptr<Engine>& self) {
            return BoundQueue{self, std::make_shared<CompletionQueue>()};
          },
          "Return an empty queue for the ends of operations of this engine.")
      .def(
          "next_completion",
          [](Engine& self) -> std::optional<std::uintptr_t> {
            const std::shared_ptr<Request> request = self.next_completion();
            if (request == nullptr) return std::nullopt;
            return key_of(request);
          },
          nb::call_guard<nb::gil_scoped_release>(),
          "Block until a watched operation ends; return its key, or None once the engine is "
          "closed.")
      .def(
          "log_operations",
          [](Engine& self, std::size_t capacity) { self.operation_log().enable(capacity); },
          "capacity"_a,
          "Keep a record of each operation that ends, in a ring of `capacity` records, a power of "
          "two. Call it before the first group is opened.")
      .def(
          "logged_sums",
          [](Engine& self) {
            const OperationLog::Sums sums = self.operation_log().sums();
            return std::make_tuple(sums.waited_ns, sums.running_ns, sums.reduced);
          },
          "Return (waited_ns, running_ns, reduced_bytes) of the program's operations so far: the "
          "waits of threads for an operation, the times from post to end, and the buffers of "
          "all_reduce and reduce_scatter.")
      .def(
          "logged_operations",
          [](Engine& self) {
            OperationLog::Taken taken;
            {
              const nb::gil_scoped_release released;
              taken = self.operation_log().take();
            }
            return std::make_tuple(nb::bytes(taken.rows.data(), taken.rows.size()), taken.count,
                                   taken.lost);
          },
          "Return (rows, count, lost) of the records since the previous call: rows of JSON joined "
          "by commas, their number, and the number of records that found the ring full. One thread "
          "at a time may call.")
      .def("pending", &Engine::pending, nb::call_guard<nb::gil_scoped_release>(),
           "Return the operations that have not ended, the oldest first.")
      .def(
          "failures",
          [](Engine& self) {
            FailureLog::Taken taken = self.failures();
            return std::make_tuple(std::move(taken.operations), taken.left_out);
          },
          nb::call_guard<nb::gil_scoped_release>(),
          "Return (operations, left_out): the first operations that have failed since the previous "
          "call, and the number of the others.")
      .def("counters", &Engine::counters, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Engine::close, "timeout_ns"_a, nb::call_guard<nb::gil_scoped_release>());
}
