// A decode step: tokens of some slots of a cache, one or several of each, through the whole model. A token's result is
// the same whether it comes alone or with the ones before it, and whatever other slots there are. Threads take ranges
// of slots and share nothing.
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

// What one call computes: tokens, slots and positions [n], tokens of one slot side by side and in order; the rows whose
// logits are wanted, ascending, and where results go.
struct Batch {
  const int64_t *tokens, *slots, *positions;
  int n;
  const int64_t* logits_at;
  int wanted;
  bool sparse;
  float* logits;
  int64_t *experts, *selected;
};

void head(const Model& model, const Batch& batch, const float* x, Scratch& scratch) {
  const Scratch::Mark mark(scratch);
  float* rows = scratch.floats(static_cast<int64_t>(batch.wanted) * model.hidden);
  for (int i = 0; i < batch.wanted; ++i)
    std::copy_n(x + batch.logits_at[i] * model.hidden, model.hidden, rows + static_cast<int64_t>(i) * model.hidden);
  linear(model.head, batch.wanted, rows, model.hidden, batch.logits, model.head.out);
}

void decode(const Model& model, const Memory* memories, const Batch& batch) {
  thread_local Scratch scratch;
  const Scratch::Mark mark(scratch);
  const int hidden = model.hidden, n = batch.n;
  const int64_t size = static_cast<int64_t>(n) * hidden;
  const int64_t expert_stride = static_cast<int64_t>(model.moe_layers) * model.chosen;
  const int64_t selected_stride = static_cast<int64_t>(model.sparse_layers) * model.top_k;
  int64_t *experts = batch.experts, *selected = batch.selected;
  float *x = scratch.floats(size), *y = scratch.floats(size);
  Stream stream(n, hidden, model.eps, scratch);
  float* embedded = stream.push();
  for (int r = 0; r < n; ++r)
    std::copy_n(model.embed + batch.tokens[r] * hidden, hidden, embedded + static_cast<int64_t>(r) * hidden);
  for (int l = 0; l < model.layer_count; ++l) {
    const Layer& layer = model.layers[l];
    stream.read(layer.attention_mix, layer.attention_norm, x);
    if (layer.appends) stream.append();
    if (layer.kda) {
      step(*layer.kda, memories[l], batch.slots, n, hidden, model.eps, x, y, scratch);
    } else {
      step(*layer.mla, memories[l], batch.slots, batch.positions, n, hidden, batch.sparse, model.eps, x, y, selected,
           selected_stride, scratch);
      selected += layer.mla->top_k;
    }
    stream.add(y);
    stream.read(layer.feed_forward_mix, layer.feed_forward_norm, x);
    step(layer.feed_forward, n, hidden, model.eps, x, y, experts, expert_stride, scratch);
    if (layer.feed_forward.router.panels) experts += layer.feed_forward.chosen;
    stream.add(y);
  }
  stream.read(model.mix, model.norm, x);
  head(model, batch, x, scratch);
}

// The first row at or after `row` that begins a slot: where threads may part.
int slot_start(const int64_t* slots, int n, int row) {
  while (row > 0 && row < n && slots[row] == slots[row - 1]) ++row;
  return std::min(row, n);
}

}  // namespace
}  // namespace k3rl

// tokens, slots and positions [n]; logits_at [wanted], ascending; logits [wanted, vocabulary], experts
// [n, moe_layers, chosen], selected [n, sparse_layers, top_k].
extern "C" void k3rl_decode(const k3rl::Model* model, const k3rl::Memory* memories, const int64_t* tokens,
                            const int64_t* slots, const int64_t* positions, int32_t n, const int64_t* logits_at,
                            int32_t wanted, int32_t sparse, int32_t threads, float* logits, int64_t* experts,
                            int64_t* selected) {
  const int64_t expert_stride = static_cast<int64_t>(model->moe_layers) * model->chosen;
  const int64_t selected_stride = static_cast<int64_t>(model->sparse_layers) * model->top_k;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    const int first = k3rl::slot_start(slots, n, static_cast<int64_t>(n) * t / threads);
    const int last = k3rl::slot_start(slots, n, static_cast<int64_t>(n) * (t + 1) / threads);
    if (first == last) continue;
    const int64_t* from = std::lower_bound(logits_at, logits_at + wanted, first);
    const int64_t* to = std::lower_bound(from, logits_at + wanted, last);
    std::vector<int64_t> rows(from, to);
    for (int64_t& row : rows) row -= first;
    k3rl::decode(*model, memories,
                 {tokens + first, slots + first, positions + first, last - first, rows.data(),
                  static_cast<int>(rows.size()), sparse != 0, logits + (from - logits_at) * model->head.out,
                  experts + first * expert_stride, selected + first * selected_stride});
  }
}
