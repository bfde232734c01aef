// The implementations of CRC32C. crc32c.cc selects one, and the tests compare all of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slackline::checksum {

// The polynomial and remainders are stored bit-reflected: the top bit of a remainder is the
// coefficient of x^0, and the top bit of a message byte is the coefficient of the lowest power
// among its eight.
inline constexpr std::uint32_t kPolynomial = 0x82f63b78;

// An implementation. Each one continues `remainder` over `bytes` bytes; crc32c() inverts the
// remainder before and after.
using Variant = std::uint32_t (*)(std::uint32_t remainder, const unsigned char* data,
                                  std::size_t bytes) noexcept;

std::uint32_t portable(std::uint32_t, const unsigned char*, std::size_t) noexcept;
#if defined(__x86_64__)
// A variant that requires SSE4.2 and PCLMULQDQ.
std::uint32_t interleaved(std::uint32_t, const unsigned char*, std::size_t) noexcept;
// A variant that requires AVX2 and VPCLMULQDQ in addition.
std::uint32_t folded_256(std::uint32_t, const unsigned char*, std::size_t) noexcept;
// A variant that requires AVX-512F and VPCLMULQDQ in addition.
std::uint32_t folded_512(std::uint32_t, const unsigned char*, std::size_t) noexcept;
#endif

// Return the implementation with this index, from the slowest (0) up, or nullptr when no further
// one can run on this machine.
Variant available(int index) noexcept;

}  // namespace slackline::checksum
