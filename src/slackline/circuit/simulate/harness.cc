// A Verilated circuit behind a C interface that takes whole frames. The file is compiled once for
// each circuit, with circuit.h, which `slackline.circuit` writes from the circuit's ports.
//
// A circuit has input streams, output streams, and perhaps a register bus. A beat is the bytes of a
// stream's payload. On a frame stream a beat is its data, then one byte of flags. The streams
// read_requests, read_data, write_requests and write_data are answered from this process's memory.
// Nothing here is thread-safe: a handle belongs to one thread at a time.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "circuit.h"
#include "dma.h"
#include "model.h"
#include "packets.h"

double sc_time_stamp() { return 0; }

namespace {

constexpr std::uint8_t kLast = 1;
constexpr std::uint8_t kBad = 2;
constexpr std::size_t kQueued = 1 << 22;  // bytes of packets that may wait before a port
constexpr std::uint64_t kTurn = 64;       // cycles between two looks at sockets or at the time
constexpr std::chrono::milliseconds kCall(100);  // after which a call returns unfinished
constexpr int kUnfinished = -1;

using Clock = std::chrono::steady_clock;
using Cycles =
    std::pair<std::uint64_t, std::uint64_t>;  // the first cycle, and the one behind the last

// A random choice of the cycles in which ready or valid is withheld: `numerator` of 65536.
struct Stall {
  std::uint32_t numerator = 0;
  std::uint64_t state = 1;

  bool next() {
    if (numerator == 0) return false;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state & 0xFFFF) < numerator;
  }
};

// The cycles in which ready or valid is withheld.
struct Held {
  Stall stall;
  std::vector<Cycles> ranges;

  bool next(std::uint64_t cycle) {
    const bool drawn = stall.next();
    return drawn || std::any_of(ranges.begin(), ranges.end(), [&](const Cycles& range) {
             return range.first <= cycle && cycle < range.second;
           });
  }
};

struct Input {
  Wires wires;
  std::vector<std::uint8_t> beats;  // the circuit has taken those before `taken`
  std::size_t taken = 0;
  // Each pair is (beat, cycle): that beat and those behind it are not offered before that cycle.
  std::deque<std::pair<std::size_t, std::uint64_t>> releases;
  std::uint64_t not_before = 0;
  Held held;
  bool offered = false;  // a beat that is offered stays until it is taken

  std::size_t waiting() const { return beats.size() / wires.bytes - taken; }

  // Forget the beats that were taken, before more beats are appended.
  void tidy() {
    if (waiting() > 0) return;
    beats.clear();
    releases.clear();
    taken = 0;
  }

  // Forget all beats, offered or not.
  void empty() {
    beats.clear();
    releases.clear();
    taken = 0;
    not_before = 0;
    offered = false;
  }
};

struct Output {
  Wires wires;
  std::vector<std::uint8_t> beats;
  std::vector<std::uint64_t> cycles;  // the cycle in which each beat moved
  std::size_t given = 0;
  std::uint64_t frames = 0;  // whole frames that can be pulled
  Held held;

  void empty() {
    beats.clear();
    cycles.clear();
    given = 0;
    frames = 0;
  }
};

struct Circuit {
  Clocked model;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::uint64_t moved = 0;  // the cycle after the last movement on any stream
  Dma dma;
  std::vector<PacketSocket> sockets;
  std::vector<std::vector<std::uint8_t>> leaving;  // each port's packet that has not all left
  PacketCounts counts;

  Circuit() {
    for (const Wires& wires : input_wires(*model)) inputs.push_back({.wires = wires});
    for (const Wires& wires : output_wires(*model)) outputs.push_back({.wires = wires});
  }

  std::uint64_t cycle() const { return model.cycle(); }

