// y = W x for a few rows, W in MXFP4 (kernels/mxfp4/reference.py): codes are looked up in registers, so that a weight
// costs the memory it is stored in.
//
// Panels of 16 outputs; per panel and block of 32 inputs 4 groups of 64 bytes and 16 scale bytes. A group holds 8
// inputs: output o's 32 bits are nibbles of inputs 0, 2, 4, 6, 1, 3, 5, 7, so that its two halves are, nibble by nibble,
// pairs of neighbouring inputs, as a dot product of bfloat16 pairs wants them.
//
// Every output is a sum over blocks of scale * (sum over the block), in one order whatever the number of rows is: a
// row's result never depends on its neighbours.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "vector.h"

namespace k3rl {

constexpr int kGroups = 4;          // of a block
constexpr int kGroupInputs = 8;
constexpr int kBlockInputs = kGroups * kGroupInputs;
constexpr int kGroupBytes = 4 * kLanes;

struct Packed {
  const uint8_t *codes, *scales;  // [panel][block][4][64], [panel][block][16]; no byte of 255
  int32_t out, in;

  int panels() const { return (out + kLanes - 1) / kLanes; }
  int blocks() const { return in / kBlockInputs; }
};

inline Ints load_group(const uint8_t* p) {
  Ints v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The values of the lowest nibbles.
inline Floats lookup(Ints codes) {
#if defined(__AVX512F__)
  const Floats table = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return reinterpret_cast<Floats>(
      _mm512_maskz_permutexvar_ps(-1, reinterpret_cast<__m512i>(codes), reinterpret_cast<__m512>(table)));
#elif defined(__AVX2__)
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  __m256i halves[2];
  __m256 values[2];
  std::memcpy(halves, &codes, sizeof halves);
  for (int h = 0; h < 2; ++h) {
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(halves[h], _mm256_set1_epi32(8)), 28);
    values[h] = _mm256_xor_ps(_mm256_permutevar8x32_ps(table, halves[h]), _mm256_castsi256_ps(sign));
  }
  Floats result;
  std::memcpy(&result, values, sizeof result);
  return result;
#else
  const float table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  Floats result;
  for (int i = 0; i < kLanes; ++i) result[i] = table[codes[i] & 15];
  return result;
#endif
}

// 2^(byte - 127), down to the subnormal of byte 0.
inline Floats scales_of(const uint8_t* bytes) {
  uint8_t raw __attribute__((vector_size(kLanes)));
  std::memcpy(&raw, bytes, sizeof raw);
  const Ints exponents = __builtin_convertvector(raw, Ints) << 23;
  return from_bits(exponents > 0x00400000 ? exponents : 0x00400000 - Ints{});
}

// How a group of P panels is multiplied with 8 inputs of R rows: by type of the rows.
struct Fp32Rows {
  using Value = float;

  template <int P, int R>
  static inline void group(Ints (&codes)[P], const float* x, int64_t stride, Floats (&sums)[P][R]) {
    constexpr int order[kGroupInputs] = {0, 2, 4, 6, 1, 3, 5, 7};
#pragma GCC unroll 8
    for (int n = 0; n < kGroupInputs; ++n) {
      Floats weights[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        weights[p] = lookup(codes[p]);
        codes[p] >>= 4;
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Floats value = all(x[r * stride + order[n]]);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sums[p][r] += weights[p] * value;
      }
    }
  }
};

#if defined(__AVX512BF16__)
// bfloat16 rows: products of pairs, accumulated in fp32.
struct Bf16Rows {
  using Value = uint16_t;

  template <int P, int R>
  static inline void group(Ints (&codes)[P], const uint16_t* x, int64_t stride, Floats (&sums)[P][R]) {
    // The five low bits of a word choose; the fifth belongs to the next code, so the table stands there twice.
    alignas(64) static constexpr uint16_t values[32] = {
        0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
        0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
        0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
    const __m512i table = _mm512_load_si512(values);
#pragma GCC unroll 4
    for (int i = 0; i < kGroupInputs / 2; ++i) {
      __m512i weights[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        weights[p] = _mm512_permutexvar_epi16(_mm512_srli_epi16(reinterpret_cast<__m512i>(codes[p]), 4 * i), table);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t pair;
        std::memcpy(&pair, x + r * stride + 2 * i, sizeof pair);
        const __m512i pairs = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          sums[p][r] = reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums[p][r]),
                                                                 reinterpret_cast<__m512bh>(weights[p]),
                                                                 reinterpret_cast<__m512bh>(pairs)));
      }
    }
  }
};
#endif

