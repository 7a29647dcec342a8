// Vectors of floats by GCC's vector extensions: as wide as the processor this is compiled for.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;    // floats in a vector
constexpr int ROWS = 4;  // queries in a register tile
#elif defined(__AVX__)
constexpr int W = 8;
constexpr int ROWS = 2;
#else
constexpr int W = 4;
constexpr int ROWS = 2;
#endif
constexpr int NV = 4;                // vectors in a register tile

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));

struct bf16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline void narrow(float x, float* out) { *out = x; }
inline void narrow(float x, bf16* out) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) {
    out->bits = 0x7fc0;
    return;
  }
  out->bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // round to nearest even
}

inline vf load(const float* p) {
  vf out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
inline vf load(const bf16* p) {
  vh half;
  std::memcpy(&half, p, sizeof half);
  return (vf)(__builtin_convertvector(half, vu) << 16);
}
inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
inline vf splat(float x) { return x - vf{}; }

inline float sum(vf x) {
  float out = 0;
  for (int i = 0; i < W; i++) out += x[i];
  return out;
}
inline float largest(vf x) {
  float out = x[0];
  for (int i = 1; i < W; i++) out = x[i] > out ? x[i] : out;
  return out;
}

// e^x for x <= 88, within 2 ulp; 0 below -87; NaN stays NaN.
inline vf exp_vec(vf x) {
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole number
  const vf shifted = x * 1.44269504f + magic;
  const vf n = shifted - magic;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const vi exponent = ((vi)shifted - 0x4b400000 + 127) << 23;
  return x < -87.f ? vf{} : p * (vf)exponent;
}

}  // namespace