  // Reset the circuit, and forget all beats that are on their way in or out.
  void reset() {
    for (Input& in : inputs) {
      in.empty();
      *in.wires.valid = 0;
    }
    for (Output& out : outputs) {
      out.empty();
      *out.wires.ready = 0;
    }
    for (auto& packet : leaving) packet.clear();
    dma.writes.clear();
    model.reset();
  }

  void offer(Input& in) {
    while (!in.releases.empty() && in.releases.front().first <= in.taken) {
      in.not_before = in.releases.front().second;
      in.releases.pop_front();
    }
    if (!in.offered && in.waiting() > 0 && cycle() >= in.not_before && !in.held.next(cycle())) {
      std::memcpy(in.wires.payload, &in.beats[in.taken * in.wires.bytes], in.wires.bytes);
      in.offered = true;
    }
    *in.wires.valid = in.offered;
  }

  void step() {
    for (Input& in : inputs) offer(in);
    for (Output& out : outputs) *out.wires.ready = !out.held.next(cycle());
    model.low();
    for (Input& in : inputs) {
      if (in.offered && *in.wires.ready) {
        ++in.taken;
        in.offered = false;
        moved = cycle() + 1;
      }
    }
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      Output& out = outputs[k];
      if (!*out.wires.valid || !*out.wires.ready) continue;
      moved = cycle() + 1;
      const auto* data = static_cast<const std::uint8_t*>(out.wires.payload);
      if (serve(static_cast<int>(k), data)) continue;
      out.beats.insert(out.beats.end(), data, data + out.wires.bytes);
      out.cycles.push_back(cycle());
      out.frames += data[out.wires.bytes - 1] & kLast;
    }
    model.edge();
  }

  // Handle a beat if `output` is one of the DMA streams; return false for any other output.
  bool serve(int output, const std::uint8_t* data) {
    if (output == kReadRequests) {
      Input& in = inputs[kReadData];
      in.tidy();
      in.releases.emplace_back(in.beats.size() / in.wires.bytes, cycle() + dma.latency);
      dma.read(Dma::parse(data), in.wires.bytes - 1, kLast, in.beats);
    } else if (output == kWriteRequests) {
      dma.ask_to_write(Dma::parse(data));
    } else if (output == kWriteData) {
      dma.write(data, outputs[kWriteData].wires.bytes - 1);
    } else {
      return false;
    }
    return true;
  }

  // Queue the beats of a packet for its port; a packet of no bytes was too long.
  void arrive(std::size_t port, const std::uint8_t* packet, std::size_t bytes) {
    Input& in = inputs[port];
    const std::size_t data = in.wires.bytes - 2;
    if (bytes <= ETHER_HDR_LEN || in.waiting() > kQueued / data) {
      ++counts.dropped;
      return;
    }
    in.tidy();
    ++counts.received;
    for (std::size_t at = 0; at < bytes; at += data) {
      const std::size_t part = std::min(data, bytes - at);
      in.beats.insert(in.beats.end(), packet + at, packet + at + part);
      in.beats.insert(in.beats.end(), data - part, 0);
      in.beats.push_back(static_cast<std::uint8_t>(part));
      in.beats.push_back(at + part == bytes ? kLast : 0);
    }
  }

  // Send the packets that have left the circuit, each through its port's socket.
  void depart() {
    leaving.resize(outputs.size());
    for (std::size_t port = 0; port < outputs.size(); ++port) {
      Output& out = outputs[port];
      const std::size_t bytes = out.wires.bytes;
      std::vector<std::uint8_t>& packet = leaving[port];
      for (std::size_t at = 0; at < out.beats.size(); at += bytes) {
        const std::uint8_t* beat = &out.beats[at];
        packet.insert(packet.end(), beat, beat + beat[bytes - 2]);
        const std::uint8_t flags = beat[bytes - 1];
        if ((flags & kLast) == 0) continue;
        // A MAC sends a damaged packet with a wrong check sequence, so nobody gets it.
        if ((flags & kBad) == 0) {
          sockets[std::min(port, sockets.size() - 1)].keep(packet);
          ++counts.sent;
        }
        packet.clear();
      }
      out.empty();
    }
    for (PacketSocket& each : sockets) {
      const std::size_t unsent = each.flush();
      counts.sent -= unsent;
      counts.unsent += unsent;
    }
  }

  // Run until `done()`, or until cycle `end`, or for about kCall; return 1, 0 or kUnfinished.
  template <typename Done>
  int until(std::uint64_t end, const Done& done) {
    const auto over = Clock::now() + kCall;
    for (std::uint64_t k = 1;; ++k) {
      if (done()) return 1;
      if (cycle() >= end) return 0;
      if (k % kTurn == 0 && Clock::now() >= over) return kUnfinished;
      step();
    }
  }

  Held& held(int output, std::uint32_t stream) {
    return output ? outputs[stream].held : inputs[stream].held;
  }

  bool waits() const {
    return std::any_of(inputs.begin(), inputs.end(),
                       [](const Input& in) { return in.waiting() > 0; });
  }
};

