#include "lab/verify/unseen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/problem_fields.h"

namespace flashcore {
namespace {

constexpr std::int64_t kMinHeadDim = 32;
constexpr double kMinFlops = 2e8, kMaxFlops = 4e12, kMaxProblemBytes = 1.5e9;
constexpr std::array<std::int64_t, 5> kKeyHeads = {1, 2, 4, 8, 16};
constexpr std::int64_t kMaxHeads = 128;

// Any length between, as likely to be in one octave as in another.
std::int64_t draw_octaves(Draws& draws, std::int64_t low, std::int64_t high) {
  const double share = static_cast<double>(draws.below(1 << 20)) / (1 << 20);
  return std::llround(static_cast<double>(low) * std::pow(static_cast<double>(high) / static_cast<double>(low), share));
}

void draw_sizes(Problem& p, Draws& draws) {
  const bool windowed = p.mask.left.has_value();
  const std::int64_t kind = draws.below(20);
  p.batch = 1;
  if (kind < 10) {  // prefill
    p.seqlen_q = p.seqlen_kv = draw_octaves(draws, 128, 16384);
    p.batch = draw_octaves(draws, 1, 64);
  } else if (kind < 13) {  // a chunk of a prompt
    p.seqlen_q = draw_octaves(draws, 16, 1024);
    p.seqlen_kv = draw_octaves(draws, 1024, 32768);
    p.batch = draw_octaves(draws, 1, 8);
    p.mask = Mask::causal();
  } else if (kind < 18) {  // decoding
    p.seqlen_q = 1;
    p.seqlen_kv = draw_octaves(draws, 512, 65536);
    p.batch = draw_octaves(draws, 1, 128);
    p.mask = Mask();
  } else {  // cross-attention
    p.seqlen_q = draw_octaves(draws, 128, 8192);
    p.seqlen_kv = draw_octaves(draws, 64, 2048);
    p.batch = draw_octaves(draws, 1, 16);
    p.mask = Mask();
  }
  if (windowed && p.mask.is_causal())
    p.mask.left = draw_octaves(draws, 64, std::max<std::int64_t>(65, p.seqlen_kv / 2));
}

bool is_worth_timing(const Problem& p) {
  const double least = p.is_decode() ? kMinFlops / 10 : kMinFlops;
  return p.flops() >= least && p.flops() <= kMaxFlops && p.bytes() <= kMaxProblemBytes;
}

// None if this draw is not one of them.
std::optional<Problem> draw_one(Draws& draws) {
  Problem p = random_problem(draws).without_expressions();
  if (p.head_dim < kMinHeadDim || p.head_dim % 8 != 0) return std::nullopt;
  p.head_dim_v = p.head_dim == 192 && draws.one_in(2) ? 128 : p.head_dim;
  if (p.dtype == DType::kF32) p.dtype = draws.one_in(2) ? DType::kF16 : DType::kBF16;
  p.scale.reset();
  // No peer is asked for these.
  p.softcap.reset();
  p.alibi = Alibi::kNone;
  p.sink = false;
  p.lengths = Lengths::kFixed;
  p.page_size = 0;
  // Few models have another mask than a causal one, with or without a bound on the left.
  p.mask = p.mask.is_causal() || p.mask.left ? Mask{Alignment::kBottomRight, p.mask.left, 0} : Mask();
  const std::int64_t group = p.group_size();
  p.heads_kv = draws.pick(kKeyHeads);
  p.heads_q = p.heads_kv * group;
  draw_sizes(p, draws);
  if (p.heads_q > kMaxHeads || !is_worth_timing(p)) return std::nullopt;
  p.validate();
  return p;
}

}  // namespace

Suite draw_unseen(int count, std::uint64_t seed, const std::vector<DType>& dtypes) {
  const auto asked = [&](const Problem& p) {
    return dtypes.empty() || std::find(dtypes.begin(), dtypes.end(), p.dtype) != dtypes.end();
  };
  Suite suite{fmt::format("unseen_{}", seed), {}};
  Draws draws(seed ^ 0x756e7365656e);
  std::set<std::string> ids;
  for (int attempt = 0; static_cast<int>(suite.problems.size()) < count; ++attempt) {
    if (attempt > 1000 * (count + 1)) throw_internal("{} problems could not be drawn from seed {}", count, seed);
    const std::optional<Problem> drawn = draw_one(draws);
    if (!drawn || !asked(*drawn) || !ids.insert(drawn->id()).second) continue;
    suite.problems.push_back({fmt::format("drawn_{}", suite.problems.size() + 1), {*drawn, Layout::kBhsd}});
  }
  return suite;
}

std::string print_suite(const Suite& suite, const std::string& comment) {
  std::string text = fmt::format("# {}\nname: {}\nproblems:\n", comment, suite.name);
  for (const NamedProblem& named : suite.problems) {
    text += fmt::format("  - {{name: {}", named.name);
    for (const ProblemField& field : problem_fields()) {
      const FieldValue value = field.get(named.problem);
      if (std::holds_alternative<std::monostate>(value)) continue;
      // Causal says its alignment and its right side.
      if (named.problem.mask.is_causal() && (field.name == "window_right" || field.name == "window_alignment"))
        continue;
      if (named.problem.mask.none() && field.name == "window_alignment") continue;
      text += fmt::format(", {}: {}", field.suite_key, field_text(value));
    }
    text += fmt::format(", layout: {}}}\n", to_string(named.problem.layout));
  }
  return text;
}

}  // namespace flashcore
