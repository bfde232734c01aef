// A Verilated circuit behind a C interface that takes whole frames. Compiled once for each circuit,
// with circuit.h, which `slackline.circuit` writes from the circuit's ports.
//
// A circuit has streams in (kInputs) and out (kOutputs), and perhaps a register bus. A beat is the
// bytes of a stream's payload. On a frame stream they are data, then one byte of flags. Streams of
// these names are answered from this process's memory: read_requests and read_data, write_requests
// and write_data. Nothing here is thread-safe; a handle belongs to one thread at a time.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "circuit.h"
#include "dma.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

namespace {

constexpr std::uint8_t kLast = 1;
constexpr std::uint8_t kBad = 2;

// Ready or valid is withheld in `numerator` of 65536 cycles, as a seed decides.
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

struct Input {
  Wires wires;
  std::vector<std::uint8_t> beats;  // those before `taken` are done
  std::size_t taken = 0;
  std::deque<std::pair<std::size_t, std::uint64_t>> releases;  // from this beat on, not before
  std::uint64_t not_before = 0;
  Stall stall;
  bool offered = false;  // valid stays until it is taken

  std::size_t waiting() const { return beats.size() / wires.bytes - taken; }

  // Before more beats come: what is done is forgotten.
  void tidy() {
    if (waiting() > 0) return;
    beats.clear();
    releases.clear();
    taken = 0;
  }
};

struct Output {
  Wires wires;
  std::vector<std::uint8_t> beats;
  std::vector<std::uint64_t> cycles;  // when each beat moved
  std::size_t given = 0;
  std::uint64_t frames = 0;  // whole, to be pulled
  Stall stall;
};

struct Circuit {
  VerilatedContext context;
  std::unique_ptr<MODEL> model = std::make_unique<MODEL>(&context);
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::uint64_t cycle = 0;
  std::uint64_t moved = 0;  // the cycle after the last in which a stream moved
  Dma dma;

  Circuit() {
    for (const Wires& wires : input_wires(*model)) inputs.push_back({.wires = wires});
    for (const Wires& wires : output_wires(*model)) outputs.push_back({.wires = wires});
  }

  ~Circuit() { model->final(); }

  void edge() {
    model->clk = 1;
    model->eval();
    model->clk = 0;
    ++cycle;
  }

  void offer(Input& in) {
    while (!in.releases.empty() && in.releases.front().first <= in.taken) {
      in.not_before = in.releases.front().second;
      in.releases.pop_front();
    }
    if (!in.offered && in.waiting() > 0 && cycle >= in.not_before && !in.stall.next()) {
      std::memcpy(in.wires.payload, &in.beats[in.taken * in.wires.bytes], in.wires.bytes);
      in.offered = true;
    }
    *in.wires.valid = in.offered;
  }

  void step() {
    for (Input& in : inputs) offer(in);
    for (Output& out : outputs) *out.wires.ready = !out.stall.next();
    model->clk = 0;
    model->eval();
    for (Input& in : inputs) {
      if (in.offered && *in.wires.ready) {
        ++in.taken;
        in.offered = false;
        moved = cycle + 1;
      }
    }
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      Output& out = outputs[k];
      if (!*out.wires.valid || !*out.wires.ready) continue;
      moved = cycle + 1;
      const auto* data = static_cast<const std::uint8_t*>(out.wires.payload);
      if (serve(static_cast<int>(k), data)) continue;
      out.beats.insert(out.beats.end(), data, data + out.wires.bytes);
      out.cycles.push_back(cycle);
      out.frames += data[out.wires.bytes - 1] & kLast;
    }
    edge();
  }