Circuit* self(void* handle) { return static_cast<Circuit*>(handle); }

}  // namespace

extern "C" {

// Return a new circuit after its reset, which the caller frees with slackline_circuit_close.
void* slackline_circuit_open() {
  auto* circuit = new Circuit;
  circuit->model.reset();
  circuit->model.restart_count();
  return circuit;
}

// Write the wires in the cycles `first` to before `behind` to a VCD file; return 1 if the file is
// open, and 0 if it cannot be opened or the circuit was compiled without traces.
int slackline_circuit_trace(void* handle, const char* path, std::uint64_t first,
                            std::uint64_t behind) {
  return self(handle)->model.trace(path, first, behind);
}

// Reset the circuit once more, for four cycles, and forget all beats on their way in or out.
void slackline_circuit_reset(void* handle) { self(handle)->reset(); }

void slackline_circuit_close(void* handle) { delete self(handle); }

// Append `count` beats to the queue of input `stream`.
void slackline_circuit_push(void* handle, std::uint32_t stream, const std::uint8_t* beats,
                            std::size_t count) {
  Input& in = self(handle)->inputs[stream];
  in.tidy();
  in.beats.insert(in.beats.end(), beats, beats + count * in.wires.bytes);
}

// Append a whole frame to the queue of input `stream`: cut into beats, the last one filled up with
// zeros. The first beat is offered at cycle `not_before` or later. `bad` marks the frame as
// damaged, as a MAC would.
void slackline_circuit_send_frame(void* handle, std::uint32_t stream, const std::uint8_t* frame,
                                  std::size_t bytes, std::uint64_t not_before, int bad) {
  Input& in = self(handle)->inputs[stream];
  const std::size_t data = in.wires.bytes - 1;
  in.tidy();
  in.releases.emplace_back(in.beats.size() / in.wires.bytes, not_before);
  for (std::size_t at = 0; at < bytes; at += data) {
    const std::size_t part = std::min(data, bytes - at);
    in.beats.insert(in.beats.end(), frame + at, frame + at + part);
    in.beats.insert(in.beats.end(), data - part, 0);
    const bool last = at + part == bytes;
    in.beats.push_back(last ? kLast | (bad ? kBad : 0) : 0);
  }
}

// Return the number of queued beats that input `stream` has not taken yet.
std::size_t slackline_circuit_waiting(void* handle, std::uint32_t stream) {
  return self(handle)->inputs[stream].waiting();
}

// Copy beats of output `stream` that were not pulled yet, at most `count`, and their cycles;
// return the number of beats.
std::size_t slackline_circuit_pull(void* handle, std::uint32_t stream, std::uint8_t* beats,
                                   std::uint64_t* cycles, std::size_t count) {
  Output& out = self(handle)->outputs[stream];
  const std::size_t n = std::min(count, out.cycles.size() - out.given);
  const std::size_t bytes = out.wires.bytes;
  if (n == 0) return 0;
  std::memcpy(beats, &out.beats[out.given * bytes], n * bytes);
  std::memcpy(cycles, &out.cycles[out.given], n * sizeof(std::uint64_t));
  for (std::size_t k = 1; k <= n; ++k) out.frames -= beats[k * bytes - 1] & kLast;
  out.given += n;
  if (out.given == out.cycles.size()) {
    out.beats.clear();
    out.cycles.clear();
    out.given = 0;
  }
  return n;
}

// Return the number of beats of output `stream` that slackline_circuit_pull would copy.
std::size_t slackline_circuit_ready(void* handle, std::uint32_t stream) {
  const Output& out = self(handle)->outputs[stream];
  return out.cycles.size() - out.given;
}

// Withhold valid of input `stream`, or ready of output `stream`, in `numerator` of 65536 cycles.
void slackline_circuit_stall(void* handle, int output, std::uint32_t stream,
                             std::uint32_t numerator, std::uint64_t seed) {
  self(handle)->held(output, stream).stall = {numerator, seed * 0x9E3779B97F4A7C15U | 1};
}

// Withhold valid of input `stream`, or ready of output `stream`, from cycle `first` to before
// `behind`.
void slackline_circuit_hold(void* handle, int output, std::uint32_t stream, std::uint64_t first,
                            std::uint64_t behind) {
  self(handle)->held(output, stream).ranges.emplace_back(first, behind);
}

// Run until cycle `end`, or for about kCall; return the number of the next cycle.
std::uint64_t slackline_circuit_step(void* handle, std::uint64_t end) {
  Circuit& circuit = *self(handle);
  circuit.until(end, [] { return false; });
  return circuit.cycle();
}

// Run until every output has `count` beats (with `frames`: whole frames) to be pulled, or until
// cycle `end`. Return 1 if the outputs have them, 0 if not, and kUnfinished after about kCall.
int slackline_circuit_run(void* handle, std::uint64_t count, int frames, std::uint64_t end) {
  Circuit& circuit = *self(handle);
  const auto there = [&](const Output& out) {
    return (frames ? out.frames : out.cycles.size() - out.given) >= count;
  };
  return circuit.until(
      end, [&] { return std::all_of(circuit.outputs.begin(), circuit.outputs.end(), there); });
}

// Run until no stream has moved for `quiet` cycles since cycle `start` and no input has beats left,
// or until cycle `end`. Return 1 if that came about, 0 if not, and kUnfinished after about kCall.
int slackline_circuit_settle(void* handle, std::uint64_t quiet, std::uint64_t start,
                             std::uint64_t end) {
  Circuit& circuit = *self(handle);
  return circuit.until(end, [&] {
    return !circuit.waits() && circuit.cycle() >= std::max(start, circuit.moved) + quiet;
  });
}

// Let the circuit read this memory, and write it if `writable`, from now on.
void slackline_circuit_lend(void* handle, std::uint64_t address, std::uint64_t bytes,
                            int writable) {
  self(handle)->dma.lent.push_back({address, bytes, writable != 0});
}

// End one loan of memory that slackline_circuit_lend began with the same arguments.
void slackline_circuit_take_back(void* handle, std::uint64_t address, std::uint64_t bytes,
                                 int writable) {
  auto& lent = self(handle)->dma.lent;
  const auto found = std::find_if(lent.begin(), lent.end(), [&](const Dma::Region& region) {
    return region.address == address && region.bytes == bytes && region.writable == (writable != 0);
  });
  if (found != lent.end()) lent.erase(found);
}

// Set the cycles from a memory read request to its first beat, for later requests.
void slackline_circuit_latency(void* handle, std::uint64_t cycles) {
  self(handle)->dma.latency = cycles;
}

// Return how often the circuit used memory that was not lent; `address` gets the first address.
std::uint64_t slackline_circuit_faults(void* handle, std::uint64_t* address) {
  *address = self(handle)->dma.fault;
  return self(handle)->dma.faults;
}

// Serve packet sockets, bound to interfaces, for about `nanoseconds`: one for each port, or one for
// all. Port k has the MAC address `address` + k. The circuit runs while packets move, and until
// nothing has moved for `quiet` cycles; `counts` gets the seven numbers of PacketCounts. Return 0,
// or the errno of a socket that failed.
int slackline_circuit_serve(void* handle, const int* descriptors, std::size_t sockets,
                            std::uint64_t address, std::uint64_t quiet, std::uint64_t nanoseconds,
                            std::uint64_t* counts) {
  Circuit& circuit = *self(handle);
  if (circuit.sockets.empty()) {
    for (std::size_t k = 0; k < sockets; ++k) circuit.sockets.emplace_back(descriptors[k]);
    set_address(*circuit.model, address);
  }
  const std::size_t ports = circuit.inputs.size();
  std::vector<pollfd> readable;
  for (const PacketSocket& each : circuit.sockets) {
    readable.push_back({each.descriptor(), POLLIN, 0});
  }
  const auto ends = Clock::now() + std::chrono::nanoseconds(nanoseconds);
  int error = 0;
  while (Clock::now() < ends && error == 0) {
    if (!circuit.waits() && circuit.cycle() >= circuit.moved + quiet) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(ends - Clock::now());
      if (poll(readable.data(), readable.size(), static_cast<int>(left.count())) <= 0) break;
    }
    const std::uint64_t began = thread_ns();
    for (std::size_t k = 0; k < circuit.sockets.size(); ++k) {
      if ((readable[k].revents & (POLLERR | POLLNVAL)) != 0) {
        socklen_t size = sizeof error;
        getsockopt(readable[k].fd, SOL_SOCKET, SO_ERROR, &error, &size);
        readable[k].revents = 0;
      }
      circuit.sockets[k].receive([&](const std::uint8_t* packet, std::size_t bytes) {
        const std::size_t meant = port_of(packet, address, ports);
        if (meant == ports) return;
        circuit.arrive(circuit.sockets.size() == 1 ? meant : k, packet, bytes);
      });
    }
    const std::uint64_t taken = thread_ns();
    for (std::uint64_t k = 0; k < kTurn; ++k) circuit.step();
    const std::uint64_t stepped = thread_ns();
    circuit.depart();
    circuit.counts.packet_ns += taken - began + thread_ns() - stepped;
    circuit.counts.cycle_ns += stepped - taken;
  }
  circuit.counts.cycles = circuit.cycle();
  std::memcpy(counts, &circuit.counts, sizeof circuit.counts);
  return error;
}

// Return the value of the register at byte `address`; takes two cycles.
std::uint32_t slackline_circuit_read(void* handle, std::uint32_t address) {
  Circuit& circuit = *self(handle);
  const Bus bus = bus_wires(*circuit.model);
  *bus.address = static_cast<std::uint16_t>(address / 4);
  circuit.step();
  circuit.step();
  return *bus.read_data;
}

// Store the registers at `count` byte addresses, as they are in this cycle, in `values`; no cycle
// passes.
void slackline_circuit_snapshot(void* handle, const std::uint32_t* addresses, std::size_t count,
                                std::uint32_t* values) {
  self(handle)->model.snapshot(addresses, count, values);
}

// Write the register at byte `address`; takes two cycles.
void slackline_circuit_write(void* handle, std::uint32_t address, std::uint32_t value) {
  Circuit& circuit = *self(handle);
  const Bus bus = bus_wires(*circuit.model);
  *bus.address = static_cast<std::uint16_t>(address / 4);
  *bus.write_data = value;
  *bus.write = 1;
  circuit.step();
  *bus.write = 0;
  circuit.step();
}

}  // extern "C"
