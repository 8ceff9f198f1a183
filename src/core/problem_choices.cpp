#include "core/problem_choices.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/problem_expressions.h"

namespace flashcore::problem_choices {
namespace {

constexpr std::array<std::int64_t, 12> kGroups = {1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
// 8 and 16 bytes a row and their neighbours, the powers and half-powers in use, and odd ones for the families that take
// them.
constexpr std::array<std::int64_t, 17> kHeadDims = {8,  16, 24,  32,  40,  64,  64,  64, 72,
                                                    80, 96, 128, 128, 160, 192, 256, 256};
constexpr std::array<std::int64_t, 17> kEdgeLengths = {0,  1,  2,  15,  16,  17,  31,  32, 33,
                                                       63, 64, 65, 127, 128, 129, 255, 257};
// Below and above usual scores, those of Gemma 2 and Grok, and one that changes next to nothing.
constexpr std::array<double, 5> kSoftcaps = {0.5, 5, 30, 50, 1000};
constexpr std::array<double, 4> kScales = {0.03125, 0.1, 0.5, 1.0};
// Beyond what most families take; 576 beside 512 is latent attention's.
constexpr std::array<std::int64_t, 5> kWideHeadDims = {264, 320, 384, 512, 576};
constexpr std::array<std::int64_t, 4> kLargeGroups = {17, 24, 32, 64};
// Two of three have the 16 bits that most families are for.
constexpr std::array<DType, 9> kDTypes = {DType::kF32,  DType::kF16,  DType::kF16,  DType::kF16, DType::kBF16,
                                          DType::kBF16, DType::kBF16, DType::kE4M3, DType::kE5M2};
constexpr std::array<DType, 6> kOutputs8 = {DType::kBF16, DType::kBF16, DType::kBF16,
                                            DType::kF16,  DType::kE4M3, DType::kE5M2};
constexpr std::array<Scaling, 4> kScalings8 = {Scaling::kTensor, Scaling::kTensor, Scaling::kHead, Scaling::kNone};
constexpr std::array<Scaling, 6> kScalingsOfCaches = {Scaling::kTensor, Scaling::kTensor, Scaling::kHead,
                                                      Scaling::kToken,  Scaling::kToken,  Scaling::kNone};
constexpr std::array<DType, 5> kCaches = {DType::kE4M3, DType::kE4M3, DType::kE5M2, DType::kInt8, DType::kInt4};
constexpr std::array<Lengths, 4> kRagged = {Lengths::kRandom, Lengths::kRandom, Lengths::kHalving, Lengths::kFull};
// Those in use, and odd ones: a page that holds more than a sequence, and one that no tile divides.
constexpr std::array<std::int64_t, 10> kPageSizes = {1, 2, 7, 16, 16, 32, 64, 100, 128, 256};
constexpr std::array<Mask, 3> kMasks = {Mask(), Mask::causal(), Mask::causal(Alignment::kTopLeft)};

// Each is allowed whatever the sizes are. Softcap, ALiBi and a bias; what depends on the position alone; corners; what
// hides by the score; integer arithmetic; tensors of every type and with one to four indices.
struct Function {
  std::string_view text, tensors;
};
constexpr std::array<Function, 17> kScoreFunctions = {{
    {"s * 0.5 + 1", ""},
    {"30 * tanh(s / 30) + 0.01 * (j - i)", ""},
    {"s + bias[b, h, i, j]", "bias: float[4]"},
    {"s - slope[h] * abs(i - j)", "slope: float[1]"},
    {"where(j <= i, s, s - 2)", ""},
    {"max(s, -1) + min(s, 1)", ""},
    {"where(keep[i, j], s, -inf)", "keep: bool[2]"},
    {"where(j < i, s, -1e9)", ""},
    {"s + where(keep[b, j], 0, -1e30)", "keep: bool[2]"},
    {"where(j < 70 && i % 2 == 0, -inf, s)", ""},
    {"s + 0.08 * j", ""},
    {"s * (1 + (i + h) % 3) - j // 16", ""},
    {"s + table[min(abs(i - j), 40)]", "table: float[1]"},
    {"where(kind[j] == kind[i], s + 1, s)", "kind: int[1]"},
    {"s * sqrt(1.0 / (1 + hk)) + 1e-8 * kind[b, j]", "kind: int[2]"},
    {"log(1 + exp(min(s, 20))) - exp2(-abs(s))", ""},
    {"s + bias[h, max(i - j, 0)] * gain[b]", "bias: float[2], gain: float[1]"},
}};
// Those that hide nothing, much, whole blocks, whole rows; prefixes and documents; another one for each head.
constexpr std::array<Function, 12> kMaskFunctions = {{
    {"j <= i || j < 40", ""},
    {"i // 37 == j // 37", ""},
    {"document_q[b, i] == document_kv[b, j]", "document_q: int[2], document_kv: int[2]"},
    {"allowed[b, h, i, j]", "allowed: bool[4]"},
    {"allowed[i, j] || i == j", "allowed: bool[2]"},
    {"keep[b, j]", "keep: bool[2]"},
    {"(i + j) % 3 != 0", ""},
    {"j >= i - 64 && j <= i + 3 || j < 4", ""},
    {"h % 2 == 0 || j <= i", ""},
    {"j < prefix[b] || j <= i + seqlen_kv - seqlen_q", "prefix: int[1]"},
    {"i % 5 != 2 && b >= 0", ""},
    {"gate[h, j] < 0.5 || abs(i - j) < 8", "gate: float[2]"},
}};

std::int64_t draw_length(Draws& draws) {
  switch (draws.below(4)) {
    case 0: return draws.between(1, 300);
    case 1: return draws.between(1, 80);
    default: return draws.pick(kEdgeLengths);
  }
}

// A side of a window: of few keys, around the sizes of tiles, and wider than the sequence.
std::int64_t draw_side(Draws& draws) { return draws.one_in(8) ? draws.between(0, 3) : draw_length(draws); }

// Sizes to try in place of `size`, boldest first: the least, the halves, then steps down by powers of two to one less.
std::vector<std::int64_t> smaller_sizes(std::int64_t size, std::int64_t least) {
  std::vector<std::int64_t> sizes;
  if (size <= least) return sizes;
  sizes.push_back(least);
  for (std::int64_t step = size / 2; step >= 1; step /= 2) {
    if (size - step > least && sizes.back() != size - step) sizes.push_back(size - step);
  }
  return sizes;
}

// Most families take multiples of 8 only, which halving alone would miss.
std::vector<std::int64_t> smaller_head_dims(std::int64_t size) {
  std::vector<std::int64_t> sizes = smaller_sizes(size, 1);
  for (const std::int64_t multiple : {std::int64_t{8}, size / 16 * 8, (size - 1) / 8 * 8}) {
    if (multiple > 0 && multiple < size) sizes.push_back(multiple);
  }
  return sizes;
}

// Two columns of int4 share a byte.
void fill_bytes(Problem& p) {
  if (p.kv_dtype == DType::kInt4) p.head_dim += p.head_dim % 2, p.head_dim_v += p.head_dim_v % 2;
}

// `from` with each of `sizes` put in by `edit`.
template <class Edit>
std::vector<Problem> with_each(const Problem& from, const std::vector<std::int64_t>& sizes, const Edit& edit) {
  std::vector<Problem> problems;
  for (const std::int64_t size : sizes) edit(problems.emplace_back(from), size);
  return problems;
}

std::vector<Problem> narrower(const Problem& from, std::optional<std::int64_t> Mask::*side) {
  if (!(from.mask.*side)) return {};
  std::vector<Problem> problems = {from};
  (problems[0].mask.*side).reset();
  if (problems[0].mask.none()) problems[0].mask = Mask();
  for (const std::int64_t keys : smaller_sizes(*(from.mask.*side), 0)) problems.emplace_back(from).mask.*side = keys;
  return problems;
}

// Once it is known that the batch is not ragged.
void draw_factors_of_rows(Problem& p, Draws& draws) {
  if (p.is_8bit() && !p.ragged() && draws.one_in(4)) p.scaling = Scaling::kToken;
}

}  // namespace

void draw_batch(Problem& p, Draws& draws) { p.batch = draws.one_in(3) ? draws.between(2, 5) : 1; }

void draw_heads(Problem& p, Draws& draws) {
  p.heads_kv = draws.between(1, 4);
  p.heads_q = p.heads_kv * draws.pick(kGroups);
  if (draws.one_in(24)) p.heads_kv = 1, p.heads_q = draws.pick(kLargeGroups);
}

// Mostly its own length: kernels that assume seqlen_q == seqlen_kv are a classic.
void draw_lengths(Problem& p, Draws& draws) {
  p.seqlen_q = draw_length(draws);
  p.seqlen_kv = draws.one_in(3) ? p.seqlen_q : draw_length(draws);
  if (draws.one_in(6)) {  // decode: few rows against a long cache
    p.seqlen_q = draws.between(1, 4);
    p.seqlen_kv = draws.between(300, 3000);
  }
}

void draw_head_dim(Problem& p, Draws& draws) {
  p.head_dim = draws.one_in(6) ? draws.between(1, 256) : draws.pick(kHeadDims);
  if (draws.one_in(20)) p.head_dim = draws.pick(kWideHeadDims);
}

void draw_head_dim_v(Problem& p, Draws& draws) { p.head_dim_v = draws.one_in(4) ? draws.pick(kHeadDims) : p.head_dim; }

void draw_dtype(Problem& p, Draws& draws) { p.dtype = draws.pick(kDTypes); }

void draw_o_dtype(Problem& p, Draws& draws) {
  if (!p.is_8bit()) return;
  const DType dtype = draws.pick(kOutputs8);
  if (dtype != Problem::usual_output(p.dtype)) p.o_dtype = dtype;
}

void draw_scaling(Problem& p, Draws& draws) {
  if (!p.is_8bit()) return;
  const Scaling scaling = draws.pick(kScalings8);
  if (scaling != p.usual_scaling()) p.scaling = scaling;
}

void draw_causal(Problem& p, Draws& draws) { p.mask = draws.pick(kMasks); }

void draw_left(Problem& p, Draws& draws) {
  if (draws.one_in(3)) p.mask.left = draw_side(draws);
}

void draw_right(Problem& p, Draws& draws) {
  if (!p.mask.is_causal() && draws.one_in(4)) p.mask.right = draw_side(draws);
}

void draw_alignment(Problem& p, Draws& draws) {
  if (!p.mask.is_causal() && !p.mask.none() && draws.one_in(2)) p.mask.alignment = Alignment::kTopLeft;
}

void draw_scale(Problem& p, Draws& draws) {
  if (draws.one_in(5)) p.scale = draws.pick(kScales);
}

void draw_softcap(Problem& p, Draws& draws) {
  if (draws.one_in(6)) p.softcap = draws.pick(kSoftcaps);
}

void draw_alibi(Problem& p, Draws& draws) {
  if (draws.one_in(6)) p.alibi = draws.one_in(3) ? Alibi::kBatch : Alibi::kHead;
}

void draw_sink(Problem& p, Draws& draws) { p.sink = draws.one_in(6); }

// More sequences than a batch of equal ones has, so that some are empty.
void draw_ragged(Problem& p, Draws& draws) {
  if (!draws.one_in(8)) return;
  p.lengths = draws.pick(kRagged);
  p.batch = draws.between(1, 6);
  // Of more than tables in shared memory hold: of few rows and keys, since each costs a tile.
  if (!draws.one_in(12)) return;
  p.batch = draws.between(30, 300);
  p.heads_kv = 1, p.heads_q = draws.between(1, 2);
  p.seqlen_q = std::min<std::int64_t>(p.seqlen_q, 3), p.seqlen_kv = std::min<std::int64_t>(p.seqlen_kv, 20);
}

void draw_page_size(Problem& p, Draws& draws) {
  if (p.ragged() && draws.one_in(2)) p.page_size = draws.pick(kPageSizes);
  draw_factors_of_rows(p, draws);
  if (p.is_8bit() || !draws.one_in(p.ragged() ? 3 : 12)) return;
  p.kv_dtype = draws.pick(kCaches);
  fill_bytes(p);
  const bool may_be_of_tokens = p.paged() || !p.ragged();
  const Scaling scaling = may_be_of_tokens ? draws.pick(kScalingsOfCaches) : draws.pick(kScalings8);
  if (scaling != p.usual_scaling()) p.scaling = scaling;
}

void draw_v_layout(Problem& p, Draws& draws) {
  if (p.is_8bit() && !p.ragged() && draws.one_in(3)) p.v_layout = VLayout::kDn;
}

void draw_expressions(Problem& p, Draws& draws) {
  const bool has_score = draws.one_in(6), has_mask = draws.one_in(6);
  const Function score = has_score ? draws.pick(kScoreFunctions) : Function();
  const Function mask = has_mask ? draws.pick(kMaskFunctions) : Function();
  std::vector<ExpressionTensor> tensors = parse_tensors(score.tensors);
  for (const ExpressionTensor& tensor : parse_tensors(mask.tensors)) {
    const auto same = std::find_if(tensors.begin(), tensors.end(),
                                   [&](const ExpressionTensor& other) { return other.name == tensor.name; });
    if (same == tensors.end()) tensors.push_back(tensor);
    else if (*same != tensor) return;
  }
  set_expressions(p, score.text, mask.text, tensors);
}

void draw_amax(Problem& p, Draws& draws) { p.amax = p.is_8bit() && draws.one_in(4); }

std::vector<Problem> fewer_batches(const Problem& from) {
  return with_each(from, smaller_sizes(from.batch, 1), [](Problem& p, std::int64_t size) { p.batch = size; });
}

std::vector<Problem> fewer_heads(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].heads_q = problems[0].heads_kv = 1;
  for (const std::int64_t heads_kv : smaller_sizes(from.heads_kv, 1)) {
    Problem& p = problems.emplace_back(from);
    p.heads_q = heads_kv * from.group_size(), p.heads_kv = heads_kv;
  }
  for (const std::int64_t group : smaller_sizes(from.group_size(), 1))
    problems.emplace_back(from).heads_q = from.heads_kv * group;
  return problems;
}

std::vector<Problem> fewer_rows(const Problem& from) {
  return with_each(from, smaller_sizes(from.seqlen_q, 1), [](Problem& p, std::int64_t size) { p.seqlen_q = size; });
}

std::vector<Problem> fewer_keys(const Problem& from) {
  return with_each(from, smaller_sizes(from.seqlen_kv, 1), [](Problem& p, std::int64_t size) { p.seqlen_kv = size; });
}

std::vector<Problem> smaller_head_dim(const Problem& from) {
  return with_each(from, smaller_head_dims(from.head_dim), [](Problem& p, std::int64_t size) {
    p.head_dim = size, p.head_dim_v = std::min(p.head_dim_v, size);
    fill_bytes(p);
  });
}

std::vector<Problem> smaller_head_dim_v(const Problem& from) {
  std::vector<Problem> problems =
      with_each(from, smaller_head_dims(from.head_dim_v), [](Problem& p, std::int64_t size) {
        p.head_dim_v = size;
        fill_bytes(p);
      });
  problems.emplace_back(from).head_dim_v = from.head_dim;
  return problems;
}

std::vector<Problem> usual_o_dtype(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].o_dtype.reset();
  return problems;
}