  // A beat that is between the circuit and memory.
  bool serve(int output, const std::uint8_t* data) {
    if (output == kReadRequests) {
      Input& in = inputs[kReadData];
      in.tidy();
      in.releases.emplace_back(in.beats.size() / in.wires.bytes, cycle + dma.latency);
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

  bool waits() const {
    return std::any_of(inputs.begin(), inputs.end(),
                       [](const Input& in) { return in.waiting() > 0; });
  }
};

Circuit* self(void* handle) { return static_cast<Circuit*>(handle); }

}  // namespace

extern "C" {

// A circuit after its reset; slackline_circuit_close frees it.
void* slackline_circuit_open() {
  auto* circuit = new Circuit;
  circuit->model->rst = 1;
  for (int k = 0; k < 4; ++k) {
    circuit->model->clk = 0;
    circuit->model->eval();
    circuit->edge();
  }
  circuit->model->rst = 0;
  circuit->cycle = 0;
  return circuit;
}

void slackline_circuit_close(void* handle) { delete self(handle); }

// Beats for input `stream`, in order after those that wait there.
void slackline_circuit_push(void* handle, std::uint32_t stream, const std::uint8_t* beats,
                            std::size_t count) {
  Input& in = self(handle)->inputs[stream];
  in.tidy();
  in.beats.insert(in.beats.end(), beats, beats + count * in.wires.bytes);
}

// A whole frame for input `stream`: cut into beats, the last one filled up with zeros. Its first
// beat is offered at cycle `not_before` or later; `bad` is what a MAC says of a damaged one.
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

// Beats that input `stream` has not taken yet.
std::size_t slackline_circuit_waiting(void* handle, std::uint32_t stream) {
  return self(handle)->inputs[stream].waiting();
}

// Beats that came out of output `stream` and were not pulled, at most `count`, and their cycles.
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

// Beats that output `stream` has for slackline_circuit_pull.
std::size_t slackline_circuit_ready(void* handle, std::uint32_t stream) {
  const Output& out = self(handle)->outputs[stream];
  return out.cycles.size() - out.given;
}

// Withholds valid of input `stream`, or ready of output `stream`, in `numerator` of 65536 cycles.
void slackline_circuit_stall(void* handle, int output, std::uint32_t stream,
                             std::uint32_t numerator, std::uint64_t seed) {
  Circuit& circuit = *self(handle);
  Stall& stall = output ? circuit.outputs[stream].stall : circuit.inputs[stream].stall;
  stall = {numerator, seed * 0x9E3779B97F4A7C15U | 1};
}

// Runs `cycles`; returns the cycle it is then.
std::uint64_t slackline_circuit_step(void* handle, std::uint64_t cycles) {
  Circuit& circuit = *self(handle);
  for (std::uint64_t k = 0; k < cycles; ++k) circuit.step();
  return circuit.cycle;
}

// Runs until every output has `count` beats (with `frames`: whole frames) to be pulled, or for
// `cycles`; 1 if they have.
int slackline_circuit_run(void* handle, std::uint64_t count, int frames, std::uint64_t cycles) {
  Circuit& circuit = *self(handle);
  const auto there = [&](const Output& out) {
    return (frames ? out.frames : out.cycles.size() - out.given) >= count;
  };
  for (std::uint64_t k = 0;; ++k) {
    if (std::all_of(circuit.outputs.begin(), circuit.outputs.end(), there)) return 1;
    if (k == cycles) return 0;
    circuit.step();
  }
}

// Runs until no stream has moved for `quiet` cycles and no input waits, or for `cycles`; 1 if so.
int slackline_circuit_settle(void* handle, std::uint64_t quiet, std::uint64_t cycles) {
  Circuit& circuit = *self(handle);
  const std::uint64_t start = circuit.cycle;
  while (circuit.waits() || circuit.cycle < std::max(start, circuit.moved) + quiet) {
    if (circuit.cycle == start + cycles) return 0;
    circuit.step();
  }
  return 1;
}

// Memory that the circuit may read, and write if `writable`, from now on.
void slackline_circuit_lend(void* handle, std::uint64_t address, std::uint64_t bytes,
                            int writable) {
  self(handle)->dma.lent.push_back({address, bytes, writable != 0});
}

// Takes back what was lent with these very words, once.
void slackline_circuit_take_back(void* handle, std::uint64_t address, std::uint64_t bytes,
                                 int writable) {
  auto& lent = self(handle)->dma.lent;
  const auto found = std::find_if(lent.begin(), lent.end(), [&](const Dma::Region& region) {
    return region.address == address && region.bytes == bytes && region.writable == (writable != 0);
  });
  if (found != lent.end()) lent.erase(found);
}

// Cycles from a request to its first beat, for requests from now on.
void slackline_circuit_latency(void* handle, std::uint64_t cycles) {
  self(handle)->dma.latency = cycles;
}

// How often the circuit went beyond what was lent; `address`: where first.
std::uint64_t slackline_circuit_faults(void* handle, std::uint64_t* address) {
  *address = self(handle)->dma.fault;
  return self(handle)->dma.faults;
}

// The register at byte `address`; takes two cycles.
std::uint32_t slackline_circuit_read(void* handle, std::uint32_t address) {
  Circuit& circuit = *self(handle);
  const Bus bus = bus_wires(*circuit.model);
  *bus.address = static_cast<std::uint16_t>(address / 4);
  circuit.step();
  circuit.step();
  return *bus.read_data;
}

// Writes the register at byte `address`; takes two cycles.
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
