#pragma once
// Needles: single keys of a long context, each of which one row of o must show. The data of the gate, and fp64's
// answer.
//
// Scores of the haystack are N(0, 1), and its values have a mean of 1 or -1 in each column, as sums that only grow are
// where tensor cores cut addends off. A needle's value is a code: a row of signs. Its query row leans towards its key,
// so that the key gets a chosen share of the row's softmax weight, whatever the number of keys.

#include <array>
#include <cstdint>
#include <vector>

#include "core/data.h"
#include "core/reference.h"
#include "core/words.h"

namespace flashcore {

enum class NeedlePlace { kFirst, kMiddle, kLast, kBorder, kRandom };  // kBorder: beside a multiple of a block's keys
template <>
struct WordsOf<NeedlePlace> {
  static constexpr std::string_view what = "place of a needle";
  static constexpr std::pair<NeedlePlace, std::string_view> table[] = {
      {NeedlePlace::kFirst, "first"},   {NeedlePlace::kMiddle, "middle"}, {NeedlePlace::kLast, "last"},
      {NeedlePlace::kBorder, "border"}, {NeedlePlace::kRandom, "random"},
  };
};
static_assert(is_in_order_of_values<NeedlePlace>());  // NeedleCount::by_place is indexed by them
inline constexpr auto kNeedlePlaces = enum_values<NeedlePlace>();

// Of a row's softmax weight. Above a half a needle's score is above the log-sum of all other keys.
inline constexpr std::array kNeedleWeights = {1.0 / 256, 1.0 / 64, 1.0 / 16, 1.0 / 4, 0.5, 0.75, 15.0 / 16};

inline constexpr std::int64_t kNeedlePlaceCount = 16, kPlainRows = 16;
// Query rows: a needle of each weight at each place, and rows of the haystack alone behind them.
inline constexpr std::int64_t kNeedleQueryRows =
    kNeedlePlaceCount * static_cast<std::int64_t>(kNeedleWeights.size()) + kPlainRows;

struct Needle {  // of query row i, the i-th one
  std::int64_t key = 0;
  NeedlePlace place = NeedlePlace::kFirst;
  std::size_t weight_index = 0;  // of kNeedleWeights
  std::size_t code = 0;          // of NeedleData::codes
  double weight = 0;             // what fp64 gives the key, of the inputs in bf16
};

struct NeedleData {
  PlacedProblem exact, quantised;  // bf16 and e4m3: b1_h1_sq128_sk131072_d64
  AttentionInputs exact_inputs, quantised_inputs;
  std::vector<Needle> needles;
  std::vector<std::vector<float>> codes;  // those planted, then as many as nobody planted; head_dim signs each
  Reference reference;                    // of exact_inputs, every row
  Reference of_quantised;                 // of quantised_inputs, the plain rows
  RowSample plain_sample;
};

Problem needle_problem(std::int64_t seqlen_kv, std::int64_t head_dim, DType dtype);

// Below this quantising itself moves o as far as the lightest needle does: of 1024 keys four of eight draws lost three
// needles or more to exact sums.
inline constexpr std::int64_t kFewestNeedleKeys = 4096;
// Time: 131072 keys of head dim 64 take some seconds on 2 cores. Error kBadInput: fewer keys than that, or what
// Problem::validate() refuses.
NeedleData make_needle_data(std::int64_t seqlen_kv, std::int64_t head_dim, std::uint64_t seed);

}  // namespace flashcore
