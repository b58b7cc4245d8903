// One token for each row of logits, in float64: inverse CDF at a given uniform number (k3rl/inference/sampler.py).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int kWide = 8;
typedef double Doubles __attribute__((vector_size(8 * kWide)));
typedef int64_t Longs __attribute__((vector_size(8 * kWide)));

// exp to about 1 ulp; 0 below -708. 2^n e^r with |r| <= ln 2 / 2, e^r by its series to the thirteenth power.
Doubles exp(Doubles x) {
  const Doubles magic = Doubles{} + 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, in the low bits
  const Doubles low = Doubles{} - 708.0;
  const Doubles inside = x < low ? low : x;
  const Doubles shifted = inside * 1.4426950408889634074 + magic;
  const Doubles n = shifted - magic;
  const Doubles r = (inside - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  Doubles p = Doubles{} + 1.0 / 6227020800.0;
  for (const double factorial : {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0,
                                 2.0, 1.0, 1.0})
    p = p * r + 1.0 / factorial;
  Longs bits, zero;
  std::memcpy(&bits, &shifted, sizeof bits);
  std::memcpy(&zero, &magic, sizeof zero);
  bits = (bits - zero + 1023) << 52;
  Doubles power;
  std::memcpy(&power, &bits, sizeof power);
  return x < low ? Doubles{} : p * power;
}

struct Drawn {
  int64_t token;
  double logprob, entropy;
};

int64_t largest(const float* logits, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i)
    if (logits[i] > logits[best]) best = i;
  return best;
}

// `scaled` and `cumulative` hold `count` rounded up to 8.
Drawn draw(const float* logits, int64_t count, double temperature, double uniform, double* scaled, double* cumulative) {
  const int64_t best = largest(logits, count);
  const double top = logits[best], scale = temperature == 0.0 ? 1.0 : temperature;
  for (int64_t i = 0; i < count; ++i) scaled[i] = (logits[i] - top) / scale;
  for (int64_t i = count; i % kWide; ++i) scaled[i] = -1e9;
  for (int64_t i = 0; i < count; i += kWide) {
    Doubles x;
    std::memcpy(&x, scaled + i, sizeof x);
    x = exp(x);
    std::memcpy(cumulative + i, &x, sizeof x);
  }
  double total = 0.0, weighted = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    // An impossible token adds nothing, even where its logit is minus infinity.
    if (cumulative[i] != 0.0) weighted += cumulative[i] * scaled[i];
    total += cumulative[i];
    cumulative[i] = total;
  }
  const double log_total = std::log(total), entropy = log_total - weighted / total;
  if (temperature == 0.0) return {best, std::isfinite(entropy) ? 0.0 : NAN, std::isfinite(entropy) ? 0.0 : NAN};
  const double target = uniform * total;
  int64_t token = 0;
  while (token < count - 1 && !(cumulative[token] > target)) ++token;
  return {token, scaled[token] - log_total, entropy};
}

}  // namespace

// logits [rows, vocabulary]; temperatures (0: the largest logit), uniforms, tokens, logprobs, entropies [rows].
extern "C" void k3rl_draw(const float* logits, int64_t rows, int64_t vocabulary, const double* temperatures,
                          const double* uniforms, int64_t* tokens, double* logprobs, double* entropies) {
  std::vector<double> scaled(vocabulary + kWide), cumulative(vocabulary + kWide);
  for (int64_t r = 0; r < rows; ++r) {
    const Drawn drawn =
        draw(logits + r * vocabulary, vocabulary, temperatures[r], uniforms[r], scaled.data(), cumulative.data());
    tokens[r] = drawn.token;
    logprobs[r] = drawn.logprob;
    entropies[r] = drawn.entropy;
  }
}
