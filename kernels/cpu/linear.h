// y = W x for a few rows. W is kept in panels of 32 outputs, [panel][input][32], zeros beyond the last output.
//
// Every output is one sum over the inputs in order, by fused multiply-add, whatever the number of rows is: a row's
// result never depends on its neighbours.
#pragma once

#include <algorithm>

#include "vector.h"

namespace k3rl {

constexpr int kPanel = 2 * kLanes;
constexpr int kTile = 8;  // rows that share a load of the panel: 16 accumulators of 32 registers

struct Linear {
  const float* panels;  // null: this product does not exist in the model
  int32_t out, in;
};

template <int R>
inline void tile(const float* panel, int in, const float* x, int64_t x_stride, float* y, int64_t y_stride, int width) {
  Floats low[R] = {}, high[R] = {};
  for (int k = 0; k < in; ++k) {
    const Floats a = load(panel + k * kPanel), b = load(panel + k * kPanel + kLanes);
    for (int r = 0; r < R; ++r) {
      const float v = x[r * x_stride + k];
      low[r] += a * v;
      high[r] += b * v;
    }
  }
  for (int r = 0; r < R; ++r) {
    if (width == kPanel) {
      store(y + r * y_stride, low[r]);
      store(y + r * y_stride + kLanes, high[r]);
    } else {
      float both[kPanel];
      store(both, low[r]);
      store(both + kLanes, high[r]);
      std::memcpy(y + r * y_stride, both, width * sizeof(float));
    }
  }
}

template <int R>
inline void rest(int rows, const float* panel, int in, const float* x, int64_t xs, float* y, int64_t ys, int width) {
  if constexpr (R > 0) {
    if (rows == R)
      tile<R>(panel, in, x, xs, y, ys, width);
    else
      rest<R - 1>(rows, panel, in, x, xs, y, ys, width);
  }
}

// x [rows, in] and y [rows, out] with the given strides in floats.
inline void linear(const Linear& w, int rows, const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  for (int first = 0; first < w.out; first += kPanel) {
    const float* panel = w.panels + static_cast<int64_t>(first) * w.in;
    const int width = std::min(kPanel, w.out - first);
    int row = 0;
    for (; row + kTile <= rows; row += kTile)
      tile<kTile>(panel, w.in, x + row * x_stride, x_stride, y + row * y_stride + first, y_stride, width);
    rest<kTile - 1>(rows - row, panel, w.in, x + row * x_stride, x_stride, y + row * y_stride + first, y_stride, width);
  }
}

}  // namespace k3rl
