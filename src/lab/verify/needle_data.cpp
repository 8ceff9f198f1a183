#include "lab/verify/needle_data.h"

#include <algorithm>
#include <cmath>

#include "core/drawn_tensor.h"
#include "core/draws.h"
#include "core/error.h"
#include "core/parallel.h"

namespace flashcore {
namespace {

constexpr std::size_t kCodes = 256;
// Of a needle's key: a row that leans towards a longer key need not be long itself, which would spread the haystack's
// scores.
constexpr float kKeyLength = 2;

struct Planted {
  std::int64_t key;
  NeedlePlace place;
};

std::vector<Planted> draw_places(std::int64_t keys, Draws& random) {
  using enum NeedlePlace;
  std::vector<Planted> planted = {{0, kFirst},    {keys - 1, kLast}, {keys / 2 - 1, kMiddle}, {keys / 2, kMiddle},
                                  {63, kBorder},  {64, kBorder},     {95, kBorder},           {96, kBorder},
                                  {127, kBorder}, {128, kBorder},    {keys - 64, kBorder},    {keys - 128, kBorder}};
  while (std::ssize(planted) < kNeedlePlaceCount) {
    const std::int64_t key = random.below(keys);
    if (std::none_of(planted.begin(), planted.end(), [&](const Planted& other) { return other.key == key; }))
      planted.push_back({key, kRandom});
  }
  return planted;
}

std::vector<std::vector<float>> draw_codes(std::int64_t columns, Draws& random) {
  std::vector<std::vector<float>> codes(kCodes, std::vector<float>(static_cast<std::size_t>(columns)));
  for (std::vector<float>& code : codes)
    for (float& sign : code) sign = random.one_in(2) ? 1.0f : -1.0f;
  return codes;
}

void give_values_a_mean(HostTensor& v, Draws& random) {
  std::vector<float> mean(static_cast<std::size_t>(v.layout.columns));
  for (float& each : mean) each = random.one_in(2) ? 1.0f : -1.0f;
  constexpr std::int64_t kRows = 1024;
  parallel_for((v.layout.rows + kRows - 1) / kRows, 0, [&](std::int64_t piece) {
    for (std::int64_t row = piece * kRows; row < std::min(v.layout.rows, (piece + 1) * kRows); ++row)
      for (std::int64_t c = 0; c < v.layout.columns; ++c)
        v.set(0, 0, row, c, v.at(0, 0, row, c) + mean[static_cast<std::size_t>(c)]);
  });
}

// The multiple of its key that a row takes up, so that the key's weight among `keys` is `weight`. A row of length r has
// scores N(0, (scale r)²) of other keys, the log of whose sum is ln(keys) + (scale r)²/2: a quadratic equation.
double lean_for(double weight, double keys, double scale, double row_row, double row_key, double key_key) {
  const double a = scale * scale * key_key / 2;
  const double b = scale * scale * row_key - scale * key_key;
  const double c = scale * scale * row_row / 2 + std::log(keys) + std::log(weight / (1 - weight)) - scale * row_key;
  const double root = b * b - 4 * a * c;
  if (root < 0) throw_bad_input("no row gives one of {:.0f} keys of this head dim a weight of {:g}", keys, weight);
  return (-b - std::sqrt(root)) / (2 * a);
}

void lean_row(HostTensor& q, const HostTensor& k, const Needle& needle, std::int64_t row, double scale) {
  double row_row = 0, row_key = 0, key_key = 0;
  for (std::int64_t c = 0; c < q.layout.columns; ++c) {
    const double x = q.at(0, 0, row, c), y = k.at(0, 0, needle.key, c);
    row_row += x * x, row_key += x * y, key_key += y * y;
  }
  const double lean = lean_for(kNeedleWeights[needle.weight_index], static_cast<double>(k.layout.rows), scale, row_row,
                               row_key, key_key);
  for (std::int64_t c = 0; c < q.layout.columns; ++c)
    q.set(0, 0, row, c, q.at(0, 0, row, c) + static_cast<float>(lean) * k.at(0, 0, needle.key, c));
}

double needle_score(const AttentionInputs& in, const Needle& needle, std::int64_t row, double scale) {
  double sum = 0;
  for (std::int64_t c = 0; c < in.q.layout.columns; ++c)
    sum += double{in.q.at(0, 0, row, c)} * double{in.k.at(0, 0, needle.key, c)};
  return scale * sum;
}

HostTensor quantise(const Problem& problem, Scaling scaling, const HostTensor& from, const TensorLayout& layout,
                    std::vector<float>& factors) {
  return draw_tensor(problem, scaling, problem.dtype, layout, problem.group_size(), BatchOf(problem, {}), factors,
                     [&](const Place& first, std::span<float> out) {
                       std::int64_t column = first.column;
                       for (float& value : out) value = from.at(first.batch, first.head, first.row, column++);
                     });
}

void plant(NeedleData& data, std::uint64_t seed) {
  Draws random(seed);
  AttentionInputs& in = data.exact_inputs;
  const double scale = data.exact.softmax_scale();
  data.codes = draw_codes(data.exact.head_dim_v, random);
  give_values_a_mean(in.v, random);
  const std::vector<Planted> places = draw_places(data.exact.seqlen_kv, random);
  for (std::size_t code = 0; code < places.size(); ++code) {
    const auto [key, place] = places[code];
    for (std::int64_t c = 0; c < in.k.layout.columns; ++c) in.k.set(0, 0, key, c, kKeyLength * in.k.at(0, 0, key, c));
    for (std::int64_t c = 0; c < in.v.layout.columns; ++c)
      in.v.set(0, 0, key, c, data.codes[code][static_cast<std::size_t>(c)]);
    for (std::size_t w = 0; w < kNeedleWeights.size(); ++w) data.needles.push_back({key, place, w, code});
  }
  for (std::size_t i = 0; i < data.needles.size(); ++i)
    lean_row(in.q, in.k, data.needles[i], static_cast<std::int64_t>(i), scale);
}

}  // namespace

Problem needle_problem(std::int64_t seqlen_kv, std::int64_t head_dim, DType dtype) {
  Problem problem;
  problem.dtype = dtype;
  problem.seqlen_q = kNeedleQueryRows;
  problem.seqlen_kv = seqlen_kv;
  problem.head_dim = problem.head_dim_v = head_dim;
  return problem;
}

NeedleData make_needle_data(std::int64_t seqlen_kv, std::int64_t head_dim, std::uint64_t seed) {
  if (seqlen_kv < kFewestNeedleKeys)
    throw_bad_input("{} keys are no long context; give at least {}", seqlen_kv, kFewestNeedleKeys);
  NeedleData data;
  data.exact = {needle_problem(seqlen_kv, head_dim, DType::kBF16), Layout::kBhsd};
  data.exact_inputs = make_inputs(data.exact, Pattern::kNormal, seed);
  plant(data, seed);
  FC_CHECK(std::ssize(data.needles) + kPlainRows == kNeedleQueryRows);

  data.quantised = {needle_problem(seqlen_kv, head_dim, DType::kE4M3), Layout::kBhsd};
  const ProblemLayouts layouts = make_layouts(data.quantised);
  const AttentionInputs& exact = data.exact_inputs;
  AttentionInputs& quantised = data.quantised_inputs;
  const Problem& problem = data.quantised;
  quantised.q = quantise(problem, problem.q_scaling(), exact.q, layouts.q, quantised.descale_q);
  quantised.k = quantise(problem, problem.k_scaling(), exact.k, layouts.k, quantised.descale_k);
  quantised.v = quantise(problem, problem.v_scaling(), exact.v, layouts.v, quantised.descale_v);

  data.reference = reference_forward(data.exact, exact, RowSample{});
  data.plain_sample.all = false;
  for (std::int64_t row = std::ssize(data.needles); row < kNeedleQueryRows; ++row)
    data.plain_sample.rows.push_back({0, 0, row});
  data.of_quantised = reference_forward(data.quantised, quantised, data.plain_sample);
  for (std::size_t i = 0; i < data.needles.size(); ++i) {
    const double score = needle_score(exact, data.needles[i], static_cast<std::int64_t>(i), data.exact.softmax_scale());
    data.needles[i].weight = std::exp(score - data.reference.lse[i]);
  }
  return data;
}

}  // namespace flashcore
