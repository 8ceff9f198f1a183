#pragma once
// A head's keys and values, and rows of queries, as the reference computes on them.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/band.h"
#include "core/dtype.h"
#include "core/expression_value.h"
#include "core/row_budget.h"
#include "core/tensor.h"

namespace flashcore {

// Rows that share the loads of k and v.
inline constexpr int kReferenceRows = 4;
// Keys (and v columns) side by side in the packed form: one 64-byte vector of floats.
inline constexpr int kReferenceLanes = 16;

// k and v of one head as float (exact for every dtype), laid out for vector loads and padded with zeros.
struct PackedHead {
  std::int64_t keys = 0, head_dim = 0, head_dim_v = 0, padded_v = 0;
  std::vector<float> k;  // [keys / 16][head_dim][16]
  std::vector<float> v;  // [keys][padded_v]
  bool is_v_finite = true;
  // Of keys and values that have a factor each; else empty. The norms below are of keys and values times theirs.
  std::vector<double> k_factors, v_factors;
  std::vector<float> v_norm;  // per key, ‖v‖
  std::vector<float> v_sum;   // per key, the sum of v's columns
  std::vector<float> k_norm;  // per key, ‖k‖, 0 if it is not finite
};

struct ReferenceRow {
  std::vector<float> q;  // head_dim
  double q_factor = 1;   // of what q stores
  KeyRange<std::int64_t> keys{0, 0};
  std::vector<std::uint8_t> visible;  // of a problem with a mask function: whether the row sees each of `keys`
  ExpressionPoint at;                 // of key 0: what a score function may ask
  std::optional<float> sink;          // joins the sum and the log-sum-exp
  double* o = nullptr;  // head_dim_v; null in all rows of a block: only the ideal kernel's results are wanted
  double* lse = nullptr;
  float* ideal_o = nullptr;
  float* ideal_lse = nullptr;
  float* predicted_o = nullptr;
  float* predicted_lse = nullptr;
  RowBudget* budget = nullptr;
  double* amax = nullptr;  // null: not asked for
  float* amax_error = nullptr;
};

// Scores, exponentials and scratch of one thread.
struct ReferenceScratch {
  // What becomes of the scaled scores, in this order; null: nothing. With them the tensors that they name.
  std::optional<ExpressionEvaluator> softcap, alibi, score;
  std::vector<double> s64, before;  // of one row's scores: what the functions give, and what ALiBi was given
  // Of the user's function in fp64: what it was given, its derivative by that, and how far it is off itself.
  std::vector<double> given, gains, own;
  std::vector<double> slopes;  // of softcap and that, by row and key: how much of an error of its score is left
  std::vector<double> p64, acc64, weights64;  // weights: probabilities times the factors of their values
  std::vector<float> p32, acc32;
};
// What the rows of one head have in common.
struct ReferenceHead {
  DType dtype = DType::kF32;         // of q, k, v, and of P
  DType output_dtype = DType::kF32;  // of o
  double scale = 1;                  // of q and of what k stores: softmax scale and, of 8 bits, the factor of k
  double v_scale = 1;                // of what v stores
  double softcap = 0;                // of which ReferenceScratch has the function
  bool quantised_cache = false;      // k and v are codes beside a q of a wider type
};

}  // namespace flashcore
