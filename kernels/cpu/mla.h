// One token of a gated MLA layer on its latents (absorbed form), reading all of its past or what its indexer selects
// (kernels/sparse_attention/reference.py).
#pragma once

#include <cmath>

#include "model.h"
#include "scratch.h"

namespace k3rl {

constexpr float kLatentEps = 1e-6f;
constexpr float kGrid = 1.0f / 4096.0f;  // scores are rounded to this share of the largest one before selection

inline void layer_norm(float* x, const float* weight, const float* bias, int n, float eps) {
  float mean = 0.0f, variance = 0.0f;
  for (int i = 0; i < n; ++i) mean += x[i];
  mean /= n;
  for (int i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / std::sqrt(variance / n + eps);
  for (int i = 0; i < n; ++i) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

// The top_k of `count` positions by rounded score, the later one among equals; ascending into `chosen`.
inline void select(const float* scores, int64_t count, int top_k, int64_t* chosen, int64_t* order, int64_t* sorted) {
  float largest = 0.0f;
  for (int64_t t = 0; t < count; ++t) largest = std::max(largest, std::fabs(scores[t]));
  const float unit = largest * kGrid == 0.0f ? 1.0f : largest * kGrid;
  // One integer orders by rounded score, then by position.
  for (int64_t t = 0; t < count; ++t)
    order[t] = static_cast<int64_t>(std::nearbyint(scores[t] / unit)) * count + t;
  std::copy(order, order + count, sorted);
  std::nth_element(sorted, sorted + top_k - 1, sorted + count, [](int64_t a, int64_t b) { return a > b; });
  const int64_t least = sorted[top_k - 1];
  for (int64_t t = 0, place = 0; t < count; ++t)
    if (order[t] >= least) chosen[place++] = t;
}

// What the indexer of one row needs: its queries [index_heads, index_dim] and head weights, the slot's keys.
inline void score(const Mla& m, const float* queries, const float* weights, const float* keys, int64_t count,
                  float* scores) {
  for (int64_t t = 0; t < count; ++t) {
    float total = 0.0f;
    for (int j = 0; j < m.index_heads; ++j)
      total += weights[j] * std::max(0.0f, dot(queries + j * m.index_dim, keys + t * m.index_dim, m.index_dim));
    scores[t] = total;
  }
}

// Softmax attention of every head over `count` latents: queries [heads, rank + rope] (scaled) to mixed [heads, rank].
// `positions` null: the first `count`.
inline void attend(const Mla& m, const float* queries, const float* latents, const int64_t* positions, int64_t count,
                   float* logits, float* mixed) {
  const int entry = m.rank + m.rope;
  for (int h = 0; h < m.heads; ++h) {
    float largest = -INFINITY;
    for (int64_t s = 0; s < count; ++s) {
      const float* latent = latents + (positions ? positions[s] : s) * entry;
      logits[s] = dot(queries + h * entry, latent, entry);
      largest = std::max(largest, logits[s]);
    }
    map(logits, logits, static_cast<int>(count), [&](Floats v) { return exp(v - largest); });
    float total = 0.0f;
    float* out = mixed + h * m.rank;
    std::fill(out, out + m.rank, 0.0f);
    for (int64_t s = 0; s < count; ++s) {
      const float* latent = latents + (positions ? positions[s] : s) * entry;
      total += logits[s];
      for (int i = 0; i < m.rank; ++i) out[i] += logits[s] * latent[i];
    }
    for (int i = 0; i < m.rank; ++i) out[i] /= total;
  }
}

// What a row of the step works on.
struct MlaRows {
  int n, in;
  float *projected, *queries, *absorbed, *mixed, *outputs, *index_queries, *index_in;
};

inline MlaRows project(const Mla& m, int n, int hidden, const float* x, Scratch& scratch) {
  const int qk = m.nope + m.rope, entry = m.rank + m.rope;
  MlaRows w{n, m.in_proj.out};
  const auto rows = [&](int64_t width) { return scratch.floats(n * width); };
  w.projected = rows(w.in);
  w.queries = rows(m.heads * qk);
  w.absorbed = rows(m.heads * entry);
  w.mixed = rows(m.heads * m.rank);
  w.outputs = rows(m.heads * m.value);
  linear(m.in_proj, n, x, hidden, w.projected, w.in);
  const float* source = x;  // of the index queries: the query latent, or x where there is none
  int source_stride = hidden;
  if (m.q_norm) {
    for (int r = 0; r < n; ++r) rms_norm(w.projected + r * w.in, w.projected + r * w.in, m.q_norm, m.query_rank, kLatentEps);
    linear(m.q_b, n, w.projected, w.in, w.queries, m.heads * qk);
    source = w.projected;
    source_stride = w.in;
  } else {
    for (int r = 0; r < n; ++r) std::copy_n(w.projected + r * w.in, m.heads * qk, w.queries + r * m.heads * qk);
  }
  for (int h = 0; h < m.heads; ++h) {
    linear(m.w_uk[h], n, w.queries + h * qk, m.heads * qk, w.absorbed + h * entry, m.heads * entry);
    for (int r = 0; r < n; ++r)
      std::copy_n(w.queries + (r * m.heads + h) * qk + m.nope, m.rope, w.absorbed + (r * m.heads + h) * entry + m.rank);
  }
  for (int i = 0; i < n * m.heads * entry; ++i) w.absorbed[i] *= m.scale;
  if (m.top_k) {
    w.index_queries = rows(m.index_heads * m.index_dim);
    w.index_in = rows(m.index_in.out);
    linear(m.index_q, n, source, source_stride, w.index_queries, m.index_heads * m.index_dim);
    linear(m.index_in, n, x, hidden, w.index_in, m.index_in.out);
  }
  return w;
}

// Write row r's latent and index key to its position, after `length` others of its slot, choose what to read, and read.
inline void read_past(const Mla& m, const MlaRows& w, int r, const Memory& memory, int64_t slot, int64_t length,
                      bool sparse, float eps, int64_t* selected, Scratch& scratch) {
  const Scratch::Mark mark(scratch);
  const int entry = m.rank + m.rope;
  const float* compressed = w.projected + r * w.in + m.query_rank;
  float* latents = memory.latents + slot * memory.places * entry;
  rms_norm(latents + length * entry, compressed, m.kv_norm, m.rank, kLatentEps);
  std::copy_n(compressed + m.rank, m.rope, latents + length * entry + m.rank);
  const int64_t *positions = nullptr, past = length + 1;
  int64_t count = past;
  if (m.top_k) {
    float* keys = memory.index_keys + slot * memory.places * m.index_dim;
    float *key = w.index_in + r * m.index_in.out, *weights = key + m.index_dim;
    layer_norm(key, m.k_norm, m.k_bias, m.index_dim, eps);
    std::copy_n(key, m.index_dim, keys + length * m.index_dim);
    std::fill_n(selected, m.top_k, -1);
    if (sparse && past > m.top_k) {
      const float scale = 1.0f / std::sqrt(static_cast<float>(m.index_heads * m.index_dim));
      for (int j = 0; j < m.index_heads; ++j) weights[j] *= scale;
      float* scores = scratch.floats(past);
      score(m, w.index_queries + r * m.index_heads * m.index_dim, weights, keys, past, scores);
      select(scores, past, m.top_k, selected, scratch.ints(past), scratch.ints(past));
      positions = selected;
      count = m.top_k;
    }
  }
  float* mixed = w.mixed + r * m.heads * m.rank;
  attend(m, w.absorbed + r * m.heads * entry, latents, positions, count, scratch.floats(count), mixed);
}

// x [n, hidden] of the tokens at `positions` of the slots `rows`, to y [n, hidden]; `selected` [n] rows of top_k, `stride` apart.
inline void step(const Mla& m, const Memory& memory, const int64_t* rows, const int64_t* positions, int n, int hidden,
                 bool sparse, float eps, const float* x, float* y, int64_t* selected, int64_t stride,
                 Scratch& scratch) {
  const Scratch::Mark mark(scratch);
  const MlaRows w = project(m, n, hidden, x, scratch);
  for (int r = 0; r < n; ++r)
    read_past(m, w, r, memory, rows[r], positions[r], sparse, eps, selected + r * stride, scratch);
  const int width = m.heads * m.value;
  for (int h = 0; h < m.heads; ++h)
    linear(m.w_uv[h], n, w.mixed + h * m.rank, m.heads * m.rank, w.outputs + h * m.value, width);
  if (m.gated)
    for (int r = 0; r < n; ++r)
      gate(w.outputs + r * width, w.projected + r * w.in + m.query_rank + m.rank + m.rope, width);
  linear(m.o_proj, n, w.outputs, width, y, hidden);
}

}  // namespace k3rl
