// Sixteen floats at a time, and the elementary functions on them. GCC and Clang lower the vector type to whatever the
// machine has (AVX-512, AVX2, NEON). No function here depends on anything but its arguments, lane by lane.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace k3rl {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }

inline Floats all(float x) { return x - Floats{}; }

inline Ints bits(Floats v) {
  Ints i;
  std::memcpy(&i, &v, sizeof i);
  return i;
}

inline Floats from_bits(Ints i) {
  Floats v;
  std::memcpy(&v, &i, sizeof v);
  return v;
}

// exp to 1 ulp or so on [-87, 88], clamped outside: 2^n e^r with |r| <= ln 2 / 2, e^r by the Cephes polynomial.
inline Floats exp(Floats x) {
  x = x > 88.0f ? all(88.0f) : x;
  x = x < -87.0f ? all(-87.0f) : x;
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Floats shifted = x * 1.44269504088896341f + magic;
  const Floats n = shifted - magic;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  return p * from_bits((bits(shifted) - bits(magic) + 127) << 23);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp(-x)); }

// tanh with a small relative error near zero too: an odd polynomial (Cephes) below 0.625, by exp above.
inline Floats tanh(Floats x) {
  const Floats magnitude = x < 0.0f ? -x : x;
  const Floats far = 1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f);
  const Floats z = x * x;
  Floats p = all(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Floats near = (p * z) * x + x;
  return magnitude < 0.625f ? near : (x < 0.0f ? -far : far);
}

template <int N>
inline float sum_lanes(const float* p) {
  if constexpr (N == 1) {
    return *p;
  } else {
    typedef float Half __attribute__((vector_size(2 * N)));
    Half low, high;
    std::memcpy(&low, p, sizeof low);
    std::memcpy(&high, p + N / 2, sizeof high);
    low += high;
    return sum_lanes<N / 2>(reinterpret_cast<const float*>(&low));
  }
}

inline float sum(Floats v) { return sum_lanes<kLanes>(reinterpret_cast<const float*>(&v)); }

// y[i] = f(x[i]), also in place; what is beyond the last whole vector is computed in a padded copy.
template <typename F>
inline void map(float* y, const float* x, int n, F f) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i)));
  if (i < n) {
    float rest[kLanes] = {};
    std::memcpy(rest, x + i, (n - i) * sizeof(float));
    store(rest, f(load(rest)));
    std::memcpy(y + i, rest, (n - i) * sizeof(float));
  }
}

inline float dot(const float* a, const float* b, int n) {
  Floats even = {}, odd = {};
  int i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even += load(a + i) * load(b + i);
    odd += load(a + i + kLanes) * load(b + i + kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) even += load(a + i) * load(b + i);
  float rest = 0.0f;
  for (; i < n; ++i) rest += a[i] * b[i];
  return sum(even + odd) + rest;
}

// y = weight * x / sqrt(mean x^2 + eps), also in place.
inline void rms_norm(float* y, const float* x, const float* weight, int n, float eps) {
  const float scale = 1.0f / std::sqrt(dot(x, x, n) / n + eps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

// x *= sigmoid(logits), in place.
inline void gate(float* x, const float* logits, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) * sigmoid(load(logits + i)));
  for (; i < n; ++i) x[i] *= sigmoid(all(logits[i]))[0];
}

}  // namespace k3rl
