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

// Index keys stand in tiles of 16 positions, [tile][index_dim][16], so that 16 scores come from whole vectors.
inline void store_key(const Mla& m, const float* key, float* keys, int64_t position) {
  float* tile = keys + position / kLanes * kLanes * m.index_dim + position % kLanes;
  for (int i = 0; i < m.index_dim; ++i) tile[i * kLanes] = key[i];
}

// Scores of a row's first `count` positions, written up to a multiple of 16: its queries [index_heads, index_dim] and
// head weights against the slot's keys.
inline void score(const Mla& m, const float* queries, const float* weights, const float* keys, int64_t count,
                  float* scores) {
  for (int64_t t = 0; t < count; t += kLanes) {
    const float* tile = keys + t * m.index_dim;
    Floats total = {};
    for (int j = 0; j < m.index_heads; ++j) {
      const float* query = queries + j * m.index_dim;
      Floats even = {}, odd = {};
      for (int i = 0; i + 1 < m.index_dim; i += 2) {
        even += load(tile + i * kLanes) * query[i];
        odd += load(tile + (i + 1) * kLanes) * query[i + 1];
      }
      if (m.index_dim % 2) even += load(tile + (m.index_dim - 1) * kLanes) * query[m.index_dim - 1];
      const Floats dots = even + odd;
      total += weights[j] * (dots > 0.0f ? dots : all(0.0f));
    }
    store(scores + t, total);
  }
}

// y [n] = sum_s weights[s] rows[s], four vectors at a time in registers.
inline void weighted_sum(const float* weights, const float* const* rows, int64_t count, int n, float* y) {
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    Floats a = {}, b = {}, c = {}, d = {};
    for (int64_t s = 0; s < count; ++s) {
      const float* row = rows[s] + i;
      a += load(row) * weights[s];
      b += load(row + kLanes) * weights[s];
      c += load(row + 2 * kLanes) * weights[s];
      d += load(row + 3 * kLanes) * weights[s];
    }
    store(y + i, a);
    store(y + i + kLanes, b);
    store(y + i + 2 * kLanes, c);
    store(y + i + 3 * kLanes, d);
  }
  for (; i + kLanes <= n; i += kLanes) {
    Floats a = {};
    for (int64_t s = 0; s < count; ++s) a += load(rows[s] + i) * weights[s];
    store(y + i, a);
  }
  for (; i < n; ++i) {
    y[i] = 0.0f;
    for (int64_t s = 0; s < count; ++s) y[i] += rows[s][i] * weights[s];
  }
}

constexpr int kAhead = 6;  // rows between a latent's prefetch and its use: a slot's latents lie far apart in memory

// Softmax attention of every head over the latents `rows` [count]: queries [heads, rank + rope] (scaled) to mixed
// [heads, rank].
inline void attend(const Mla& m, const float* queries, const float* const* rows, int64_t count, float* logits,
                   float* mixed) {
  const int entry = m.rank + m.rope;
  for (int64_t s = 0; s < count; ++s) {
    if (s + kAhead < count)
      for (int i = 0; i < entry; i += kLanes) __builtin_prefetch(rows[s + kAhead] + i);
    for (int h = 0; h < m.heads; ++h) logits[h * count + s] = dot(queries + h * entry, rows[s], entry);
  }
  for (int h = 0; h < m.heads; ++h) {
    float *mine = logits + h * count, largest = -INFINITY, total = 0.0f;
    for (int64_t s = 0; s < count; ++s) largest = std::max(largest, mine[s]);
    map(mine, mine, static_cast<int>(count), [&](Floats v) { return exp(v - largest); });
    for (int64_t s = 0; s < count; ++s) total += mine[s];
    for (int64_t s = 0; s < count; ++s) mine[s] /= total;
    weighted_sum(mine, rows, count, m.rank, mixed + h * m.rank);
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
    store_key(m, key, keys, length);
    std::fill_n(selected, m.top_k, -1);
    if (sparse && past > m.top_k) {
      const float scale = 1.0f / std::sqrt(static_cast<float>(m.index_heads * m.index_dim));
      for (int j = 0; j < m.index_heads; ++j) weights[j] *= scale;
      float* scores = scratch.floats(past + kLanes);
      score(m, w.index_queries + r * m.index_heads * m.index_dim, weights, keys, past, scores);
      select(scores, past, m.top_k, selected, scratch.ints(past), scratch.ints(past));
      positions = selected;
      count = m.top_k;
    }
  }
  const auto chosen = static_cast<const float**>(scratch.take(count * sizeof(float*)));
  for (int64_t s = 0; s < count; ++s) chosen[s] = latents + (positions ? positions[s] : s) * entry;
  attend(m, w.absorbed + r * m.heads * entry, chosen, count, scratch.floats(m.heads * count),
         w.mixed + r * m.heads * m.rank);
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
