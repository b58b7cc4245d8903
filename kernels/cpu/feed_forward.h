// One token of a feed-forward block: dense, or the latent mixture of experts (kernels/moe/reference.py).
#pragma once

#include <algorithm>
#include <cmath>

#include "model.h"
#include "scratch.h"

namespace k3rl {

// y [width] of gates and ups [2 width].
inline void activate(const Glu& glu, const float* gate_up, int width, float* y) {
  const auto one = [&](Floats g, Floats u) {
    if (!glu.situ) return g * sigmoid(g) * u;
    return (tanh(g / glu.beta) * sigmoid(g)) * tanh(u / glu.linear_beta) * (glu.beta * glu.linear_beta);
  };
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) store(y + i, one(load(gate_up + i), load(gate_up + width + i)));
  for (; i < width; ++i) y[i] = one(all(gate_up[i]), all(gate_up[width + i]))[0];
}

inline void activate(const Glu& glu, int n, const float* gate_up, int64_t stride, int width, float* y) {
  for (int r = 0; r < n; ++r) activate(glu, gate_up + r * stride, width, y + static_cast<int64_t>(r) * width);
}

// The `chosen` experts of highest score + bias, the lower id among equals, ascending; and their mixture weights.
inline void route(const FeedForward& m, float* scores, int64_t* ids, float* weights, char* taken) {
  map(scores, scores, m.experts, [](Floats v) { return sigmoid(v); });
  std::fill_n(taken, m.experts, 0);
  for (int k = 0; k < m.chosen; ++k) {
    int best = -1;
    for (int e = 0; e < m.experts; ++e)
      if (!taken[e] && (best < 0 || scores[e] + m.bias[e] > scores[best] + m.bias[best])) best = e;
    taken[best] = 1;
  }
  float total = 0.0f;
  for (int e = 0, k = 0; e < m.experts; ++e) {
    if (!taken[e]) continue;
    ids[k] = e;
    weights[k++] = scores[e];
    total += scores[e];
  }
  for (int k = 0; k < m.chosen; ++k) weights[k] *= m.scaling / (m.renormalize ? total + 1e-20f : 1.0f);
}

inline void expert_linear(const Linear* plain, const Packed* packed, int e, int rows, const float* x, int in, float* y,
                          int out) {
  if (packed)
    linear(packed[e], rows, x, in, y, out);
  else
    linear(plain[e], rows, x, in, y, out);
}

// mixture [n, latent] = sum_k weights[r, k] E_ids[r, k](entry[r]), expert by expert over the rows that chose it.
inline void mix_experts(const FeedForward& m, int n, const float* entry, int64_t entry_stride, const int64_t* ids,
                        int64_t ids_stride, const float* weights, int latent, float* mixture, Scratch& scratch) {
  const Scratch::Mark mark(scratch);
  const auto rows = [&](int64_t width) { return scratch.floats(n * width); };
  float *inputs = rows(latent), *gate_up = rows(2 * m.width), *hidden = rows(m.width), *outputs = rows(latent);
  int64_t* owner = scratch.ints(n);
  float* share = scratch.floats(n);
  std::fill_n(mixture, static_cast<int64_t>(n) * latent, 0.0f);
  for (int e = 0; e < m.experts; ++e) {
    int count = 0;
    for (int r = 0; r < n; ++r)
      for (int k = 0; k < m.chosen; ++k)
        if (ids[r * ids_stride + k] == e) {
          std::copy_n(entry + r * entry_stride, latent, inputs + static_cast<int64_t>(count) * latent);
          owner[count] = r;
          share[count++] = weights[r * m.chosen + k];
        }
    expert_linear(m.w13, m.packed_w13, e, count, inputs, latent, gate_up, 2 * m.width);
    activate(m.glu, count, gate_up, 2 * m.width, m.width, hidden);
    expert_linear(m.w2, m.packed_w2, e, count, hidden, m.width, outputs, latent);
    for (int i = 0; i < count; ++i)
      for (int j = 0; j < latent; ++j) mixture[owner[i] * latent + j] += share[i] * outputs[i * latent + j];
  }
}

// y [n, hidden] of x [n, hidden]; the chosen experts of row r go to ids + r * ids_stride (none for a dense block).
inline void step(const FeedForward& m, int n, int hidden, float eps, const float* x, float* y, int64_t* ids,
                 int64_t ids_stride, Scratch& scratch) {
  const Scratch::Mark mark(scratch);
  const auto rows = [&](int64_t width) { return scratch.floats(n * width); };
  const int in = m.gate_up.out, width = m.down.in;
  float *projected = rows(in), *activated = rows(width);
  linear(m.gate_up, n, x, hidden, projected, in);
  activate(m.glu, n, projected, in, width, activated);
  linear(m.down, n, activated, width, y, hidden);
  if (!m.router.panels) return;

  const int latent = m.latent ? m.latent : hidden;
  float *scores = rows(m.experts), *weights = rows(m.chosen), *mixture = rows(latent);
  char* taken = reinterpret_cast<char*>(scratch.ints(m.experts));
  linear(m.router, n, x, hidden, scores, m.experts);
  for (int r = 0; r < n; ++r)
    route(m, scores + r * m.experts, ids + r * ids_stride, weights + r * m.chosen, taken);
  const float* entry = m.latent ? projected + 2 * m.shared : x;
  mix_experts(m, n, entry, m.latent ? in : hidden, ids, ids_stride, weights, latent, mixture, scratch);
  float* raised = mixture;
  if (m.latent) {
    raised = rows(hidden);
    for (int r = 0; r < n; ++r) rms_norm(mixture + r * latent, mixture + r * latent, m.latent_norm, latent, eps);
    linear(m.latent_up, n, mixture, latent, raised, hidden);
  }
  for (int64_t i = 0; i < static_cast<int64_t>(n) * hidden; ++i) y[i] += raised[i];
}

}  // namespace k3rl