// R rows times P panels from `panel` on; `width` outputs of the last one are stored.
template <class Rows, int P, int R>
void packed_tile(const Packed& w, int panel, const typename Rows::Value* x, int64_t x_stride, float* y,
                 int64_t y_stride, int width) {
  const int blocks = w.blocks();
  const int64_t bytes = static_cast<int64_t>(blocks) * kGroups * kGroupBytes;
  const uint8_t* codes = w.codes + panel * bytes;
  const uint8_t* scales = w.scales + static_cast<int64_t>(panel) * blocks * kLanes;
  Floats totals[P][R] = {};
  for (int b = 0; b < blocks; ++b) {
    Floats sums[P][R] = {};
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      Ints group[P];
      for (int p = 0; p < P; ++p) group[p] = load_group(codes + p * bytes + (b * kGroups + g) * kGroupBytes);
      Rows::template group<P, R>(group, x + b * kBlockInputs + g * kGroupInputs, x_stride, sums);
    }
    for (int p = 0; p < P; ++p) {
      const Floats scale = scales_of(scales + (static_cast<int64_t>(p) * blocks + b) * kLanes);
      for (int r = 0; r < R; ++r) totals[p][r] += sums[p][r] * scale;
    }
  }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r)
      std::memcpy(y + r * y_stride + p * kLanes, &totals[p][r], (p + 1 < P ? kLanes : width) * sizeof(float));
}

#if defined(__AVX512F__)
constexpr int kPackedRows = 6, kPackedPanels = 2, kWidePanels = 4;  // at most 24 accumulators of 32 registers
#else
constexpr int kPackedRows = 2, kPackedPanels = 1, kWidePanels = 1;
#endif

// packed_tile<Rows, P, rows>.
template <class Rows, int P, int R = kPackedRows, class... Arguments>
inline void packed_rows(int rows, Arguments... arguments) {
  if constexpr (R > 0) {
    if (rows == R)
      packed_tile<Rows, P, R>(arguments...);
    else
      packed_rows<Rows, P, R - 1>(rows, arguments...);
  }
}

// x [rows, in] and y [rows, out] with the given strides in elements; the outputs of panels [first, last). Rows are
// split evenly into tiles; few rows take more panels at once, to have as many independent sums.
template <class Rows>
void packed_linear(const Packed& w, int rows, const typename Rows::Value* x, int64_t x_stride, float* y,
                   int64_t y_stride, int first, int last) {
  const int tiles = (rows + kPackedRows - 1) / kPackedRows;
  const int step = rows <= 2 ? kWidePanels : kPackedPanels;
  for (int panel = first; panel < last;) {
    const int panels = panel + step <= last ? step : 1;
    const int width = std::min(kLanes, w.out - (panel + panels - 1) * kLanes);
    for (int t = 0; t < tiles; ++t) {
      const int from = rows * t / tiles, count = rows * (t + 1) / tiles - from;
      const auto* inputs = x + from * x_stride;
      float* outputs = y + from * y_stride + panel * kLanes;
      if (panels == kPackedPanels)
        packed_rows<Rows, kPackedPanels>(count, w, panel, inputs, x_stride, outputs, y_stride, width);
      else if (panels == 1)
        packed_rows<Rows, 1>(count, w, panel, inputs, x_stride, outputs, y_stride, width);
      else
        packed_rows<Rows, kWidePanels, 2>(count, w, panel, inputs, x_stride, outputs, y_stride, width);
    }
    panel += panels;
  }
}

// All outputs of fp32 rows.
inline void linear(const Packed& w, int rows, const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  packed_linear<Fp32Rows>(w, rows, x, x_stride, y, y_stride, 0, w.panels());
}

}  // namespace k3rl
