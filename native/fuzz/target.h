// A fuzzer: one file of this folder. `libFuzzer` drives it where the compiler is clang,
// driver/alone.cc everywhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "choices.h"

// Runs one input. What must not happen throws, crashes or does not return.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace slackline::fuzz {

// Inputs to begin with, that lead far in.
std::vector<Bytes> seeds();

}  // namespace slackline::fuzz
