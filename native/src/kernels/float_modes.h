// The floating-point modes under which kernels compute.
//
// Rounding, flushing of subnormals and traps belong to a thread, and any thread of a program may
// drive the engine. A library built with -ffast-math, or torch.set_flush_denormal(True), changes
// them for one thread of one rank, and its sums would differ from those of the other ranks.
//
// The file is included by sources that are compiled for several instruction sets, so everything in
// it is inlined into its caller: the linker must never merge code built for different ones.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace slackline::kernels {

// IEEE 754's default modes on this thread, from construction to destruction: rounding to nearest,
// subnormals kept, no traps. The thread's own modes return at the end, and its exception flags with
// them if the modes differed. A thread in the default modes pays for one read of a register.
class DefaultFloatModes {
 public:
  DefaultFloatModes(const DefaultFloatModes&) = delete;
  DefaultFloatModes& operator=(const DefaultFloatModes&) = delete;

#if defined(__x86_64__) || defined(__aarch64__)
  [[gnu::always_inline]] DefaultFloatModes() noexcept : own_(read()) {
    if ((own_ & kModes) != kDefault) write((own_ & ~kModes) | kDefault);
  }
  [[gnu::always_inline]] ~DefaultFloatModes() {
    if ((own_ & kModes) != kDefault) write(own_);
  }

 private:
#if defined(__x86_64__)
  using Register = std::uint32_t;
  static constexpr Register kModes = ~Register{0x3f};  // MXCSR but for the exception flags
  static constexpr Register kDefault = 0x1f80;         // every exception masked, nothing else set
  [[gnu::always_inline]] static Register read() noexcept { return _mm_getcsr(); }
  [[gnu::always_inline]] static void write(Register value) noexcept { _mm_setcsr(value); }
#else
  using Register = std::uint64_t;
  static constexpr Register kModes = ~Register{0};  // FPCR; its exception flags are in FPSR
  static constexpr Register kDefault = 0;
  [[gnu::always_inline]] static Register read() noexcept {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value) : : "memory");
    return value;
  }
  [[gnu::always_inline]] static void write(Register value) noexcept {
    asm volatile("msr fpcr, %0" : : "r"(value) : "memory");
  }
#endif
  const Register own_;
#else
  [[gnu::always_inline]] DefaultFloatModes() noexcept {
    std::fegetenv(&own_);
    std::fesetenv(FE_DFL_ENV);
  }
  [[gnu::always_inline]] ~DefaultFloatModes() { std::fesetenv(&own_); }

 private:
  std::fenv_t own_;
#endif
};

}  // namespace slackline::kernels
