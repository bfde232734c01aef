#include "slackline/crc32c.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "../src/kernels/crc32c_variants.h"
#include "check.h"

namespace {

using slackline::crc32c;

std::vector<unsigned char> random_bytes(std::size_t count) {
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(count);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

// Compute CRC32C by its definition: long division, one bit at a time.
std::uint32_t by_bits(const unsigned char* data, std::size_t bytes) {
  std::uint32_t remainder = 0xffffffff;
  for (std::size_t i = 0; i < bytes; ++i) {
    remainder ^= data[i];
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~remainder;
}

}  // namespace

TEST("crc32c gives the examples of RFC 3720") {
  std::vector<unsigned char> bytes(32, 0);
  CHECK_EQUAL(crc32c(0, bytes.data(), 32), 0x8a9136aau);
  bytes.assign(32, 0xff);
  CHECK_EQUAL(crc32c(0, bytes.data(), 32), 0x62a8ab43u);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  CHECK_EQUAL(crc32c(0, bytes.data(), 32), 0x46dd794eu);
  std::iota(bytes.rbegin(), bytes.rend(), static_cast<unsigned char>(0));
  CHECK_EQUAL(crc32c(0, bytes.data(), 32), 0x113fdb5cu);
  const std::string_view digits = "123456789";
  CHECK_EQUAL(crc32c(0, digits.data(), digits.size()), 0xe3069283u);
}

TEST("crc32c of nothing is its seed") {
  CHECK_EQUAL(crc32c(0, nullptr, 0), 0u);
  CHECK_EQUAL(crc32c(0x12345678, nullptr, 0), 0x12345678u);
}

TEST("every variant of crc32c agrees with long division, whatever the length and alignment") {
  const std::vector<unsigned char> bytes = random_bytes(8300);
  std::vector<std::size_t> lengths = {1000, 3071, 3072, 3073, 4095, 4096, 4097, 6144, 8200};
  for (std::size_t length = 0; length < 800; ++length) lengths.push_back(length);
  for (int index = 0; const auto variant = slackline::checksum::available(index); ++index) {
    for (const std::size_t length : lengths) {
      const std::size_t offset = length % 67;
      const unsigned char* const data = bytes.data() + offset;
      CHECK_EQUAL(~variant(0xffffffff, data, length), by_bits(data, length));
    }
  }
}

TEST("crc32c of parts in turn is crc32c of the whole") {
  const std::vector<unsigned char> bytes = random_bytes(20000);
  const std::uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 131) {
    const std::uint32_t first = crc32c(0, bytes.data(), cut);
    CHECK_EQUAL(crc32c(first, bytes.data() + cut, bytes.size() - cut), whole);
  }
}

TEST("crc32c notices any single bit") {
  std::vector<unsigned char> bytes = random_bytes(600);
  const std::uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const unsigned char mask = static_cast<unsigned char>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    CHECK(crc32c(0, bytes.data(), bytes.size()) != whole);
    bytes[bit / 8] ^= mask;
  }
}
