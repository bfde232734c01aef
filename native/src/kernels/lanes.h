// The vector types of one instruction set, and the layout of each element type in them.
//
// This file is included by kernels_isa.cc only. All names have internal linkage and no standard
// template is called, so that the linker never merges code built for different instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace slackline::kernels::SLACKLINE_ISA {
namespace {

// The number of bytes in a vector.
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__F16C__)
#define SLACKLINE_WIDTH 64
#elif defined(__AVX2__) && defined(__F16C__)
#define SLACKLINE_WIDTH 32
#else
#define SLACKLINE_WIDTH 16
#endif
constexpr std::size_t kWidth = SLACKLINE_WIDTH;

template <class T, std::size_t bytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(bytes)));
};
template <class T>
using Full = typename VectorOf<T, kWidth>::Type;
template <class T>
using Narrow = typename VectorOf<T, kWidth / 2>::Type;

template <class V>
V load(const unsigned char* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class V>
void store(unsigned char* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// Store a vector past the caches; `to` must be aligned to the vector.
template <class V>
void stream(unsigned char* to, V value) {
#if SLACKLINE_WIDTH == 64
  if constexpr (sizeof(V) == 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#endif
#if SLACKLINE_WIDTH >= 32
  if constexpr (sizeof(V) == 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#endif
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 16) _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
  if constexpr (sizeof(V) == 8) _mm_stream_si64(reinterpret_cast<long long*>(to), (long long)value);
#else
  store(to, value);
#endif
}

// Order streamed stores before the caller's following stores, so that another thread sees the data
// first.
void fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <class V>
bool aligned(const unsigned char* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(V) == 0;
}

// Return a number other than 0 if a lane of one of two vectors of floats is a NaN. The comparison
// for "unordered" finds the NaNs of both its operands.
#if SLACKLINE_WIDTH == 64
int nan_lanes(__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
int nan_lanes(__m512d a, __m512d b) { return _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q); }
#elif SLACKLINE_WIDTH == 32
int nan_lanes(__m256 a, __m256 b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)); }
int nan_lanes(__m256d a, __m256d b) {
  return _mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_UNORD_Q));
}
#elif defined(__x86_64__)
int nan_lanes(__m128 a, __m128 b) { return _mm_movemask_ps(_mm_cmpunord_ps(a, b)); }
int nan_lanes(__m128d a, __m128d b) { return _mm_movemask_pd(_mm_cmpunord_pd(a, b)); }
#else
template <class V>
std::uint64_t nan_lanes(V a, V b) {
  const auto found = (a != a) | (b != b);
  std::uint64_t words[kWidth / 8];
  __builtin_memcpy(words, &found, kWidth);
  std::uint64_t all = 0;
  for (const std::uint64_t word : words) all |= word;
  return all;
}
#endif

// A format describes an element type in memory (Stored, loaded one vector Piece at a time) and
// during the reduction (Lane, as a vector Wide).
template <class T>
struct Plain {
  using Stored = T;
  using Lane = T;
  using Piece = Full<T>;
  using Wide = Full<T>;
  static Wide widen(Piece piece) { return piece; }
  static Piece narrow(Wide wide) { return wide; }
};

struct Boolean : Plain<std::uint8_t> {
  static Wide widen(Piece piece) { return (Wide)(piece != 0) & 1; }
};

using Words = Narrow<std::uint16_t>;
using Bits = Full<std::int32_t>;  // signed, because every instruction set compares signed integers

// Convert 16-bit words to the 32-bit elements that hold them, and back. The compiler's own
// conversion uses vectors of only half the width.
Bits expand(Words words) {
#if SLACKLINE_WIDTH == 64
  return (Bits)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)words);
#elif SLACKLINE_WIDTH == 32
  return (Bits)_mm256_cvtepu16_epi32((__m128i)words);
#elif defined(__x86_64__)
  const __m128i low = _mm_cvtsi64_si128((long long)words);
  return (Bits)_mm_unpacklo_epi16(low, _mm_setzero_si128());
#else
  return __builtin_convertvector(words, Bits);
#endif
}

