// exp, tanh, erf, log, and sine and cosine of an angle in turns, in single precision: one implementation for the CPU and for
// CUDA, without branches and calls, so that a loop over it becomes vector code. The polynomials are Chebyshev fits on the
// intervals given. Errors below are the largest found by tests/kernels/math.cpp, in units in the last place (ulp) of the exact
// result.
//
// CMake defines FSDP_GPU for code that runs on a GPU's lanes. nvcc compiles it, or g++ for tests that emulate CUDA on the CPU
// (tests/cuda_double).
#pragma once

#include <cstdint>

#if defined(FSDP_GPU)
#define FSDP_INLINE __device__ __forceinline__
#else
#define FSDP_INLINE __attribute__((always_inline)) inline
#endif
/// For functions that the host also calls.
#if defined(__CUDACC__)
#define FSDP_INLINE_ANYWHERE __host__ __device__ __forceinline__
#else
#define FSDP_INLINE_ANYWHERE FSDP_INLINE
#endif
/// Goes after the parameter list of a lambda that a loop over lanes calls.
#if defined(FSDP_GPU)
#define FSDP_LANE
#else
#define FSDP_LANE __attribute__((always_inline))
#endif

namespace fsdp::kernels {

/// Returns a * b + c. The result is rounded once if the instruction set has fused multiply-add, as all but x86-64-v2 have. In
/// that variant, product and sum are rounded.
FSDP_INLINE float multiply_add(float a, float b, float c) {
#if defined(FSDP_GPU)
  return ::fmaf(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

FSDP_INLINE float square_root(float x) {
#if defined(FSDP_GPU)
  return ::sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

FSDP_INLINE double square_root(double x) {
#if defined(__CUDACC__)
  return ::sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}

/// 2^exponent, which must be a normal number.
FSDP_INLINE_ANYWHERE double power_of_two(std::int64_t exponent) { return __builtin_bit_cast(double, (1023 + exponent) << 52); }

FSDP_INLINE double floor(double x) {
#if defined(FSDP_GPU)
  return ::floor(x);
#else
  return __builtin_floor(x);
#endif
}

/// The parts of x = n * ln 2 + r with |r| <= (ln 2) / 2: expm1_r = e^r - 1, and the low bits of `shifted` are those of n.
struct ExpParts {
  float expm1_r;
  std::int32_t shifted;
};

FSDP_INLINE ExpParts exp_parts(float x) {
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the mantissa.
  const float shifted = multiply_add(x, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = multiply_add(n, -0.693359375f, x);  // ln 2 in two parts: the first has few bits, so that n times it is exact
  r = multiply_add(n, 2.12194440e-4f, r);
  float p = 1.3926926614e-03f;  // (e^r - 1 - r) / r^2 on [-0.35, 0.35], error 7e-8
  p = multiply_add(p, r, 8.3637738744e-03f);
  p = multiply_add(p, r, 4.1666550110e-02f);
  p = multiply_add(p, r, 1.6666573382e-01f);
  p = multiply_add(p, r, 0.5f);
  return {multiply_add(r * r, p, r), __builtin_bit_cast(std::int32_t, shifted)};
}

/// 2^(n-1), or 0 for n <= -126. n is the n of ExpParts, in the low bits of `shifted`.
FSDP_INLINE float half_power_of_two(std::int32_t shifted) {
  return __builtin_bit_cast(float, static_cast<std::int32_t>((static_cast<std::uint32_t>(shifted) << 23) + (126u << 23)));
}

/// e^x, error below 1.1 ulp. Infinity above 88.73, 0 below -87, NaN for NaN.
FSDP_INLINE float exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -87.4f ? -87.4f : x;
  const ExpParts parts = exp_parts(x);
  const float scale = half_power_of_two(parts.shifted);
  return multiply_add(parts.expm1_r, scale, scale) * 2.0f;
}

/// e^x - 1 for |x| <= 87, error below 1.7 ulp.
FSDP_INLINE float expm1(float x) {
  const ExpParts parts = exp_parts(x);
  const float scale = half_power_of_two(parts.shifted);
  return 2.0f * multiply_add(parts.expm1_r, scale, scale - 0.5f);
}

/// tanh x = (e^2x - 1) / (e^2x + 1), error below 2.4 ulp.
FSDP_INLINE float tanh(float x) {
  float a = x < 0 ? -x : x;
  a = a > 10.0f ? 10.0f : a;
  const float e = expm1(2.0f * a);
  const float t = e / (e + 2.0f);
  return x < 0 ? -t : t;
}

/// 1 / (1 + e^-x), error below 2.5 ulp for |x| <= 86.
FSDP_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

/// The error function: its absolute value is 1 - e^(-a * P(a)) with a = |x|. The polynomial P is fitted to -log(erfc a) / a on
/// [0, 4] (error 2.5e-8). Error below 3.1 ulp.
FSDP_INLINE float erf(float x) {
  float a = x < 0 ? -x : x;
  a = a > 4.0f ? 4.0f : a;
  float p = -1.0139772736e-07f;
  p = multiply_add(p, a, 2.5587650598e-06f);
  p = multiply_add(p, a, -2.8743581766e-05f);
  p = multiply_add(p, a, 1.8809217637e-04f);
  p = multiply_add(p, a, -7.7187974635e-04f);
  p = multiply_add(p, a, 1.8230307230e-03f);
  p = multiply_add(p, a, -2.5815039479e-04f);
  p = multiply_add(p, a, -1.9121386032e-02f);
  p = multiply_add(p, a, 1.0277336095e-01f);
  p = multiply_add(p, a, 6.3661956736e-01f);
  p = multiply_add(p, a, 1.1283791709e+00f);
  const float t = -expm1(-a * p);
  return x < 0 ? -t : t;
}

/// Natural logarithm of a positive normal number, error below 0.9 ulp, from plain products and sums (not fused ones), so that
/// all instruction sets give the same bits.
FSDP_INLINE float log(float x) {
  // x = 2^n m with m in [sqrt 1/2, sqrt 2): subtracting the bits of sqrt 1/2 makes m's interval start there instead of at 1.
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x) - 0x3f3504f3u;
  const float n = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float f = __builtin_bit_cast(float, (bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float p = -7.9027437724e-02f;  // (log(1+f) - f + f^2/2) / f^3, error 2e-7
  p = p * f + 1.2622319849e-01f;
  p = p * f + -1.2998183764e-01f;
  p = p * f + 1.4214495924e-01f;
  p = p * f + -1.6641281463e-01f;
  p = p * f + 2.0001045094e-01f;
  p = p * f + -2.5000306423e-01f;
  p = p * f + 3.3333330728e-01f;
  const float f2 = f * f;
  const float tail = f * f2 * p - 0.5f * f2 + n * -2.12194440e-4f;
  return (f + tail) + n * 0.693359375f;
}

/// Sine and cosine of 2 * pi * word / 2^32, absolute error below 1.1e-7. The argument is reduced exactly, in integers. As in
/// log(), no products and sums are fused.
struct SinCos {
  float sin, cos;
};

FSDP_INLINE SinCos sincos_turn(std::uint32_t word) {
  const std::uint32_t quarter = (word + 0x20000000u) >> 30;                                          // nearest quarter turn
  const float y = static_cast<float>(static_cast<std::int32_t>(word - (quarter << 30))) * 0x1p-30f;  // in quarter turns, +-1/2
  const float z = y * y;
  float s = 1.5820630356e-04f;
  s = s * z + -4.6812662567e-03f;
  s = s * z + 7.9692582726e-02f;
  s = s * z + -6.4596409615e-01f;
  s = s * z + 1.5707963268e+00f;
  s = s * y;
  float c = 9.0362806638e-04f;
  c = c * z + -2.0860069500e-02f;
  c = c * z + 2.5366920366e-01f;
  c = c * z + -1.2337005406e+00f;
  c = c * z + 1.0f;
  const bool swap = (quarter & 1u) != 0;
  const float sine = swap ? c : s;
  const float cosine = swap ? s : c;
  return {(quarter & 2u) != 0 ? -sine : sine, ((quarter + 1u) & 2u) != 0 ? -cosine : cosine};
}

}  // namespace fsdp::kernels
