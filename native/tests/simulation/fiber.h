// Threads that take turns: each runs until it pauses, and the scheduler decides which goes on.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace slackline::simulation {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Run the fiber until it pauses or ends.
  void resume();
  // Return to the caller of resume(). Called within a fiber.
  static void pause();
  // Return the fiber that runs at this moment, or null.
  static Fiber* current();
  bool ended() const { return ended_; }

 private:
  // The record that the C++ runtime keeps of the exceptions in flight, one for each thread.
  struct Exceptions {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };

  static void begin();
  void run();
  void swap_exceptions();
  void enter();
  void leave(bool last);

  std::function<void()> body_;
  std::byte* stack_;
  ucontext_t own_{};  // where the fiber begins
  jmp_buf place_;     // where the fiber goes on
  jmp_buf back_;      // where its caller goes on
  bool begun_ = false;
  Exceptions exceptions_;
  bool ended_ = false;
  void* fake_stack_ = nullptr;  // of the address sanitizer
};

}  // namespace slackline::simulation
