// A reference implementation of the contract of kernels.h. The reference computes one element at a
// time and shares no code with the kernels.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "slackline/wire.h"

namespace slackline::test {

// Element types that C++ lacks; `bits` is their memory representation.
struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};
struct Truth {
  std::uint8_t bits;
};

inline float accumulate(Half x) { return static_cast<float>(std::bit_cast<_Float16>(x)); }
inline float accumulate(Brain x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
inline bool accumulate(Truth x) { return x.bits != 0; }
template <class T>
T accumulate(T x) {
  return x;
}

template <class T, class A>
T rounded(A x) {
  if constexpr (std::is_same_v<T, Half>) {
    const auto bits = std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
    return {static_cast<std::uint16_t>(std::isnan(x) ? bits | 0x200 : bits)};
  } else if constexpr (std::is_same_v<T, Brain>) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const auto towards_zero = static_cast<std::uint16_t>(bits >> 16);
    if (std::isnan(x)) return {static_cast<std::uint16_t>(towards_zero | 0x40)};
    const std::uint32_t rest = bits & 0xffff;
    const bool away = rest > 0x8000 || (rest == 0x8000 && (towards_zero & 1) != 0);
    return {static_cast<std::uint16_t>(towards_zero + (away ? 1 : 0))};
  } else if constexpr (std::is_same_v<T, Truth>) {
    return {static_cast<std::uint8_t>(x ? 1 : 0)};
  } else {
    return x;
  }
}

inline bool apply(wire::ReduceOp op, bool a, bool b) {
  switch (op) {
    case wire::ReduceOp::kProd:
    case wire::ReduceOp::kMin:
    case wire::ReduceOp::kBand:
      return a && b;
    case wire::ReduceOp::kBxor:
      return a != b;
    default:
      return a || b;
  }
}

template <class A>
A apply(wire::ReduceOp op, A a, A b) {
  using wire::ReduceOp;
  if (op == ReduceOp::kMin) return a < b || a != a ? a : b;
  if (op == ReduceOp::kMax) return a > b || a != a ? a : b;
  if constexpr (std::is_floating_point_v<A>) {
    return op == ReduceOp::kProd ? a * b : a + b;
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::kProd:
        return static_cast<A>(x * y);
      case ReduceOp::kBand:
        return static_cast<A>(x & y);
      case ReduceOp::kBor:
        return static_cast<A>(x | y);
      case ReduceOp::kBxor:
        return static_cast<A>(x ^ y);
      default:
        return static_cast<A>(x + y);
    }
  }
}

template <class A>
A divided(A sum, int divisor) {
  if constexpr (std::is_floating_point_v<A>) return sum / static_cast<A>(divisor);
  if constexpr (std::is_same_v<A, std::uint64_t>) return sum / static_cast<std::uint64_t>(divisor);
  return static_cast<A>(static_cast<std::int64_t>(sum) / divisor);
}

// Return `value` as a reduction gives it: a NaN of a sum, product or average has sign and payload
// zero; MIN and MAX leave a NaN alone.
template <class A>
A settled(wire::ReduceOp op, A value) {
  if constexpr (std::is_floating_point_v<A>) {
    const bool picks = op == wire::ReduceOp::kMin || op == wire::ReduceOp::kMax;
    if (!picks && std::isnan(value)) return std::numeric_limits<A>::quiet_NaN();
  }
  return value;
}

// The unsigned integer with the size of T, and the bits of a float type's exponent in it.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
template <class T>
constexpr BitsOf<T> exponent_mask() {
  if constexpr (std::is_same_v<T, Half>) return 0x7c00;
  if constexpr (std::is_same_v<T, Brain>) return 0x7f80;
  if constexpr (std::is_same_v<T, float>) return 0x7f800000;
  if constexpr (std::is_same_v<T, double>) return 0x7ff0000000000000;
  return 0;
}

inline bool is_nan(Half x) { return std::isnan(accumulate(x)); }
inline bool is_nan(Brain x) { return std::isnan(accumulate(x)); }
inline bool is_nan(Truth) { return false; }
template <class T>
bool is_nan(T x) {
  return x != x;
}

// Call visit(dtype, T()) for every dtype, where T is its element type in the reference.
template <class Visit>
void for_each_dtype(Visit visit) {
  using wire::DType;
  visit(DType::kFloat32, float());
  visit(DType::kFloat64, double());
  visit(DType::kFloat16, Half());
  visit(DType::kBfloat16, Brain());
  visit(DType::kInt8, std::int8_t());
  visit(DType::kInt16, std::int16_t());
  visit(DType::kInt32, std::int32_t());
  visit(DType::kInt64, std::int64_t());
  visit(DType::kUint8, std::uint8_t());
  visit(DType::kUint16, std::uint16_t());
  visit(DType::kUint32, std::uint32_t());
  visit(DType::kUint64, std::uint64_t());
  visit(DType::kBool, Truth());
}

}  // namespace slackline::test
