// What a model and its cache look like to the decode step: plain structs, laid out by structs.py field by field.
#pragma once

#include "linear.h"
#include "mxfp4.h"

namespace k3rl {

struct Mix {
  const float *norm, *proj;  // null: no attention residual here
};

struct Glu {
  int32_t situ;  // 0: silu(g) * u
  float beta, linear_beta;
};

struct Kda {
  Linear in_proj, f_b, g_b, o_proj;
  const float *conv, *a_log, *dt_bias, *o_norm;
  int32_t heads, head_dim, kernel, bounded;
  float lower_bound;
};

struct Mla {
  Linear in_proj, q_b, o_proj;
  const Linear *w_uk, *w_uv;  // one per head
  const float *q_norm, *kv_norm;
  int32_t heads, rank, query_rank, nope, rope, value, gated;
  float scale;
  // The indexer; top_k 0: there is none.
  Linear index_q, index_in;
  const float *k_norm, *k_bias;
  int32_t index_heads, index_dim, top_k;
};

struct FeedForward {
  Linear router;  // without one: the dense block, gate_up and down
  Linear gate_up, down, latent_up;
  const Linear *w13, *w2;  // one per expert, or null where these are packed:
  const Packed *packed_w13, *packed_w2;
  const float *bias, *latent_norm;
  int32_t experts, chosen, width, shared, latent, renormalize;
  float scaling;
  Glu glu;
};

struct Layer {
  const Kda* kda;  // one of the two
  const Mla* mla;
  FeedForward feed_forward;
  const float *attention_norm, *feed_forward_norm;
  Mix attention_mix, feed_forward_mix;
  int32_t appends;
};

struct Model {
  const Layer* layers;
  const float *embed, *norm;
  Mix mix;
  Linear head;
  int32_t layer_count, hidden, moe_layers, chosen, sparse_layers, top_k;
  float eps;
};

// A layer's memory by slot: KDA state [slots, heads, dk, dv] and convolution inputs, or latents [slots, places, .] and
// index keys [slots, places, .].
struct Memory {
  float *state, *inputs, *latents, *index_keys;
  int64_t places;
};

}  // namespace k3rl
