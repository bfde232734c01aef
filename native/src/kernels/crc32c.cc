// The selection of a CRC32C implementation, and the portable implementation.
#include "slackline/crc32c.h"

#include <array>
#include <cstring>

#include "crc32c_variants.h"

namespace slackline {
namespace checksum {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// Return tables in which entry [k][b] is the remainder of byte b followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

// Process eight bytes at a time by eight independent table look-ups (slicing by 8).
std::uint32_t portable(std::uint32_t remainder, const unsigned char* data,
                       std::size_t bytes) noexcept {
  for (; bytes >= 8; bytes -= 8, data += 8) {
    std::uint64_t word;  // little endian, as wire.h asserts
    std::memcpy(&word, data, sizeof word);
    word ^= remainder;
    remainder = 0;
    for (int k = 0; k < 8; ++k) remainder ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; bytes > 0; --bytes, ++data)
    remainder = (remainder >> 8) ^ kTables[0][(remainder ^ *data) & 0xff];
  return remainder;
}

Variant available(int index) noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool can_interleave = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  if (index == 1 && can_interleave) return interleaved;
  const bool can_fold = can_interleave && __builtin_cpu_supports("vpclmulqdq");
  if (index == 2 && can_fold && __builtin_cpu_supports("avx2")) return folded_256;
  if (index == 3 && can_fold && __builtin_cpu_supports("avx512f")) return folded_512;
#endif
  return index == 0 ? portable : nullptr;
}

}  // namespace checksum

std::uint32_t crc32c(std::uint32_t seed, const void* data, std::size_t bytes) noexcept {
  static const checksum::Variant chosen = []() noexcept {
    checksum::Variant found = checksum::available(0);
    for (int index = 1; const checksum::Variant next = checksum::available(index); ++index)
      found = next;
    return found;
  }();
  return ~chosen(~seed, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace slackline
