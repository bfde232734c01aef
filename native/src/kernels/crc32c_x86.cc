// CRC32C with x86 instructions: three interleaved crc32 streams, and carry-less multiplication of
// vectors.
//
// The code works with remainders modulo the polynomial P, bit-reflected as crc32c_variants.h
// describes. A carry-less product of reflected operands of a and b bits is the reflection of the
// product in a + b - 1 bits. Read as a reflection in a + b bits, it is the product times x. This
// factor x explains the odd exponents below.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "crc32c_variants.h"

namespace slackline::checksum {
namespace {

// Return x^exponent mod P.
constexpr std::uint32_t power(std::size_t exponent) {
  std::uint32_t remainder = 0x80000000;
  for (; exponent > 0; --exponent)
    remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
  return remainder;
}

std::uint64_t word_at(const unsigned char* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

std::uint32_t step(std::uint32_t remainder, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(remainder, word));
}

std::uint32_t serial(std::uint32_t remainder, const unsigned char* data, std::size_t bytes) {
  for (; bytes >= 8; bytes -= 8, data += 8) remainder = step(remainder, word_at(data));
  for (; bytes > 0; --bytes, ++data) remainder = _mm_crc32_u8(remainder, *data);
  return remainder;
}

// Return remainder * x^(8 * bytes) mod P, the remainder after `bytes` zero bytes. The product has
// 32 + 32 bits, so it carries a factor x; the crc32 instruction multiplies it by x^32 and reduces
// it.
template <std::size_t bytes>
std::uint32_t shifted(std::uint32_t remainder) {
  constexpr std::uint32_t factor = power(8 * bytes - 33);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(remainder)),
                                               _mm_cvtsi32_si128(static_cast<int>(factor)), 0);
  return step(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

// Consume as many triples of `length` bytes as there are. The crc32 instruction takes three cycles
// and one can start in every cycle, so three remainders are computed in parallel:
//
//   |<- length ->|<- length ->|<- length ->|
//    remainder    second       third          -> one remainder
template <std::size_t length>
std::uint32_t triples(std::uint32_t remainder, const unsigned char*& data, std::size_t& bytes) {
  for (; bytes >= 3 * length; bytes -= 3 * length, data += 3 * length) {
    std::uint32_t second = 0;
    std::uint32_t third = 0;
    for (std::size_t at = 0; at < length; at += 8) {
      remainder = step(remainder, word_at(data + at));
      second = step(second, word_at(data + length + at));
      third = step(third, word_at(data + 2 * length + at));
    }
    remainder = shifted<2 * length>(remainder) ^ shifted<length>(second) ^ third;
  }
  return remainder;
}

// How far ahead of the folds lines are fetched. Data that leave a tensor are usually in no cache.
constexpr std::size_t kFetchAhead = 1024;

#define SLACKLINE_256 __attribute__((target("avx2,vpclmulqdq")))
#define SLACKLINE_512 __attribute__((target("avx512f,vpclmulqdq")))

// Return each 128-bit lane moved `bytes` bytes on in the message, modulo P. Let the first eight
// bytes of a lane be a * x^64 and the last eight be b. Each product has 64 + 32 bits, which gives a
// factor x, and lies in the low 96 of 128 bits, which gives x^32. The exponents are therefore
// reduced by 33.
template <std::size_t bytes>
SLACKLINE_256 __m256i moved(__m256i lanes) {
  constexpr std::uint64_t first = power(8 * bytes + 64 - 33);
  constexpr std::uint64_t last = power(8 * bytes - 33);
  const __m256i factors = _mm256_set_epi64x(last, first, last, first);
  return _mm256_xor_si256(_mm256_clmulepi64_epi128(lanes, factors, 0x00),
                          _mm256_clmulepi64_epi128(lanes, factors, 0x11));
}

template <std::size_t bytes>
SLACKLINE_512 __m512i moved(__m512i lanes) {
  constexpr std::uint64_t first = power(8 * bytes + 64 - 33);
  constexpr std::uint64_t last = power(8 * bytes - 33);
  const __m512i factors = _mm512_set4_epi64(last, first, last, first);
  return _mm512_xor_si512(_mm512_clmulepi64_epi128(lanes, factors, 0x00),
                          _mm512_clmulepi64_epi128(lanes, factors, 0x11));
}

SLACKLINE_256 __m256i lanes_at(const unsigned char* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

}  // namespace

std::uint32_t interleaved(std::uint32_t remainder, const unsigned char* data,
                          std::size_t bytes) noexcept {
  remainder = triples<1024>(remainder, data, bytes);
  remainder = triples<128>(remainder, data, bytes);
  return serial(remainder, data, bytes);
}

// Keep four vectors that are congruent modulo P to all bytes read so far, and move each of them
// onto its successor four vectors on. At the end move the vectors, then their lanes, onto the last
// one.
SLACKLINE_256 std::uint32_t folded_256(std::uint32_t remainder, const unsigned char* data,
                                       std::size_t bytes) noexcept {
  constexpr std::size_t kVectors = 4;
  constexpr std::size_t kStep = kVectors * sizeof(__m256i);
  if (bytes < 2 * kStep) return interleaved(remainder, data, bytes);
  __m256i lanes[kVectors];
#pragma GCC unroll 4
  for (std::size_t v = 0; v < kVectors; ++v) lanes[v] = lanes_at(data + 32 * v);
  lanes[0] = _mm256_xor_si256(lanes[0],
                              _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, static_cast<int>(remainder)));
  for (data += kStep, bytes -= kStep; bytes >= kStep; bytes -= kStep, data += kStep) {
    _mm_prefetch(data + kFetchAhead, _MM_HINT_T0);
    _mm_prefetch(data + kFetchAhead + 64, _MM_HINT_T0);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v)
      lanes[v] = _mm256_xor_si256(moved<kStep>(lanes[v]), lanes_at(data + 32 * v));
  }
  __m256i last = lanes[0];
#pragma GCC unroll 4
  for (std::size_t v = 1; v < kVectors; ++v) last = _mm256_xor_si256(moved<32>(last), lanes[v]);
  alignas(32) unsigned char tail[sizeof last];
  _mm256_store_si256(reinterpret_cast<__m256i*>(tail), last);
  return interleaved(serial(0, tail, sizeof tail), data, bytes);
}

