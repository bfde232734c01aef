// The floating-point modes that a program may have set on the thread that calls the engine.
#pragma once

#include <array>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace slackline::test {

#if defined(__x86_64__)
using ModesRegister = std::uint32_t;
inline ModesRegister read_modes() { return _mm_getcsr(); }
inline void write_modes(ModesRegister modes) { _mm_setcsr(modes); }
inline constexpr ModesRegister kFlushResults = 1u << 15, kFlushOperands = 1u << 6;
inline constexpr int kRoundingShift = 13;
inline constexpr ModesRegister kExceptionFlags = 0x3f;
#elif defined(__aarch64__)
using ModesRegister = std::uint64_t;
inline ModesRegister read_modes() {
  ModesRegister modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes) : : "memory");
  return modes;
}
inline void write_modes(ModesRegister modes) {
  asm volatile("msr fpcr, %0" : : "r"(modes) : "memory");
}
inline constexpr ModesRegister kFlushResults = 1u << 24, kFlushOperands = 1u << 19;
inline constexpr int kRoundingShift = 22;
inline constexpr ModesRegister kExceptionFlags = 0;
#endif

inline constexpr int kThreadModes = 16;

// The modes number 0 to 15 on this thread, from construction to destruction: each combination of
// flushing results, flushing operands, and the four roundings. Number 0 is the default.
class ThreadModes {
 public:
  explicit ThreadModes(int number)
      : before_(read_modes()),
        set_((before_ & ~kExceptionFlags) | ((number & 1) != 0 ? kFlushResults : 0) |
             ((number & 2) != 0 ? kFlushOperands : 0) |
             static_cast<ModesRegister>(number >> 2) << kRoundingShift) {
    write_modes(set_);
  }
  ~ThreadModes() { write_modes(before_); }
  ThreadModes(const ThreadModes&) = delete;
  ThreadModes& operator=(const ThreadModes&) = delete;

  // Return whether the modes are still those that the constructor set.
  bool kept() const { return (read_modes() & ~kExceptionFlags) == set_; }

 private:
  ModesRegister before_, set_;
};

}  // namespace slackline::test