Words shrink(Bits bits) {
#if SLACKLINE_WIDTH == 64
  return (Words)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)bits);
#elif SLACKLINE_WIDTH == 32
  const __m256i paired = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);
  return (Words)_mm256_castsi256_si128(_mm256_permute4x64_epi64(paired, 0x08));
#elif defined(__x86_64__)
  // The sign extension makes the saturating pack keep every value.
  const __m128i extended = (__m128i)(bits << 16 >> 16);
  return (Words)_mm_cvtsi128_si64(_mm_packs_epi32(extended, extended));
#else
  return __builtin_convertvector(bits, Words);
#endif
}

struct Bfloat16 {
  using Stored = std::uint16_t;
  using Lane = float;
  using Piece = Words;
  using Wide = Full<float>;
  static Wide widen(Piece piece) { return (Wide)(expand(piece) << 16); }
  static Piece narrow(Wide wide) {
    using Unsigned = Full<std::uint32_t>;
    const Unsigned bits = (Unsigned)wide;
    const Unsigned rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const Unsigned quiet = bits | 0x400000;  // rounding could turn a NaN into infinity
    return shrink((Bits)((wide != wide ? quiet : rounded) >> 16));
  }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Lane = float;
  using Piece = Words;
  using Wide = Full<float>;

#if SLACKLINE_WIDTH == 64
  // The masks select all elements. The unmasked intrinsics start from undefined values, for which
  // gcc 12 warns.
  static Wide widen(Piece piece) { return (Wide)_mm512_maskz_cvtph_ps(0xffff, (__m256i)piece); }
  static Piece narrow(Wide wide) {
    return (Piece)_mm512_maskz_cvtps_ph(0xffff, (__m512)wide, _MM_FROUND_TO_NEAREST_INT);
  }
#elif SLACKLINE_WIDTH == 32
  static Wide widen(Piece piece) { return (Wide)_mm256_cvtph_ps((__m128i)piece); }
  static Piece narrow(Wide wide) {
    return (Piece)_mm256_cvtps_ph((__m256)wide, _MM_FROUND_TO_NEAREST_INT);
  }
#else
  // Integer arithmetic whose results are bit-identical to those of the F16C instructions, the
  // payloads of converted NaNs included. Chunk::settle() sees to the NaNs that arithmetic makes.
  static constexpr std::int32_t kBiasStep = (127 - 15) << 23;

  static Wide widen(Piece piece) {
    const Bits bits = expand(piece);
    const Bits magnitude = (bits & 0x7fff) << 13;
    const Bits normal = magnitude + kBiasStep;
    // A subnormal is read as if its implicit bit were set, and that bit is then subtracted. The
    // result is exact, and no operand is ever subnormal.
    const Bits implicit = Bits{} + (kBiasStep + (1 << 23));
    const Bits small = (Bits)((Wide)(magnitude + implicit) - (Wide)implicit);
    const Bits special = magnitude + 2 * kBiasStep;
    Bits value = magnitude < (0x0400 << 13) ? small : normal;
    value = magnitude >= (0x7c00 << 13) ? special : value;
    value = magnitude > (0x7c00 << 13) ? special | (1 << 22) : value;
    return (Wide)(value | ((bits & 0x8000) << 16));
  }
  static Piece narrow(Wide wide) {
    const Bits bits = (Bits)wide;
    const Bits magnitude = bits & 0x7fffffff;
    const Bits odd = (magnitude >> 13) & 1;
    const Bits normal = (magnitude + (0xfff - kBiasStep) + odd) >> 13;
    // Adding 0.5 leaves the rounded subnormal in the low bits of the sum.
    const Bits half = Bits{} + (126 << 23);
    const Bits small = (Bits)((Wide)magnitude + (Wide)half) - half;
    const Bits quiet = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    Bits value = magnitude < (113 << 23) ? small : normal;
    value = magnitude >= (143 << 23) ? Bits{} + 0x7c00 : value;
    value = magnitude > (255 << 23) ? quiet : value;
    return shrink(value | ((bits >> 16) & 0x8000));
  }
#endif
};

}  // namespace
}  // namespace slackline::kernels::SLACKLINE_ISA