// Compute what folded_256 computes, with vectors of 64 bytes and without fetching ahead. The two
// functions are written out, because a target attribute cannot depend on a template's parameter.
SLACKLINE_512 std::uint32_t folded_512(std::uint32_t remainder, const unsigned char* data,
                                       std::size_t bytes) noexcept {
  constexpr std::size_t kVectors = 4;
  constexpr std::size_t kStep = kVectors * sizeof(__m512i);
  if (bytes < 2 * kStep) return interleaved(remainder, data, bytes);
  __m512i lanes[kVectors];
#pragma GCC unroll 4
  for (std::size_t v = 0; v < kVectors; ++v) lanes[v] = _mm512_loadu_si512(data + 64 * v);
  lanes[0] = _mm512_xor_si512(lanes[0], _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                         0, static_cast<int>(remainder)));
  for (data += kStep, bytes -= kStep; bytes >= kStep; bytes -= kStep, data += kStep) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v)
      lanes[v] = _mm512_xor_si512(moved<kStep>(lanes[v]), _mm512_loadu_si512(data + 64 * v));
  }
  __m512i last = lanes[0];
#pragma GCC unroll 4
  for (std::size_t v = 1; v < kVectors; ++v) last = _mm512_xor_si512(moved<64>(last), lanes[v]);
  alignas(64) unsigned char tail[sizeof last];
  _mm512_store_si512(tail, last);
  return interleaved(serial(0, tail, sizeof tail), data, bytes);
}

}  // namespace slackline::checksum
#endif
