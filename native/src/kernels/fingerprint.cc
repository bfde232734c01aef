#include "slackline/fingerprint.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "slackline/crc32c.h"
#include "slackline/kernels.h"
#include "table.h"

namespace slackline::kernels {
namespace {

using wire::DType;
using wire::ReduceOp;

constexpr int kSources = 3;
constexpr std::size_t kCount = 203;  // whole chunks of every type, and a rest
constexpr std::size_t kLongestItem = 8;
constexpr std::array kDivisors = {3, 4};  // a division, and a multiplication by the reciprocal
constexpr int kCodes = 256;

using Memory = std::array<unsigned char, kCount * kLongestItem>;

// Return the next number of a fixed series (splitmix64).
std::uint64_t next(std::uint64_t& state) {
  std::uint64_t mixed = state += 0x9e3779b97f4a7c15;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  return mixed ^ mixed >> 31;
}

// Return the bits of a float type's exponent, 0 for other types.
std::uint64_t exponent_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x7c00;
    case DType::kBfloat16:
      return 0x7f80;
    case DType::kFloat32:
      return 0x7f800000;
    case DType::kFloat64:
      return 0x7ff0000000000000;
    default:
      return 0;
  }
}

// Return the value of `drawn` as an element: a quarter each of the floats are special (NaNs with
// payloads, infinities) and subnormal, a quarter have exponents near that of 1, whose sums round.
std::uint64_t element(DType dtype, std::uint64_t drawn, std::uint64_t choice) {
  const std::uint64_t exponent = exponent_of(dtype);
  if (exponent == 0) return drawn;
  const std::uint64_t one = exponent & exponent >> 1;  // the exponent of 1
  switch (choice % 8) {
    case 0:
      return drawn | exponent;
    case 1:
      return (drawn & ~(exponent | (exponent - 1))) | exponent;
    case 2:
    case 3:
      return drawn & ~exponent;
    case 4:
    case 5:
      return (drawn & ~exponent) | one;
    default:
      return drawn;
  }
}

std::array<Memory, kSources> inputs(DType dtype) {
  std::array<Memory, kSources> made{};
  const std::size_t item = wire::item_size(dtype);
  std::uint64_t state = static_cast<std::uint64_t>(dtype);
  for (Memory& source : made) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::uint64_t drawn = next(state);
      const std::uint64_t value = element(dtype, drawn, next(state));
      std::memcpy(source.data() + i * item, &value, item);  // the low bytes on every machine here
    }
  }
  return made;
}

std::uint16_t fingerprint(const Table& table, DType dtype, ReduceOp op,
                          const std::array<Memory, kSources>& from) {
  const std::size_t bytes = kCount * wire::item_size(dtype);
  const void* const sources[] = {from[0].data(), from[1].data(), from[2].data()};
  Memory result{};
  void* const target = result.data();
  std::uint32_t checksum = 0;
  for (const int divisor : kDivisors) {
    table.reduce(dtype, op, sources, kSources, &target, 1, kCount, divisor, false);
    checksum = crc32c(checksum, target, bytes);
    if (op != ReduceOp::kAvg) break;
  }
  if (dtype == DType::kFloat16 || dtype == DType::kBfloat16) {
    std::array<float, kCount> partial;
    table.widen(dtype, sources[0], partial.data(), kCount);
    table.add_wide(dtype, op, partial.data(), sources[1], partial.data(), kCount);
    checksum = crc32c(checksum, partial.data(), sizeof partial);
    table.finish_wide(dtype, op, partial.data(), sources[2], target, kCount, kSources);
    checksum = crc32c(checksum, target, bytes);
  }
  return static_cast<std::uint16_t>(checksum);
}

}  // namespace

std::vector<Fingerprint> fingerprints(const Table& table) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<Fingerprint> made;
  for (int type = 0; type < kCodes; ++type) {
    const auto dtype = static_cast<DType>(type);
    if (wire::item_size(dtype) == 0) continue;
    const std::array<Memory, kSources> from = inputs(dtype);
    for (int code = 0; code < kCodes; ++code) {
      const auto op = static_cast<ReduceOp>(code);
      if (supported(dtype, op))
        made.push_back(Fingerprint{dtype, op, fingerprint(table, dtype, op, from)});
    }
  }
  return made;
}

}  // namespace slackline::kernels
