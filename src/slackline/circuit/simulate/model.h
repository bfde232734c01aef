// The Verilated model with what a host may do to it beside running it: trace cycles to a VCD file,
// and look at registers without moving time.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "circuit.h"
#include "verilated.h"
#include "verilated_save.h"

// A model's state in memory.
class SavedState final : public VerilatedSerialize {
 public:
  explicit SavedState(MODEL& model) {
    m_isOpen = true;
    *this << model;
    flush();
  }

  void flush() override {
    bytes_.insert(bytes_.end(), m_bufp, m_cp);
    m_cp = m_bufp;
  }

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

// A reader of a state, which puts it back into the model.
class RestoredState final : public VerilatedDeserialize {
 public:
  RestoredState(const SavedState& state, MODEL& model) : bytes_(state.bytes()) {
    m_isOpen = true;
    m_endp = m_cp;
    *this >> model;
  }

 private:
  void fill() override {
    const auto left = static_cast<std::size_t>(m_endp - m_cp);
    std::memmove(m_bufp, m_cp, left);
    const std::size_t more = std::min(bufferSize() - left, bytes_.size() - at_);
    std::memcpy(m_bufp + left, bytes_.data() + at_, more);
    at_ += more;
    m_cp = m_bufp;
    m_endp = m_bufp + left + more;
  }

  const std::vector<std::uint8_t>& bytes_;
  std::size_t at_ = 0;
};

// A trace of the cycles `first` to before `behind`: in the VCD file cycle n begins at n ns.
#ifdef SLACKLINE_TRACED
#include "verilated_vcd_c.h"

class Trace {
 public:
  // Begin to write the file; return whether it could be opened.
  bool open(MODEL& model, const char* path, std::uint64_t first, std::uint64_t behind) {
    file_ = std::make_unique<VerilatedVcdC>();
    first_ = first;
    behind_ = behind;
    model.trace(file_.get(), 99);
    file_->open(path);
    return file_->isOpen();
  }

  // Write the wires in the given half of a cycle, if the cycle is to be traced.
  void dump(std::uint64_t cycle, int half) {
    if (!file_ || cycle < first_) return;
    if (cycle < behind_) {
      file_->dump(cycle * 1000 + static_cast<std::uint64_t>(half) * 500);
    } else {
      file_.reset();  // The file is whole, and can be looked at.
    }
  }

 private:
  std::unique_ptr<VerilatedVcdC> file_;
  std::uint64_t first_ = 0;
  std::uint64_t behind_ = 0;
};
#else
class Trace {
 public:
  static bool open(MODEL&, const char*, std::uint64_t, std::uint64_t) { return false; }
  static void dump(std::uint64_t, int) {}
};
#endif

// The model with its clock.
class Clocked {
 public:
  Clocked() { context_.traceEverOn(true); }
  ~Clocked() {
    trace_ = {};
    model_->final();
  }
  Clocked(const Clocked&) = delete;
  Clocked& operator=(const Clocked&) = delete;

  MODEL* operator->() { return model_.get(); }
  MODEL& operator*() { return *model_; }
  std::uint64_t cycle() const { return cycle_; }

  bool trace(const char* path, std::uint64_t first, std::uint64_t behind) {
    return trace_.open(*model_, path, first, behind);
  }

  // Let the inputs of this cycle take effect.
  void low() {
    model_->clk = 0;
    model_->eval();
  }

  // End the cycle with a clock edge.
  void edge() {
    trace_.dump(cycle_, 0);
    model_->clk = 1;
    model_->eval();
    trace_.dump(cycle_, 1);
    model_->clk = 0;
    ++cycle_;
  }

  // Keep the circuit in reset for some cycles, with inputs that offer and take nothing.
  void reset() {
    model_->rst = 1;
    for (int k = 0; k < 4; ++k) {
      low();
      edge();
    }
    model_->rst = 0;
  }

  void restart_count() { cycle_ = 0; }

  // Store the registers at these byte addresses, as they are in this cycle, in `values`.
  void snapshot(const std::uint32_t* addresses, std::size_t count, std::uint32_t* values) {
    const SavedState now(*model_);
    const Bus bus = bus_wires(*model_);
    for (std::size_t k = 0; k < count; ++k) {
      *bus.address = static_cast<std::uint16_t>(addresses[k] / 4);
      low();
      model_->clk = 1;
      model_->eval();
      values[k] = *bus.read_data;
      const RestoredState back(now, *model_);
    }
  }

 private:
  VerilatedContext context_;
  std::unique_ptr<MODEL> model_ = std::make_unique<MODEL>(&context_);
  Trace trace_;
  std::uint64_t cycle_ = 0;
};
