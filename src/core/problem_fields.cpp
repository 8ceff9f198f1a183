#include "core/problem_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/problem_choices.h"
#include "core/problem_expressions.h"

namespace flashcore {
namespace {

using Kind = ProblemField::Kind;
using Whole = std::int64_t Problem::*;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Of the mask, kernels are compiled for its sides.
constexpr ProblemField::CompiledFor kBoundedLeft = {
    "bounded_left", [](const Problem& p) { return static_cast<int>(p.band().bounded_left); }};
constexpr ProblemField::CompiledFor kBoundedRight = {
    "bounded_right", [](const Problem& p) { return static_cast<int>(p.band().bounded_right); }};
// Of a function of the user's own, whether there is one: its text is part of the kernel's source.
constexpr ProblemField::CompiledFor kScoreExpression = {
    "score_expression", [](const Problem& p) { return static_cast<int>(p.has_score_expression()); }};
constexpr ProblemField::CompiledFor kMaskExpression = {
    "mask_expression", [](const Problem& p) { return static_cast<int>(p.has_mask_expression()); }};

// The values of kernels' CacheElement: 0 for k and v of q's type.
int cache_element(const Problem& p) {
  return p.has_quantised_cache() ? static_cast<int>(*p.kv_dtype) - static_cast<int>(kCacheDTypes[0]) + 1 : 0;
}

int has_token_factors(const Problem& p) { return p.input_scaling() == Scaling::kToken ? 1 : 0; }

template <Whole kMember>
FieldValue get(const Problem& p) {
  return p.*kMember;
}
template <Whole kMember>
void set(Problem& p, const FieldValue& value) {
  p.*kMember = std::get<std::int64_t>(value);
}

FieldValue bound_value(const std::optional<std::int64_t>& bound) {
  return bound ? FieldValue(*bound) : FieldValue(std::monostate());
}
std::optional<std::int64_t> bound_of(const FieldValue& value) {
  const auto* number = std::get_if<std::int64_t>(&value);
  return number ? std::optional(*number) : std::nullopt;
}

std::string causal_word(const Problem& p) {
  return p.mask.is_causal() ? std::string(to_string(p.mask.alignment)) : "none";
}
void set_causal(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  if (word == "true" || word == "bottom_right") p.mask = Mask::causal();
  else if (word == "top_left") p.mask = Mask::causal(Alignment::kTopLeft);
  else if (word == "false" || word == "none") p.mask = Mask();
  else
    throw_bad_input(
        "causal is '{}', which is not known; use true (the same as bottom_right), false, top_left or bottom_right",
        excerpt(word));
}

void set_window_right(Problem& p, const FieldValue& value) {
  const auto right = bound_of(value);
  if (!p.mask.is_causal()) p.mask.right = right;
  else if (right && *right != 0)
    throw_bad_input(
        "causal is given and window_right is {}: a causal mask ends at the row's own key; leave one of them out, or "
        "set window_right to 0",
        *right);
}

// Not refused where it contradicts causal, for window_right = 0 leaves the same mask: see require_one_alignment.
void set_alignment(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  if (word != "bottom_right" && word != "top_left")
    throw_bad_input("window_alignment is '{}', which is not known; use bottom_right or top_left", excerpt(word));
  const Alignment alignment = word == "top_left" ? Alignment::kTopLeft : Alignment::kBottomRight;
  p.mask.alignment = alignment;
}

// Field texts that are the usual ones are no value, so that equal problems compare equal.
void set_output(Problem& p, const FieldValue& value) {
  const DType dtype = parse_dtype(std::get<std::string>(value));
  p.o_dtype = dtype == Problem::usual_output(p.dtype) ? std::nullopt : std::optional(dtype);
}
void set_scaling(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  std::optional<Scaling> found;
  for (const Scaling scaling : kAllScalings)
    if (word == to_string(scaling)) found = scaling;
  if (!found) throw_bad_input("scaling is '{}', which is not known; use none, tensor, head or token", excerpt(word));
  p.scaling = *found == p.usual_scaling() ? std::nullopt : found;
}

void set_kv_dtype(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  p.kv_dtype.reset();
  if (word == to_string(p.dtype)) return;
  for (const DType dtype : kCacheDTypes)
    if (word == to_string(dtype)) p.kv_dtype = dtype;
  if (!p.kv_dtype)
    throw_bad_input(
        "kv_dtype is '{}' and dtype is {}; leave kv_dtype out, or use e4m3, e5m2, int8 or int4 for a quantised cache",
        excerpt(word), to_string(p.dtype));
}

void set_alibi(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  for (const Alibi alibi : {Alibi::kNone, Alibi::kHead, Alibi::kBatch}) {
    if (word != to_string(alibi)) continue;
    p.alibi = alibi;
    return;
  }
  throw_bad_input(
      "alibi is '{}', which is not known; use none, head (a slope for each query head) or batch (for each "
      "batch entry and query head)",
      excerpt(word));
}
void set_sink(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  if (word != "none" && word != "head")
    throw_bad_input("sink is '{}', which is not known; use none or head (a logit for each query head)", excerpt(word));
  p.sink = word == "head";
}

void set_amax(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  if (word != "none" && word != "head")
    throw_bad_input("amax is '{}', which is not known; use none or head (of each query head)", excerpt(word));
  p.amax = word == "head";
}

void set_lengths(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  for (const Lengths lengths : {Lengths::kFixed, Lengths::kFull, Lengths::kHalving, Lengths::kRandom}) {
    if (word != to_string(lengths)) continue;
    p.lengths = lengths;
    return;
  }
  throw_bad_input(
      "lengths is '{}', which is not known; use fixed, or one of full, halving and random for a ragged batch, whose "
      "sequences have lengths of their own up to the problem's",
      excerpt(word));
}

void set_v_layout(Problem& p, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  if (word != "nd" && word != "dn")
    throw_bad_input(
        "v_layout is '{}', which is not known; use nd, or dn for v of 8 bits as [batch, heads_kv, head_dim_v, "
        "seqlen_kv]",
        excerpt(word));
  p.v_layout = word == "dn" ? VLayout::kDn : VLayout::kNd;
}

FieldValue text_value(const std::string& text) {
  return text.empty() ? FieldValue(std::monostate()) : FieldValue(text);
}
std::string text_of(const FieldValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text ? *text : std::string();
}
// What is declared is known when the texts come, and what they do not name is refused with the last of them.
void set_tensors(Problem& p, const FieldValue& value) { p.tensors = parse_tensors(text_of(value)); }
void set_score(Problem& p, const FieldValue& value) {
  p.score_text = canonical_text(text_of(value), ExpressionUse::kScore, p.tensors);
}
void set_mask(Problem& p, const FieldValue& value) {
  set_expressions(p, p.score_text, text_of(value), std::vector(p.tensors));
}
double same_text(const std::string& a, const std::string& b) { return a == b ? 0 : kInfinite; }

double log2_ratio(std::int64_t a, std::int64_t b) {
  return std::abs(
      std::log2(static_cast<double>(std::max<std::int64_t>(a, 1)) / static_cast<double>(std::max<std::int64_t>(b, 1))));
}
template <Whole kMember>
double ratio(const Problem& a, const Problem& b) {
  return log2_ratio(a.*kMember, b.*kMember);
}
template <Whole kMember>
double equal(const Problem& a, const Problem& b) {
  return a.*kMember == b.*kMember ? 0 : kInfinite;
}
// A bound that cuts nothing is none (Problem::band): the kernel is another one only where it does.
double side_ratio(bool a_bounded, std::int64_t a, bool b_bounded, std::int64_t b) {
  if (a_bounded != b_bounded) return kInfinite;
  return a_bounded ? log2_ratio(a + 1, b + 1) : 0;
}

// Sizes dominate, features come next: a reader wants few numbers to look at, then few things to think of.
constexpr double kSize = 1000, kFeature = 20;
template <Whole kMember>
double large(const Problem& p) {
  return kSize * static_cast<double>(p.*kMember);
}
double large_side(const std::optional<std::int64_t>& side) {
  return side ? kFeature + kSize * static_cast<double>(*side) : 0;
}

std::vector<ProblemField> make_fields() {
  namespace choices = problem_choices;
  constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;
  constexpr std::int64_t kMaxHeadDim = 1024;
  constexpr std::int64_t kMaxPageSize = 65536;
  return {
      {.name = "batch",
       .suite_key = "batch_size",
       .default_text = "1",
       .lowest = 1,
       .highest = kMaxRows,
       .token = "b",
       .form = "b<batch>",
       .python = "q",
       .doc = "Sequences. All have the same lengths, unless `lengths` says otherwise.",
       .get = get<&Problem::batch>,
       .set = set<&Problem::batch>,
       .otherwise = [](const Problem&) -> FieldValue { return std::int64_t{1}; },
       .print = [](const Problem& p) { return fmt::format("b{}", p.batch); },
       .read = [](IdReader& reader, Problem& p) { p.batch = reader.need_number("b"); },
       .distance = [](const Problem& a,
                      const Problem& b) { return log2_ratio(a.batch * a.heads_q, b.batch * b.heads_q); },
       .draw = choices::draw_batch,
       .simpler = choices::fewer_batches,
       .complexity = large<&Problem::batch>},
      {.name = "heads_q",
       .suite_key = "num_heads",
       .aliases = {"heads"},
       .required = true,
       .lowest = 1,
       .highest = kMaxRows,
       .token = "h",
       .form = "_h<heads>",
       .python = "q",
       .doc = "Query heads.",
       .get = get<&Problem::heads_q>,
       .set = set<&Problem::heads_q>,
       .distance = nullptr,  // with batch
       .draw = choices::draw_heads,
       .simpler = choices::fewer_heads,
       .complexity = large<&Problem::heads_q>},
      {.name = "heads_kv",
       .suite_key = "num_kv_heads",
       .default_text = "heads_q",
       .lowest = 1,
       .highest = kMaxRows,
       .token = "hk",
       .form = "[_hk<kv heads>]",
       .python = "k",
       .doc = "Heads of k and v. Divides heads_q: query head h reads key head h / (heads_q / heads_kv).",
       .get = get<&Problem::heads_kv>,
       .set = set<&Problem::heads_kv>,
       .otherwise = get<&Problem::heads_q>,
       .distance = [](const Problem& a, const Problem& b) { return 0.5 * log2_ratio(a.group_size(), b.group_size()); },
       .complexity = large<&Problem::heads_kv>},
      {.name = "seqlen_q",
       .suite_key = "seq_len",
       .required = true,
       .lowest = 0,
       .highest = kMaxRows,
       .token = "sq",
       .form = "_(s<len> | sq<q len>",
       .python = "q",
       .doc =
           "Query rows of a sequence. 0: nothing to compute. One token, `s`, says both lengths where they are equal.",
       .get = get<&Problem::seqlen_q>,
       .set = set<&Problem::seqlen_q>,
       .print =
           [](const Problem& p) {
             return p.seqlen_q == p.seqlen_kv ? fmt::format("_s{}", p.seqlen_q) : fmt::format("_sq{}", p.seqlen_q);
           },
       .read =
           [](IdReader& reader, Problem& p) {
             if (const auto both = reader.number("s")) {
               p.seqlen_q = p.seqlen_kv = *both;
             } else {
               p.seqlen_q = reader.need_number("sq");
               p.seqlen_kv = reader.need_number("sk");
             }
           },
       .distance = ratio<&Problem::seqlen_q>,
       .draw = choices::draw_lengths,
       .simpler = choices::fewer_rows,
       .complexity = large<&Problem::seqlen_q>},
      {.name = "seqlen_kv",
       .suite_key = "seq_len_kv",
       .default_text = "seqlen_q",
       .lowest = 0,
       .highest = kMaxRows,
       .token = "sk",
       .form = "_sk<kv len>)",
       .python = "k",
       .doc = "Keys of a sequence. 0: every row sees none.",
       .get = get<&Problem::seqlen_kv>,
       .set = set<&Problem::seqlen_kv>,
       .otherwise = get<&Problem::seqlen_q>,
       .read = [](IdReader&, Problem&) {},  // with seqlen_q
       .distance = ratio<&Problem::seqlen_kv>,
       .simpler = choices::fewer_keys,
       .complexity = large<&Problem::seqlen_kv>},
      {.name = "head_dim",
       .suite_key = "head_dim",
       .compiled_for = {{"head_dim", [](const Problem& p) { return static_cast<int>(p.head_dim); }}},
       .required = true,
       .lowest = 1,
       .highest = kMaxHeadDim,
       .token = "d",
       .form = "_d<head dim>",
       .python = "q",
       .doc = "Columns of q and k.",
       .get = get<&Problem::head_dim>,
       .set = set<&Problem::head_dim>,
       .distance = equal<&Problem::head_dim>,
       .draw = choices::draw_head_dim,
       .simpler = choices::smaller_head_dim,
       .complexity = large<&Problem::head_dim>},
      {.name = "head_dim_v",
       .suite_key = "head_dim_v",
       .compiled_for = {{"head_dim_v", [](const Problem& p) { return static_cast<int>(p.head_dim_v); }}},
       .default_text = "head_dim",
       .lowest = 1,
       .highest = kMaxHeadDim,
       .token = "dv",
       .form = "[_dv<v head dim>]",
       .python = "v",
       .doc = "Columns of v and o.",
       .get = get<&Problem::head_dim_v>,
       .set = set<&Problem::head_dim_v>,
       .otherwise = get<&Problem::head_dim>,
       .distance = equal<&Problem::head_dim_v>,
       .draw = choices::draw_head_dim_v,
       .simpler = choices::smaller_head_dim_v,
       .complexity =
           [](const Problem& p) {
             return large<&Problem::head_dim_v>(p) + (p.head_dim_v == p.head_dim ? 0 : kFeature);
           }},
      {.name = "dtype",
       .suite_key = "dtype",
       .kind = Kind::kWord,
       .compiled_for = {{"element", [](const Problem& p) { return static_cast<int>(p.dtype); }}},
       .required = true,
       .words = {"fp32", "fp16", "bf16", "e4m3", "e5m2"},
       .form = "_<fp32|fp16|bf16|e4m3|e5m2>",
       .python = "q",
       .doc = "Element type of q, of k and v unless kv_dtype says otherwise, and of o unless o_dtype does. e4m3 and "
              "e5m2 are the 8-bit floats of OCP (float8_e4m3fn, float8_e5m2).",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.dtype)); },
       .set = [](Problem& p, const FieldValue& value) { p.dtype = parse_dtype(std::get<std::string>(value)); },
       .print = [](const Problem& p) { return fmt::format("_{}", to_string(p.dtype)); },
       .read =
           [](IdReader& reader, Problem& p) {
             const std::string_view dtype = reader.take();
             const auto known = [&](DType each) { return dtype == to_string(each); };
             if (std::none_of(std::begin(kAllDTypes), std::end(kAllDTypes), known))
               reader.fail(
                   fmt::format("the dtype is '{}', which is not fp32, fp16, bf16, e4m3 or e5m2", excerpt(dtype)));
             p.dtype = parse_dtype(dtype);
           },
       .distance = [](const Problem& a,
                      const Problem& b) { return size_of(a.dtype) == size_of(b.dtype) ? 0 : kInfinite; },
       .draw = choices::draw_dtype},
      {.name = "kv_dtype",
       .suite_key = "kv_dtype",
       .kind = Kind::kWord,
       .compiled_for = {{"cache", cache_element}},
       .default_text = "dtype",
       .words = {"fp32", "fp16", "bf16", "e4m3", "e5m2", "int8", "int4"},
       .form = "[_kv<e4m3|e5m2|int8|int4>]",
       .python = "k",
       .doc =
           "Element type of k and v. e4m3, e5m2, int8 or int4 beside q of 16 or 32 bits is a quantised cache: keys and "
           "values become q's type on the way to the multiplication, which is exact, and `scaling` says which "
           "factors they have. int8 is whole numbers from -127 to 127; -128 is read, not written. int4 is whole "
           "numbers from -7 to 7 in 4 bits of two's complement, two a byte with the even column in the lower half; "
           "-8 is read, not written; head_dim and head_dim_v are even.",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.cache_dtype())); },
       .set = set_kv_dtype,
       .otherwise = [](const Problem& p) -> FieldValue { return std::string(to_string(p.dtype)); },
       .print =
           [](const Problem& p) { return p.kv_dtype ? fmt::format("_kv{}", to_string(*p.kv_dtype)) : std::string(); },
       .read =
           [](IdReader& reader, Problem& p) {
             for (const DType dtype : kCacheDTypes)
               if (!p.kv_dtype && reader.word(fmt::format("kv{}", to_string(dtype)))) p.kv_dtype = dtype;
           },
       .distance = [](const Problem& a, const Problem& b) { return a.kv_dtype == b.kv_dtype ? 0 : kInfinite; },
       .simpler = choices::plain_cache,
       .complexity = [](const Problem& p) { return p.kv_dtype ? kFeature : 0; }},
      {.name = "o_dtype",
       .suite_key = "o_dtype",
       .kind = Kind::kWord,
       .compiled_for = {{"output", [](const Problem& p) { return static_cast<int>(p.output_dtype()); }}},
       .default_text = "dtype; bf16 for 8 bits",
       .words = {"fp32", "fp16", "bf16", "e4m3", "e5m2"},
       .form = "[_o<fp16|e4m3|e5m2>]",
       .python = "out",
       .doc = "Element type of o. That of q where it has 16 or 32 bits; fp16, bf16, e4m3 or e5m2 where it has 8.",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.output_dtype())); },
       .set = set_output,
       .otherwise = [](const Problem& p) -> FieldValue {
         return std::string(to_string(Problem::usual_output(p.dtype)));
       },
       .print = [](const Problem& p) { return p.o_dtype ? fmt::format("_o{}", to_string(*p.o_dtype)) : std::string(); },
       .read =
           [](IdReader& reader, Problem& p) {
             for (const DType dtype : kAllDTypes)
               if (dtype != Problem::usual_output(p.dtype) && reader.word(fmt::format("o{}", to_string(dtype)))) {
                 p.o_dtype = dtype;
                 return;
               }
           },
       .distance = [](const Problem& a,
                      const Problem& b) { return a.output_dtype() == b.output_dtype() || !a.is_8bit() ? 0 : 0.5; },
       .draw = choices::draw_o_dtype,
       .simpler = choices::usual_o_dtype,
       .complexity = [](const Problem& p) { return p.o_dtype ? kFeature : 0; }},
      {.name = "scaling",
       .suite_key = "scaling",
       .kind = Kind::kWord,
       .compiled_for = {{"token_factors", has_token_factors}},
       .default_text = "none; tensor for 8 bits and quantised caches",
       .words = {"none", "tensor", "head", "token"},
       .form = "[_unscaled|_perhead|_pertoken]",
       .python = "descale_q",
       .doc =
           "Of 8-bit q, k and v, or of a quantised cache's k and v: how many factors bring them back to their "
           "values. tensor: one each; head: one for each batch entry and kv head, and the query heads that read "
           "it; token: one for each key and kv head of a quantised cache, dense or paged, in fp32 arrays that lie as "
           "the keys do ([batch, heads_kv, seqlen_kv], or [pages, heads_kv, page_size]), or, of dense 8-bit q, k and "
           "v, one for each row of q [batch, heads_q, seqlen_q] and of k [batch, heads_kv, seqlen_kv], and for v "
           "[batch, heads_kv]: a factor for each page or block of rows is one that they repeat; none: they are what "
           "is stored.",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.input_scaling())); },
       .set = set_scaling,
       .otherwise = [](const Problem& p) -> FieldValue { return std::string(to_string(p.usual_scaling())); },
       .print = [](const Problem& p) -> std::string {
         if (!p.scaling) return "";
         return *p.scaling == Scaling::kNone ? "_unscaled" : fmt::format("_per{}", to_string(*p.scaling));
       },
       .read =
           [](IdReader& reader, Problem& p) {
             if (reader.word("perhead")) p.scaling = Scaling::kHead;
             else if (p.may_be_scaled() && reader.word("pertoken")) p.scaling = Scaling::kToken;
             else if (p.may_be_scaled() && reader.word("unscaled")) p.scaling = Scaling::kNone;
           },
       .distance = [](const Problem& a,
                      const Problem& b) { return has_token_factors(a) == has_token_factors(b) ? 0 : kInfinite; },
       .draw = choices::draw_scaling,
       .simpler = choices::usual_scaling,
       .complexity = [](const Problem& p) { return p.scaling ? kFeature : 0; }},
      {.name = "causal",
       .suite_key = "causal",
       .kind = Kind::kWord,
       .compiled_for = {kBoundedLeft, kBoundedRight},
       .default_text = "none",
       .words = {"none", "bottom_right", "top_left"},
       .form = "[_causal|_causaltl]",
       .python = "causal",
       .doc =
           "A mask that ends at each row's own key: window_right = 0. bottom_right: the last row's own key is the last "
           "one (FlashAttention, decoding); top_left: row i's is key i (PyTorch's is_causal). The same where both "
           "lengths are equal. Suites may say true (bottom_right) and false.",
       .get = [](const Problem& p) -> FieldValue { return causal_word(p); },
       .set = set_causal,
       .otherwise = [](const Problem&) -> FieldValue { return std::string("none"); },
       .print = [](const Problem& p) -> std::string {
         if (!p.mask.is_causal()) return "";
         return p.mask.alignment == Alignment::kTopLeft ? "_causaltl" : "_causal";
       },
       .read =
           [](IdReader& reader, Problem& p) {
             if (reader.word("causal")) p.mask = Mask::causal();
             else if (reader.word("causaltl")) p.mask = Mask::causal(Alignment::kTopLeft);
           },
       .draw = choices::draw_causal,
       .simpler = choices::simpler_causal},
      {.name = "window_left",
       .suite_key = "window_left",
       .compiled_for = {kBoundedLeft},
       .optional = true,
       .default_text = "none",
       .lowest = 0,
       .highest = kMaxRows,
       .token = "wl",
       .form = "[_wl<keys to the left>]",
       .python = "window",
       .doc = "Keys that a row sees to the left of its own one, as in FlashAttention's window_size: 0 leaves it none. "
              "Kernels are compiled for whether there is a bound that cuts anything, not for its value.",
       .get = [](const Problem& p) { return bound_value(p.mask.left); },
       .set = [](Problem& p, const FieldValue& value) { p.mask.left = bound_of(value); },
       .otherwise = [](const Problem&) -> FieldValue { return std::monostate(); },
       .distance =
           [](const Problem& a, const Problem& b) {
             return side_ratio(a.band().bounded_left, a.mask.left.value_or(0), b.band().bounded_left,
                               b.mask.left.value_or(0));
           },
       .draw = choices::draw_left,
       .simpler = choices::narrower_left,
       .complexity = [](const Problem& p) { return large_side(p.mask.left); }},
      {.name = "window_right",
       .suite_key = "window_right",
       .compiled_for = {kBoundedRight},
       .optional = true,
       .default_text = "none",
       .lowest = 0,
       .highest = kMaxRows,
       .token = "wr",
       .form = "[_wr<keys to the right>]",
       .python = "window",
       .doc = "Keys that a row sees to the right of its own one. 0 is causal, and ids say so.",
       .get = [](const Problem& p) { return bound_value(p.mask.right); },
       .set = set_window_right,
       .otherwise = [](const Problem&) -> FieldValue { return std::monostate(); },
       .print = [](const Problem& p) -> std::string {
         return p.mask.right && !p.mask.is_causal() ? fmt::format("_wr{}", *p.mask.right) : "";
       },
       .read =
           [](IdReader& reader, Problem& p) {
             if (!p.mask.is_causal()) p.mask.right = reader.number("wr");
           },
       .distance =
           [](const Problem& a, const Problem& b) {
             return side_ratio(a.band().bounded_right, a.mask.right.value_or(0), b.band().bounded_right,
                               b.mask.right.value_or(0));
           },
       .draw = choices::draw_right,
       .simpler = choices::narrower_right,
       .complexity = [](const Problem& p) { return large_side(p.mask.right); }},
      {.name = "window_alignment",
       .suite_key = "window_alignment",
       .kind = Kind::kWord,
       .default_text = "bottom_right",
       .words = {"bottom_right", "top_left"},
       .form = "[_tl]",
       .python = "window_alignment",
       .doc =
           "Which key is a row's own one where both lengths differ: the last row's is the last key (bottom_right), or "
           "row i's is key i (top_left). Without a bound there is nothing to align.",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.mask.alignment)); },
       .set = set_alignment,
       .otherwise = [](const Problem& p) -> FieldValue {
         return p.mask.is_causal() ? std::string(to_string(p.mask.alignment)) : std::string("bottom_right");
       },
       .print = [](const Problem& p) -> std::string {
         return p.mask.alignment == Alignment::kTopLeft && !p.mask.is_causal() ? "_tl" : "";
       },
       .read =
           [](IdReader& reader, Problem& p) {
             if (!p.mask.is_causal() && reader.word("tl")) p.mask.alignment = Alignment::kTopLeft;
           },
       .draw = choices::draw_alignment,
       .simpler = choices::plain_alignment,
       .complexity = [](const Problem& p) { return p.mask.alignment == Alignment::kTopLeft ? kFeature : 0; }},
      {.name = "scale",
       .suite_key = "scale",
       .kind = Kind::kNumber,
       .optional = true,
       .default_text = "1/sqrt(head_dim)",
       .token = "scale",
       .form = "[_scale<number>]",
       .python = "scale",
       .doc = "The factor of q·k before the softmax, from 1e-6 to 1e6.",
       .get = [](const Problem& p) { return p.scale ? FieldValue(*p.scale) : FieldValue(std::monostate()); },
       .set =
           [](Problem& p, const FieldValue& value) {
             const auto* number = std::get_if<double>(&value);
             p.scale = number ? std::optional(*number) : std::nullopt;
           },
       .otherwise = [](const Problem&) -> FieldValue { return std::monostate(); },
       .draw = choices::draw_scale,
       .simpler = choices::plain_scale,
       .complexity = [](const Problem& p) { return p.scale ? kFeature : 0; }},
      {.name = "softcap",
       .suite_key = "softcap",
       .kind = Kind::kNumber,
       .compiled_for = {{"softcap", [](const Problem& p) { return static_cast<int>(p.softcap.has_value()); }}},
       .optional = true,
       .default_text = "none",
       .token = "softcap",
       .form = "[_softcap<number>]",
       .python = "softcap",
       .doc = "Bounds each score before the mask: s becomes softcap * tanh(s / softcap), where s is scaled already "
              "(Gemma 2, Grok). From 1e-6 to 1e6. Kernels are compiled for whether there is one, not for its value.",
       .get = [](const Problem& p) { return p.softcap ? FieldValue(*p.softcap) : FieldValue(std::monostate()); },
       .set =
           [](Problem& p, const FieldValue& value) {
             const auto* number = std::get_if<double>(&value);
             p.softcap = number ? std::optional(*number) : std::nullopt;
           },
       .otherwise = [](const Problem&) -> FieldValue { return std::monostate(); },
       .distance = [](const Problem& a,
                      const Problem& b) { return a.softcap.has_value() == b.softcap.has_value() ? 0 : kInfinite; },
       .draw = choices::draw_softcap,
       .simpler = choices::without_softcap,
       .complexity = [](const Problem& p) { return p.softcap ? kFeature : 0; }},
      {.name = "alibi",
       .suite_key = "alibi",
       .kind = Kind::kWord,
       .compiled_for = {{"alibi", [](const Problem& p) { return static_cast<int>(p.alibi); }}},
       .default_text = "none",
       .words = {"none", "head", "batch"},
       .form = "[_alibi|_alibibatch]",
       .python = "alibi",
       .doc = "Takes slope * |i + seqlen_kv - seqlen_q - j| from the score of row i and key j, after softcap (ALiBi; "
              "FlashAttention's alibi_slopes). head: fp32 slopes [heads_q]; batch: [batch, heads_q]. The row's own key "
              "is the last one for the last row, however the mask is aligned.",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.alibi)); },
       .set = set_alibi,
       .otherwise = [](const Problem&) -> FieldValue { return std::string("none"); },
       .print = [](const Problem& p) -> std::string {
         return p.alibi == Alibi::kNone ? "" : p.alibi == Alibi::kHead ? "_alibi" : "_alibibatch";
       },
       .read =
           [](IdReader& reader, Problem& p) {
             if (reader.word("alibi")) p.alibi = Alibi::kHead;
             else if (reader.word("alibibatch")) p.alibi = Alibi::kBatch;
           },
       .distance =
           [](const Problem& a, const Problem& b) {
             return (a.alibi == Alibi::kNone) == (b.alibi == Alibi::kNone) ? 0 : kInfinite;
           },
       .draw = choices::draw_alibi,
       .simpler = choices::simpler_alibi,
       .complexity = [](const Problem& p) { return kFeature * static_cast<double>(p.alibi); }},
      {.name = "sink",
       .suite_key = "sink",
       .kind = Kind::kWord,
       .compiled_for = {{"sink", [](const Problem& p) { return static_cast<int>(p.sink); }}},
       .default_text = "none",
       .words = {"none", "head"},
       .form = "[_sink]",
       .python = "sink",
       .doc =
           "head: a logit for each query head, fp32 [heads_q], joins each row's sum of exponentials and has no value "
           "(gpt-oss). It is neither scaled nor capped. The log-sum-exp includes it, as in FlashAttention: that of a "
           "row that sees no key is the sink, and o is 0 there.",
       .get = [](const Problem& p) -> FieldValue { return std::string(p.sink ? "head" : "none"); },
       .set = set_sink,
       .otherwise = [](const Problem&) -> FieldValue { return std::string("none"); },
       .print = [](const Problem& p) -> std::string { return p.sink ? "_sink" : ""; },
       .read = [](IdReader& reader, Problem& p) { p.sink = reader.word("sink"); },
       // The main loop is the same.
       .distance = [](const Problem& a, const Problem& b) { return a.sink == b.sink ? 0 : 0.25; },
       .draw = choices::draw_sink,
       .simpler = choices::without_sink,
       .complexity = [](const Problem& p) { return p.sink ? kFeature : 0; }},
      {.name = "lengths",
       .suite_key = "lengths",
       .kind = Kind::kWord,
       .compiled_for = {{"ragged", [](const Problem& p) { return static_cast<int>(p.ragged()); }}},
       .default_text = "fixed",
       .words = {"fixed", "full", "halving", "random"},
       .form = "[_ragged<full|halving|random>]",
       .python = "cu_seqlens_q",
       .doc = "fixed: every sequence has the lengths above. Otherwise the batch is ragged: those are upper bounds, and "
              "the sequences lie one after another, with their boundaries in device memory (cu_seqlens). The word says "
              "which lengths checks and benchmarks take: full (the bounds), halving (the bounds, half of them, a "
              "quarter, ...) or random (drawn from the sizes; some are 0, but not all). Kernels do not know it.",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.lengths)); },
       .set = set_lengths,
       .otherwise = [](const Problem&) -> FieldValue { return std::string("fixed"); },
       .print = [](const Problem& p) -> std::string {
         return p.ragged() ? fmt::format("_ragged{}", to_string(p.lengths)) : "";
       },
       .read =
           [](IdReader& reader, Problem& p) {
             for (const Lengths lengths : {Lengths::kFull, Lengths::kHalving, Lengths::kRandom})
               if (!p.ragged() && reader.word(fmt::format("ragged{}", to_string(lengths)))) p.lengths = lengths;
           },
       .distance =
           [](const Problem& a, const Problem& b) {
             return a.ragged() != b.ragged() ? kInfinite : a.lengths == b.lengths ? 0 : 0.5;
           },
       .draw = choices::draw_ragged,
       .simpler = choices::plainer_lengths,
       .complexity = [](const Problem& p) { return kFeature * static_cast<double>(p.lengths); }},
      {.name = "page_size",
       .suite_key = "page_size",
       .compiled_for = {{"paged", [](const Problem& p) { return static_cast<int>(p.paged()); }}},
       .default_text = "0",
       .lowest = 0,
       .highest = kMaxPageSize,
       .token = "page",
       .form = "[_page<keys in a page>]",
       .python = "block_table",
       .doc = "Keys in a page of a paged cache; 0: k and v are dense. Of a ragged batch only. k and v are pools then, "
              "[pages, heads_kv, page_size, head_dim] (layout bhsd, HND) or [pages, page_size, heads_kv, head_dim] "
              "(bshd, NHD). A block table, int32 [batch, max_pages], names the pages of each sequence, and seqused_kv, "
              "int32 [batch], says how many keys it has. Kernels are compiled for whether there are pages, not for "
              "their size.",
       .get = get<&Problem::page_size>,
       .set = set<&Problem::page_size>,
       .otherwise = [](const Problem&) -> FieldValue { return std::int64_t{0}; },
       .distance =
           [](const Problem& a, const Problem& b) {
             return a.paged() != b.paged() ? kInfinite : 0.125 * log2_ratio(a.page_size, b.page_size);
           },
       .draw = choices::draw_page_size,
       .simpler = choices::plainer_pages,
       .complexity = [](const Problem& p) { return p.paged() ? kFeature : 0; }},
      {.name = "v_layout",
       .suite_key = "v_layout",
       .kind = Kind::kWord,
       .own_kernels = true,
       .default_text = "nd",
       .words = {"nd", "dn"},
       .form = "[_vdn]",
       .python = "v_layout",
       .doc =
           "Of dense 8-bit q, k and v: nd is v as [batch, heads_kv, seqlen_kv, head_dim_v]; dn is [batch, heads_kv, "
           "head_dim_v, seqlen_kv], with the keys of a column adjacent, which spares sm90_fp8_fwd the transposition. "
           "The fast kernels want columns that lie a multiple of 16 bytes apart: of a seqlen_kv that is none, the "
           "caller pads them. What the padding holds is not looked at.",
       .get = [](const Problem& p) -> FieldValue { return std::string(to_string(p.v_layout)); },
       .set = set_v_layout,
       .otherwise = [](const Problem&) -> FieldValue { return std::string("nd"); },
       .print = [](const Problem& p) -> std::string { return p.has_transposed_v() ? "_vdn" : ""; },
       .read =
           [](IdReader& reader, Problem& p) {
             if (reader.word("vdn")) p.v_layout = VLayout::kDn;
           },
       .distance = [](const Problem& a, const Problem& b) { return a.v_layout == b.v_layout ? 0 : kInfinite; },
       .draw = choices::draw_v_layout,
       .simpler = choices::usual_v_layout,
       .complexity = [](const Problem& p) { return p.has_transposed_v() ? kFeature : 0; }},
      {.name = "tensors",
       .suite_key = "tensors",
       .kind = Kind::kText,
       .compiled_for = {kScoreExpression, kMaskExpression},
       .default_text = "none",
       .form = "",
       .python = "tensors",
       .doc =
           "What score and mask name: `slope: float[1], document: int[2]` is a tensor of fp32 with one index and one "
           "of int32 with two; `bool` is a byte. At most eight with at most four indices. Their shapes follow from "
           "the indices; a stride of 0 broadcasts.",
       .get = [](const Problem& p) { return text_value(print_tensors(p.tensors)); },
       .set = set_tensors,
       .otherwise = [](const Problem&) -> FieldValue { return std::monostate(); },
       .print = [](const Problem&) -> std::string { return ""; },
       .read = [](IdReader&, Problem&) {},  // with the texts
       .draw = choices::draw_expressions},
      {.name = "score",
       .suite_key = "score",
       .kind = Kind::kText,
       .compiled_for = {kScoreExpression},
       .default_text = "none",
       .form = "[_score<hash>]",
       .python = "score",
       .doc = "What becomes of a score s after softcap and ALiBi: an expression of s, b, h, hk, i, j, seqlen_q, "
              "seqlen_kv and tensors (docs/expressions.md). An id has a hash of it, so problems with one are given in "
              "a suite, or as JSON: {\"id\": ..., \"score\": ..., \"mask\": ..., \"tensors\": ...}.",
       .get = [](const Problem& p) { return text_value(p.score_text); },
       .set = set_score,
       .otherwise = [](const Problem&) -> FieldValue { return std::monostate(); },
       .print = [](const Problem& p) { return print_token(p, ExpressionUse::kScore); },
       .read = [](IdReader& reader, Problem& p) { read_token(reader, p, ExpressionUse::kScore); },
       .distance = [](const Problem& a, const Problem& b) { return same_text(a.score_text, b.score_text); },
       .simpler = choices::without_score_expression,
       .complexity = [](const Problem& p) { return p.has_score_expression() ? kFeature : 0; }},
      {.name = "mask",
       .suite_key = "mask",
       .kind = Kind::kText,
       .compiled_for = {kMaskExpression},
       .default_text = "none",
       .form = "[_mask<hash>]",
       .python = "mask",
       .doc = "Which pairs are visible, of those within the window: a condition on b, h, hk, i, j, seqlen_q, seqlen_kv "
              "and tensors. A row that sees no key is as one outside of every window.",
       .get = [](const Problem& p) { return text_value(p.mask_text); },
       .set = set_mask,
       .otherwise = [](const Problem&) -> FieldValue { return std::monostate(); },
       .print = [](const Problem& p) { return print_token(p, ExpressionUse::kMask); },
       .read = [](IdReader& reader, Problem& p) { read_token(reader, p, ExpressionUse::kMask); },
       .distance = [](const Problem& a, const Problem& b) { return same_text(a.mask_text, b.mask_text); },
       .simpler = choices::without_mask_expression,
       .complexity = [](const Problem& p) { return p.has_mask_expression() ? kFeature : 0; }},
      {.name = "amax",
       .suite_key = "amax",
       .kind = Kind::kWord,
       .compiled_for = {{"amax", [](const Problem& p) { return static_cast<int>(p.amax); }}},
       .default_text = "none",
       .words = {"none", "head"},
       .form = "[_amax]",
       .python = "return_amax",
       .doc = "head: of 8-bit q, k and v the largest magnitudes are written as well, fp32 [2, heads_q]: first that of "
              "each query head's scores, as the softmax takes them and of visible pairs, then that of its o before it "
              "is rounded, over the whole batch. Callers choose the factors of the next step by them. Neither NaN nor "
              "a score of -inf counts, and what has no number is 0.",
       .get = [](const Problem& p) -> FieldValue { return std::string(p.amax ? "head" : "none"); },
       .set = set_amax,
       .otherwise = [](const Problem&) -> FieldValue { return std::string("none"); },
       .print = [](const Problem& p) -> std::string { return p.amax ? "_amax" : ""; },
       .read = [](IdReader& reader, Problem& p) { p.amax = reader.word("amax"); },
       .distance = [](const Problem& a, const Problem& b) { return a.amax == b.amax ? 0 : 0.25; },
       .draw = choices::draw_amax,
       .simpler = choices::without_amax,
       .complexity = [](const Problem& p) { return p.amax ? kFeature : 0; }},
  };
}

}  // namespace

void require_one_alignment(std::string_view causal, std::string_view alignment) {
  if (causal == "none" || causal == "false") return;
  const std::string_view own = causal == "top_left" ? "top_left" : "bottom_right";
  if (own != alignment)
    throw_bad_input("causal is {} and window_alignment is {}; leave window_alignment out, for causal says it", own,
                    excerpt(alignment));
}

std::span<const ProblemField> problem_fields() {
  static const std::vector<ProblemField> fields = make_fields();
  return fields;
}

}  // namespace flashcore
