// CRC32C (Castagnoli; RFC 3720, section 12.1), the checksum of every frame.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slackline {

// Return the checksum of `bytes` bytes at `data`, continued from `seed`. A seed of 0 starts a
// checksum; crc32c(crc32c(0, a), b) is the checksum of a followed by b. `data` may have any
// alignment. Thread-safe.
std::uint32_t crc32c(std::uint32_t seed, const void* data, std::size_t bytes) noexcept;

}  // namespace slackline
