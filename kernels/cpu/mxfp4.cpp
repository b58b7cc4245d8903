// MXFP4 matrix products of their own: one matrix, or one per group of rows (the routed experts of a mixture).
#include "mxfp4.h"

namespace k3rl {
namespace {

// Matrix g takes rows [offsets[g], offsets[g + 1]); threads share the panels of all of them.
template <class Rows>
void grouped(const Packed* w, int groups, const int64_t* offsets, const typename Rows::Value* x, float* y,
             int threads) {
  const int panels = w->panels(), in = w->in, out = w->out;
  const int step = std::max(kPackedPanels, kWidePanels);
  const int shares = (panels + step - 1) / step;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) collapse(2) if (threads > 1)
  for (int g = 0; g < groups; ++g)
    for (int s = 0; s < shares; ++s) {
      const int64_t from = offsets[g];
      const int rows = static_cast<int>(offsets[g + 1] - from);
      packed_linear<Rows>(w[g], rows, x + from * in, in, y + from * out, out, s * step,
                          std::min(panels, (s + 1) * step));
    }
}

}  // namespace
}  // namespace k3rl

// Whether rows may be bfloat16: this machine multiplies them.
extern "C" int32_t k3rl_mxfp4_takes_bfloat16() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

// y [N, out] of x [N, in], contiguous; `bfloat16`: the type of x (else fp32). w [groups], offsets [groups + 1].
extern "C" void k3rl_mxfp4_matmul(const k3rl::Packed* w, int32_t groups, const int64_t* offsets, const void* x,
                                  int32_t bfloat16, float* y, int32_t threads) {
#if defined(__AVX512BF16__)
  if (bfloat16) return k3rl::grouped<k3rl::Bf16Rows>(w, groups, offsets, static_cast<const uint16_t*>(x), y, threads);
#endif
  k3rl::grouped<k3rl::Fp32Rows>(w, groups, offsets, static_cast<const float*>(x), y, threads);
}