std::vector<Problem> usual_scaling(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].scaling.reset();
  return problems;
}

std::vector<Problem> plain_cache(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].kv_dtype.reset();
  if (!from.is_8bit()) problems[0].scaling.reset();
  return problems;
}

std::vector<Problem> simpler_causal(const Problem& from) {
  std::vector<Problem> problems(3, from);
  problems[0].mask = Mask();
  problems[1].mask = Mask::causal();
  problems[2].mask.alignment = Alignment::kBottomRight;
  return problems;
}

std::vector<Problem> narrower_left(const Problem& from) { return narrower(from, &Mask::left); }

std::vector<Problem> narrower_right(const Problem& from) { return narrower(from, &Mask::right); }

std::vector<Problem> plain_alignment(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].mask.alignment = Alignment::kBottomRight;
  return problems;
}

std::vector<Problem> plain_scale(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].scale.reset();
  return problems;
}

std::vector<Problem> without_softcap(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].softcap.reset();
  return problems;
}

std::vector<Problem> simpler_alibi(const Problem& from) {
  std::vector<Problem> problems(2, from);
  problems[0].alibi = Alibi::kNone;
  if (from.alibi == Alibi::kBatch) problems[1].alibi = Alibi::kHead;
  return problems;
}

std::vector<Problem> without_sink(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].sink = false;
  return problems;
}

