#pragma once
// What the tests of the C API share: problems, tensors, the formula. Through libflashcore.so alone, as its users have
// it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <flashcore/flashcore.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace api_test {

using flashcore::Attention;
using flashcore::Context;
using flashcore::Memory;
using flashcore::Plan;

inline std::vector<float> values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);  // whose numbers, not its distributions, are the same everywhere
  std::vector<float> made(count);
  for (float& value : made) value = static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1.0f;
  return made;
}

struct Tensors {
  explicit Tensors(const Attention& p)
      : q(values(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q * p.head_dim), 1)),
        k(values(static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_kv * p.head_dim), 2)),
        v(values(static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_kv * p.columns_v()), 3)),
        o(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q * p.columns_v()), NAN),
        lse(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q), NAN) {}
  std::vector<float> q, k, v, o, lse;
};

inline std::int64_t visible(const Attention& p, std::int64_t row) {
  if (p.causal == FC_CAUSAL_NONE) return p.seqlen_kv;
  const std::int64_t offset = p.causal == FC_CAUSAL_BOTTOM_RIGHT ? p.seqlen_kv - p.seqlen_q : 0;
  return std::clamp<std::int64_t>(row + offset + 1, 0, p.seqlen_kv);
}

// The textbook formula in double, contiguous tensors; {largest error of o, of lse}.
inline std::pair<double, double> errors(const Attention& p, const Tensors& t) {
  double worst = 0, worst_lse = 0;
  const double scale = p.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  const auto at = [](const std::vector<float>& x, std::int64_t i) {
    return static_cast<double>(x[static_cast<std::size_t>(i)]);
  };
  for (std::int64_t bh = 0; bh < p.batch * p.heads_q; ++bh) {
    const std::int64_t kv = bh / p.heads_q * p.heads_kv + bh % p.heads_q / (p.heads_q / p.heads_kv);
    for (std::int64_t row = 0; row < p.seqlen_q; ++row) {
      std::vector<double> weight(static_cast<std::size_t>(visible(p, row)));
      for (std::size_t key = 0; key < weight.size(); ++key) {
        double dot = 0;
        for (std::int64_t d = 0; d < p.head_dim; ++d)
          dot += at(t.q, (bh * p.seqlen_q + row) * p.head_dim + d) *
                 at(t.k, (kv * p.seqlen_kv + static_cast<std::int64_t>(key)) * p.head_dim + d);
        weight[key] = std::exp(scale * dot);
      }
      const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
      for (std::int64_t d = 0; d < p.columns_v(); ++d) {
        double value = 0;
        for (std::size_t key = 0; key < weight.size(); ++key)
          value += weight[key] / sum * at(t.v, (kv * p.seqlen_kv + static_cast<std::int64_t>(key)) * p.columns_v() + d);
        const double difference = std::fabs(value - at(t.o, (bh * p.seqlen_q + row) * p.columns_v() + d));
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      }
      const double lse = at(t.lse, bh * p.seqlen_q + row);
      if (sum == 0) worst_lse = lse == -INFINITY ? worst_lse : INFINITY;
      else worst_lse = std::isnan(lse) ? INFINITY : std::max(worst_lse, std::fabs(std::log(sum) - lse));
    }
  }
  return {worst, worst_lse};
}

inline Attention small() {
  return {.dtype = FC_FP32, .batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 9, .seqlen_kv = 17, .head_dim = 24};
}

inline void expect_right(const Plan& plan) {
  Tensors t(plan.problem());
  plan.run<float>(t.q, t.k, t.v, t.o, t.lse);
  const auto [error, lse_error] = errors(plan.problem(), t);
  EXPECT_LT(error, 1e-5);
  EXPECT_LT(lse_error, 1e-5);
}

// The message of a call that must fail, and that it says what words are expected.
template <class Call>
void expect_refused(fc_status status, const std::string& words, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected: " << words;
  } catch (const flashcore::Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

}  // namespace api_test
