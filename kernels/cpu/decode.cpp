// A decode step: one token for each of some slots of a cache, through the whole model. Threads take ranges of rows
// and share nothing, and no result of a row depends on what other rows there are.
#include <algorithm>
#include <cmath>
#include <vector>

#include "feed_forward.h"
#include "kda.h"
#include "mla.h"

namespace k3rl {
namespace {

// The residual stream of n rows: finished block sums, then the running sum (k3rl/model/transformer.py).
class Stream {
 public:
  Stream(int n, int hidden, float eps, Scratch& scratch) : n_(n), hidden_(hidden), eps_(eps), scratch_(scratch) {}

  float* push() {
    sources_.push_back(scratch_.floats(static_cast<int64_t>(n_) * hidden_));
    running_ = true;
    return sources_.back();
  }

  void append() { running_ = false; }

  void add(const float* y) {
    if (!running_) {
      std::copy_n(y, static_cast<int64_t>(n_) * hidden_, push());
      return;
    }
    for (int64_t i = 0; i < static_cast<int64_t>(n_) * hidden_; ++i) sources_.back()[i] += y[i];
  }

  // The normed input of a block: of the running sum, or of the mix of all sums.
  void read(const Mix& mix, const float* norm, float* y) const {
    const bool mixes = mix.norm && (sources_.size() > 1 || !running_);
    for (int r = 0; r < n_; ++r) {
      const int64_t at = static_cast<int64_t>(r) * hidden_;
      if (mixes) mix_row(mix, at, y + at);
      rms_norm(y + at, mixes ? y + at : sources_.back() + at, norm, hidden_, eps_);
    }
  }

 private:
  // score_i = (V_i . norm proj) / rms(V_i); the sum of V_i weighted by the softmax of the scores.
  void mix_row(const Mix& mix, int64_t at, float* y) const {
    float scores[64], largest = -INFINITY, total = 0.0f;
    const int count = static_cast<int>(sources_.size());
    for (int s = 0; s < count; ++s) {
      const float* v = sources_[s] + at;
      for (int i = 0; i < hidden_; ++i) y[i] = v[i] * mix.norm[i];
      scores[s] = dot(y, mix.proj, hidden_) / std::sqrt(dot(v, v, hidden_) / hidden_ + eps_);
      largest = std::max(largest, scores[s]);
    }
    for (int s = 0; s < count; ++s) total += scores[s] = std::exp(scores[s] - largest);
    std::fill_n(y, hidden_, 0.0f);
    for (int s = 0; s < count; ++s)
      for (int i = 0; i < hidden_; ++i) y[i] += scores[s] / total * sources_[s][at + i];
  }

  int n_, hidden_;
  float eps_;
  bool running_ = false;
  Scratch& scratch_;
  std::vector<float*> sources_;
};

void decode(const Model& model, const Memory* memories, const int64_t* rows, const int64_t* lengths,
            const int64_t* tokens, int n, bool sparse, float* logits, int64_t* experts, int64_t* selected) {
  thread_local Scratch scratch;
  const Scratch::Mark mark(scratch);
  const int hidden = model.hidden;
  const int64_t expert_stride = static_cast<int64_t>(model.moe_layers) * model.chosen;
  const int64_t selected_stride = static_cast<int64_t>(model.sparse_layers) * model.top_k;
  float* x = scratch.floats(static_cast<int64_t>(n) * hidden);
  float* y = scratch.floats(static_cast<int64_t>(n) * hidden);
  // The sums outlive the blocks' own scopes: what is pushed later is taken here, before those scopes begin.
  Stream stream(n, hidden, model.eps, scratch);
  float* embedded = stream.push();
  for (int r = 0; r < n; ++r) std::copy_n(model.embed + tokens[r] * hidden, hidden, embedded + static_cast<int64_t>(r) * hidden);
  for (int l = 0; l < model.layer_count; ++l) {
    const Layer& layer = model.layers[l];
    stream.read(layer.attention_mix, layer.attention_norm, x);
    if (layer.appends) stream.append();
    if (layer.kda) {
      step(*layer.kda, memories[l], rows, n, hidden, model.eps, x, y, scratch);
    } else {
      step(*layer.mla, memories[l], rows, lengths, n, hidden, sparse, model.eps, x, y, selected, selected_stride, scratch);
      if (layer.mla->top_k) selected += layer.mla->top_k;
    }
    stream.add(y);
    stream.read(layer.feed_forward_mix, layer.feed_forward_norm, x);
    step(layer.feed_forward, n, hidden, model.eps, x, y, experts, expert_stride, scratch);
    if (layer.feed_forward.router.panels) experts += layer.feed_forward.chosen;
    stream.add(y);
  }
  stream.read(model.mix, model.norm, x);
  linear(model.head, n, x, hidden, logits, model.head.out);
}

}  // namespace
}  // namespace k3rl

// tokens, rows (slots) [n]; lengths by slot, not advanced here; logits [n, vocabulary], experts [n, moe_layers, chosen],
// selected [n, sparse_layers, top_k].
extern "C" void k3rl_decode(const k3rl::Model* model, const k3rl::Memory* memories, const int64_t* rows,
                            const int64_t* lengths, const int64_t* tokens, int32_t n, int32_t sparse, int32_t threads,
                            float* logits, int64_t* experts, int64_t* selected) {
  const int64_t expert_stride = static_cast<int64_t>(model->moe_layers) * model->chosen;
  const int64_t selected_stride = static_cast<int64_t>(model->sparse_layers) * model->top_k;
  const int share = (n + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    const int first = t * share, count = std::min(share, n - first);
    if (count > 0)
      k3rl::decode(*model, memories, rows + first, lengths, tokens + first, count, sparse,
                   logits + static_cast<int64_t>(first) * model->head.out, experts + first * expert_stride,
                   selected + first * selected_stride);
  }
}
