// The entry points of a fuzzer; each .cc file of this folder is a fuzzer. libFuzzer runs it when
// the compiler is clang, driver/alone.cc otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "choices.h"

// Run one input. A fault of the code under test throws, crashes or does not return.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace slackline::fuzz {

// Return initial inputs that reach deep into the code.
std::vector<Bytes> seeds();

}  // namespace slackline::fuzz
