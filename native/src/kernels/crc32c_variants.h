// The ways of computing CRC32C; crc32c.cc picks one, tests compare all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slackline::checksum {

// The polynomial and the remainders in it are bit-reflected: the top bit of a remainder is the
// coefficient of x^0, the top bit of a byte in a message that of the lowest power of its eight.
inline constexpr std::uint32_t kPolynomial = 0x82f63b78;

// Every variant continues a remainder over `bytes` bytes; crc32c() inverts it before and after.
using Variant = std::uint32_t (*)(std::uint32_t remainder, const unsigned char* data,
                                  std::size_t bytes) noexcept;

std::uint32_t portable(std::uint32_t, const unsigned char*, std::size_t) noexcept;
#if defined(__x86_64__)
// Needs SSE4.2 and PCLMULQDQ.
std::uint32_t interleaved(std::uint32_t, const unsigned char*, std::size_t) noexcept;
// Needs AVX-512F and VPCLMULQDQ besides.
std::uint32_t folded(std::uint32_t, const unsigned char*, std::size_t) noexcept;
#endif

// The index-th variant, from the slowest (0) up, or nullptr past the last one that this machine can
// run.
Variant available(int index) noexcept;

}  // namespace slackline::checksum