std::vector<Problem> without_amax(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].amax = false;
  return problems;
}

std::vector<Problem> plainer_lengths(const Problem& from) {
  std::vector<Problem> problems;
  for (const Lengths lengths : {Lengths::kFixed, Lengths::kFull, Lengths::kHalving}) {
    if (lengths >= from.lengths) continue;
    Problem& plainer = problems.emplace_back(from);
    plainer.lengths = lengths;
    if (!plainer.ragged()) plainer.page_size = 0;
  }
  return problems;
}

std::vector<Problem> plainer_pages(const Problem& from) {
  if (!from.paged()) return {};
  std::vector<Problem> problems =
      with_each(from, smaller_sizes(from.page_size, 1), [](Problem& p, std::int64_t size) { p.page_size = size; });
  problems.insert(problems.begin(), from);
  problems.front().page_size = 0;
  // Packed keys have no factors of their own.
  if (from.input_scaling() == Scaling::kToken) problems.front().scaling.reset();
  return problems;
}

std::vector<Problem> usual_v_layout(const Problem& from) {
  std::vector<Problem> problems = {from};
  problems[0].v_layout = VLayout::kNd;
  return problems;
}

namespace {

std::vector<Problem> with_functions(const Problem& from, const std::string& score, const std::string& mask) {
  if (!from.has_expression()) return {};
  Problem p = from.without_expressions();
  std::vector<ExpressionTensor> tensors;
  if (!score.empty()) tensors = from.score_expression().tensors();
  else if (!mask.empty()) tensors = from.mask_expression().tensors();
  set_expressions(p, score, mask, tensors);
  return {p};
}

}  // namespace

std::vector<Problem> without_score_expression(const Problem& from) { return with_functions(from, "", from.mask_text); }

std::vector<Problem> without_mask_expression(const Problem& from) { return with_functions(from, from.score_text, ""); }

}  // namespace flashcore::problem_choices
