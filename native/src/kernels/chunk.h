// The reduction operations, and the chunk of elements that they process in registers.
//
// Like lanes.h, this file is included by kernels_isa.cc only.
#pragma once

#include "lanes.h"

namespace slackline::kernels::SLACKLINE_ISA {
namespace {

template <class T>
struct UnsignedOf {
  using Type = T;
};
template <>
struct UnsignedOf<std::int8_t> {
  using Type = std::uint8_t;
};
template <>
struct UnsignedOf<std::int16_t> {
  using Type = std::uint16_t;
};
template <>
struct UnsignedOf<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct UnsignedOf<std::int64_t> {
  using Type = std::uint64_t;
};

template <class T>
inline constexpr bool kIsFloat = T(1) / 2 != 0;

// The quiet NaN of a float type with sign and payload zero.
template <class T>
Full<T> quiet_nan() {
  if constexpr (sizeof(T) == 4) return (Full<T>)(Full<std::int32_t>{} + 0x7fc00000);
  if constexpr (sizeof(T) == 8)
    return (Full<T>)(Full<std::int64_t>{} + (0x7ffLL << 52 | 1LL << 51));
}

// Operations on vectors of T. Integers are added as unsigned, because wrapping is undefined for
// signed integers. `kArithmetic` states that processors differ in the bits of a NaN that the
// operation makes: MIN and MAX hand one of their operands on.
struct Sum {
  static constexpr bool kArithmetic = true;
  template <class T>
  static Full<T> apply(Full<T> a, Full<T> b) {
    using U = Full<typename UnsignedOf<T>::Type>;
    return (Full<T>)((U)a + (U)b);
  }
};
struct Product {
  static constexpr bool kArithmetic = true;
  template <class T>
  static Full<T> apply(Full<T> a, Full<T> b) {
    return a * b;
  }
};
struct Minimum {
  static constexpr bool kArithmetic = false;
  template <class T>
  static Full<T> apply(Full<T> a, Full<T> b) {
    if constexpr (kIsFloat<T>) return ((a < b) | (a != a)) ? a : b;
    return a < b ? a : b;
  }
};
struct Maximum {
  static constexpr bool kArithmetic = false;
  template <class T>
  static Full<T> apply(Full<T> a, Full<T> b) {
    if constexpr (kIsFloat<T>) return ((a > b) | (a != a)) ? a : b;
    return a > b ? a : b;
  }
};
struct And {
  static constexpr bool kArithmetic = false;
  template <class T>
  static Full<T> apply(Full<T> a, Full<T> b) {
    return a & b;
  }
};
struct Or {
  static constexpr bool kArithmetic = false;
  template <class T>
  static Full<T> apply(Full<T> a, Full<T> b) {
    return a | b;
  }
};
struct Xor {
  static constexpr bool kArithmetic = false;
  template <class T>
  static Full<T> apply(Full<T> a, Full<T> b) {
    return a ^ b;
  }
};

// Division of vector elements by the number of ranks.
template <class Lane>
class Divisor {
 public:
  explicit Divisor(int value)
      : value_(static_cast<Type>(value)),
        reciprocal_(1 / value_),
        none_(value <= 1),
        power_of_two_((value & (value - 1)) == 0) {}

  void apply(Full<Lane>& lanes) const {
    if (none_) return;
    if constexpr (kIsFloat<Lane>) {
      // For a power of two, multiplying by the reciprocal gives the same rounded quotient as
      // dividing, and is faster.
      lanes = power_of_two_ ? lanes * reciprocal_ : lanes / value_;
    } else {
      Lane plain[kWidth / sizeof(Lane)];
      __builtin_memcpy(plain, &lanes, kWidth);
      for (Lane& lane : plain) lane = static_cast<Lane>(static_cast<Type>(lane) / value_);
      __builtin_memcpy(&lanes, plain, kWidth);
    }
  }

 private:
  // The type in which an integer is divided. Narrow integers divide as floats, because vector
  // instructions exist for floats only. A float with at least twice the bits of the dividend never
  // rounds a quotient up to the next integer.
  template <class T, std::size_t size, bool is_float>
  struct Choose {
    using Type = T;
  };
  template <class T>
  struct Choose<T, 1, false> {
    using Type = float;
  };
  template <class T>
  struct Choose<T, 2, false> {
    using Type = float;
  };
  template <class T>
  struct Choose<T, 4, false> {
    using Type = double;
  };
  using Type = typename Choose<Lane, sizeof(Lane), kIsFloat<Lane>>::Type;

  Type value_;
  Type reciprocal_;  // used for floats only
  bool none_;
  bool power_of_two_;
};

// Four vectors of a format, which stay in registers from the first source to the last target. The
// whole chunk is read before any of it is stored, so a target may be a source.
template <class Format>
struct Chunk {
  using Piece = typename Format::Piece;
  using Wide = typename Format::Wide;
  using Lane = typename Format::Lane;
  static constexpr int kVectors = 4;
  static constexpr std::size_t kItem = sizeof(typename Format::Stored);
  static constexpr std::size_t kBytes = kVectors * sizeof(Piece);
  static constexpr std::size_t kCount = kBytes / kItem;

  Wide vectors[kVectors];

  void read(const unsigned char* from) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      vectors[v] = Format::widen(load<Piece>(from + v * sizeof(Piece)));
  }

  void read_wide(const unsigned char* from) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) vectors[v] = load<Wide>(from + v * sizeof(Wide));
  }

  template <class Op>
  void reduce(const unsigned char* from) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Wide next = Format::widen(load<Piece>(from + v * sizeof(Piece)));
      vectors[v] = Op::template apply<Lane>(vectors[v], next);
    }
  }

  void divide(const Divisor<Lane>& divisor) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) divisor.apply(vectors[v]);
  }

  // Replace each NaN that Op has made by one NaN. The hardware's depends on the order in which the
  // compiler has put the operands, which differs between instruction sets. One question for the
  // whole chunk takes a third of the instructions that the replacement takes.
  template <class Op>
  void settle() {
    if constexpr (kIsFloat<Lane> && Op::kArithmetic) {
      if ((nan_lanes(vectors[0], vectors[1]) | nan_lanes(vectors[2], vectors[3])) == 0) [[likely]]
        return;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        vectors[v] = vectors[v] == vectors[v] ? vectors[v] : quiet_nan<Lane>();
    }
  }

  void write_wide(unsigned char* to) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store<Wide>(to + v * sizeof(Wide), vectors[v]);
  }
};

// A chunk in its memory format, rounded once for all buffers that it is written to.
template <class Format>
struct Rounded {
  using Piece = typename Format::Piece;
  static constexpr int kVectors = Chunk<Format>::kVectors;

  Piece pieces[kVectors];

  explicit Rounded(const Chunk<Format>& chunk) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) pieces[v] = Format::narrow(chunk.vectors[v]);
  }

  void write(unsigned char* to) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store<Piece>(to + v * sizeof(Piece), pieces[v]);
  }

  // Store past the caches if `to` is aligned to the vector, else through them.
  void write_streaming(unsigned char* to) const {
    if (!aligned<Piece>(to)) return write(to);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) stream<Piece>(to + v * sizeof(Piece), pieces[v]);
  }
};

}  // namespace
}  // namespace slackline::kernels::SLACKLINE_ISA
