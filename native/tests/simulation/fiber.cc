#include "fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace slackline::simulation {
namespace {

constexpr std::size_t kStackBytes = 512u << 10;

Fiber* running = nullptr;
#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;
#endif

// Stacks that no fiber uses. A simulation makes thousands of fibers a second.
std::vector<std::byte*>& idle_stacks() {
  static std::vector<std::byte*> stacks;
  return stacks;
}

std::byte* take_stack() {
  if (!idle_stacks().empty()) {
    std::byte* stack = idle_stacks().back();
    idle_stacks().pop_back();
    return stack;
  }
  void* memory = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  ::getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  ::makecontext(&own_, &Fiber::begin, 0);
}

Fiber::~Fiber() { idle_stacks().push_back(stack_); }

Fiber* Fiber::current() { return running; }

void Fiber::begin() { running->run(); }

void Fiber::run() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  body_();
  body_ = nullptr;
  ended_ = true;
  leave(true);
}

void Fiber::swap_exceptions() {
  auto* here = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(*here, exceptions_);
}

// Only the first switch to a fiber needs its context. The others are jumps, since a switch of
// contexts makes a system call.
void Fiber::enter() {
#if defined(__SANITIZE_ADDRESS__)
  void* scheduler_fake = nullptr;
  __sanitizer_start_switch_fiber(&scheduler_fake, stack_, kStackBytes);
#endif
  if (_setjmp(back_) == 0) {
    if (begun_) _longjmp(place_, 1);
    begun_ = true;
    ::setcontext(&own_);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
}

void Fiber::leave([[maybe_unused]] bool last) {
  swap_exceptions();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, scheduler_stack,
                                 scheduler_stack_bytes);
#endif
  if (_setjmp(place_) == 0) _longjmp(back_, 1);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void Fiber::resume() {
  running = this;
  swap_exceptions();
  enter();
  running = nullptr;
}

void Fiber::pause() { running->leave(false); }

}  // namespace slackline::simulation
