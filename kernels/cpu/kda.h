// One token of a KDA layer: S' = Diag(exp g) S, S = S' + beta k (v - S'^T k)^T, o = S^T q (kernels/kda/reference.py).
#pragma once

#include "model.h"
#include "scratch.h"

namespace k3rl {

constexpr float kL2Eps = 1e-6f;

inline void l2_norm(float* x, int n, float scale) {
  const float factor = scale / std::sqrt(dot(x, x, n) + kL2Eps);
  for (int i = 0; i < n; ++i) x[i] *= factor;
}

// silu of the convolution over the last kernel - 1 inputs and the new one, which replaces the oldest.
inline void convolve(const Kda& m, const float* input, float* inputs, float* y) {
  const int channels = 3 * m.heads * m.head_dim, past = m.kernel - 1;
  for (int c = 0; c < channels; ++c) y[c] = input[c] * m.conv[c * m.kernel + past];
  for (int j = 0; j < past; ++j)
    for (int c = 0; c < channels; ++c) y[c] += inputs[j * channels + c] * m.conv[c * m.kernel + j];
  std::memmove(inputs, inputs + channels, sizeof(float) * channels * (past - 1));
  std::memcpy(inputs + channels * (past - 1), input, sizeof(float) * channels);
  map(y, y, channels, [](Floats v) { return v * sigmoid(v); });
}

// Decay per key channel: exp of the log gate whose logits are z.
inline void decays(const Kda& m, float* z) {
  for (int h = 0; h < m.heads; ++h) {
    float* at = z + h * m.head_dim;
    const float rate = std::exp(m.a_log[h]);
    for (int i = 0; i < m.head_dim; ++i) at[i] += m.dt_bias[h * m.head_dim + i];
    if (m.bounded) {
      map(at, at, m.head_dim, [&](Floats v) { return exp(m.lower_bound * sigmoid(rate * v)); });
    } else {
      for (int i = 0; i < m.head_dim; ++i)  // softplus, as torch: x itself above 20
        at[i] = std::exp(-rate * (at[i] > 20.0f ? at[i] : std::log1p(std::exp(at[i]))));
    }
  }
}

inline void delta_rule(const float* q, const float* k, const float* v, const float* decay, float beta, int d,
                       float* state, float* update, float* out) {
  for (int j = 0; j < d; ++j) update[j] = 0.0f;
  for (int i = 0; i < d; ++i) {
    float* s = state + i * d;
    for (int j = 0; j < d; ++j) {
      s[j] *= decay[i];
      update[j] += k[i] * s[j];
    }
  }
  for (int j = 0; j < d; ++j) update[j] = (v[j] - update[j]) * beta;
  for (int j = 0; j < d; ++j) out[j] = 0.0f;
  for (int i = 0; i < d; ++i) {
    float* s = state + i * d;
    for (int j = 0; j < d; ++j) {
      s[j] += k[i] * update[j];
      out[j] += q[i] * s[j];
    }
  }
}

// x [n, hidden] of the slots `rows`, to y [n, hidden].
inline void step(const Kda& m, const Memory& memory, const int64_t* rows, int n, int hidden, float eps, const float* x,
                 float* y, Scratch& scratch) {
  const Scratch::Mark mark(scratch);
  const int d = m.head_dim, width = m.heads * d, in = m.in_proj.out;
  const int at_f = 3 * width, at_b = at_f + d, at_g = at_b + m.heads;
  float* projected = scratch.floats(static_cast<int64_t>(n) * in);
  float* gates = scratch.floats(static_cast<int64_t>(n) * width);
  float* outputs = scratch.floats(static_cast<int64_t>(n) * width);
  float* output_gates = m.g_b.panels ? scratch.floats(static_cast<int64_t>(n) * width) : nullptr;
  float* mixed = scratch.floats(3 * width);
  float* update = scratch.floats(d);
  linear(m.in_proj, n, x, hidden, projected, in);
  linear(m.f_b, n, projected + at_f, in, gates, width);
  if (output_gates) linear(m.g_b, n, projected + at_g, in, output_gates, width);
  for (int r = 0; r < n; ++r) {
    const float* p = projected + static_cast<int64_t>(r) * in;
    float* decay = gates + static_cast<int64_t>(r) * width;
    float* out = outputs + static_cast<int64_t>(r) * width;
    convolve(m, p, memory.inputs + rows[r] * (m.kernel - 1) * 3 * width, mixed);
    decays(m, decay);
    for (int h = 0; h < m.heads; ++h) {
      float *q = mixed + h * d, *k = q + width, *v = k + width;
      l2_norm(q, d, 1.0f / std::sqrt(static_cast<float>(d)));
      l2_norm(k, d, 1.0f);
      const float beta = 1.0f / (1.0f + std::exp(-p[at_b + h]));
      float* state = memory.state + (rows[r] * m.heads + h) * d * d;
      delta_rule(q, k, v, decay + h * d, beta, d, state, update, out + h * d);
      rms_norm(out + h * d, out + h * d, m.o_norm, d, eps);
    }
    gate(out, output_gates ? output_gates + static_cast<int64_t>(r) * width : p + at_g, width);
  }
  linear(m.o_proj, n, outputs, width, y, hidden);
}

}  // namespace k3rl
