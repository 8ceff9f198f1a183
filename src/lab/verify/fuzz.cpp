#include "lab/verify/fuzz.h"

#include <algorithm>
#include <array>

#include "core/problem_fields.h"

namespace flashcore {

std::vector<FuzzKind> kinds_of(const Problem& problem) {
  const Mask& mask = problem.mask;
  const bool bounded = mask.left.has_value() || (mask.right && !mask.is_causal());
  std::vector<FuzzKind> kinds;
  const auto add = [&](FuzzKind kind, bool is) {
    if (is) kinds.push_back(kind);
  };
  add(FuzzKind::k8Bit, problem.is_8bit());
  add(FuzzKind::kQuantisedCache, problem.has_quantised_cache());
  add(FuzzKind::kPaged, problem.paged());
  add(FuzzKind::kRagged, problem.ragged());
  add(FuzzKind::kMasked, bounded || problem.has_mask_expression());
  add(FuzzKind::kScored, problem.has_score() || problem.has_score_expression());
  return kinds;
}

FuzzLimits fuzz_limits(const DeviceLimits& device, std::vector<FuzzKind> kinds) {
  FuzzLimits limits;
  if (device.emulated) limits.max_flops = 4e7;
  limits.kinds = std::move(kinds);
  return limits;
}

std::vector<const Family*> families_to_fuzz(const DeviceLimits& device, std::string_view name) {
  std::vector<const Family*> families;
  for (const Family* family : all_families())
    if (family->kind() == device.kind && (name.empty() || family->name() == name)) families.push_back(family);
  return families;
}

namespace {

bool is_of_any(const Problem& problem, const std::vector<FuzzKind>& wanted) {
  if (wanted.empty()) return true;
  const std::vector<FuzzKind> kinds = kinds_of(problem);
  return std::ranges::find_first_of(kinds, wanted) != kinds.end();
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  Draws random(a ^ (b * 0xd1342543de82ef95ULL));
  random.next();
  return random.next();
}

constexpr std::array<Layout, 3> kLayouts = {Layout::kBhsd, Layout::kBshd, Layout::kStrided};

double full_flops(const Problem& p) {
  return 2.0 * static_cast<double>(p.head_dim + p.head_dim_v) * static_cast<double>(p.batch * p.heads_q) *
         static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_kv);
}

std::int64_t elements(const Problem& p) {
  return p.batch * (p.heads_q * p.seqlen_q + p.heads_kv * p.seqlen_kv) * (p.head_dim + p.head_dim_v);
}

bool affordable(const Problem& p, const FuzzLimits& limits) {
  return full_flops(p) <= limits.max_flops && elements(p) <= limits.max_elements;
}

// Cheapens without touching lengths, dims or the group size, which carry the edge cases; lengths only if that is not
// enough.
void make_affordable(Problem& p, const FuzzLimits& limits) {
  while (!affordable(p, limits)) {
    if (p.batch > 1) {
      p.batch = (p.batch + 1) / 2;
    } else if (p.heads_kv > 1) {
      const std::int64_t group = p.group_size();
      p.heads_kv = (p.heads_kv + 1) / 2;
      p.heads_q = p.heads_kv * group;
    } else if (p.seqlen_kv > 64 || p.seqlen_q > 64) {
      std::int64_t& longest = p.seqlen_kv >= p.seqlen_q ? p.seqlen_kv : p.seqlen_q;
      longest = longest / 2 + 1;
    } else if (p.heads_q > 1) {
      p.heads_q = (p.heads_q + 1) / 2;
    } else {
      p.seqlen_q = (p.seqlen_q + 1) / 2;
      p.seqlen_kv = (p.seqlen_kv + 1) / 2;
      if (p.seqlen_q <= 1 && p.seqlen_kv <= 1) return;
    }
  }
}

std::vector<int> tile_sizes(const Candidate& candidate) {
  std::vector<int> sizes;
  const auto& fields = candidate.family->space().fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name.starts_with("block_")) sizes.push_back(candidate.config[i]);
  }
  return sizes;
}

// A length that ends just before, at or just after a tile of this very config.
void aim_at_tile_edges(FuzzCase& c, Draws& random, const DeviceLimits& device, const FuzzLimits& limits) {
  const std::vector<int> tiles = tile_sizes(c.candidate);
  if (tiles.empty()) return;
  for (std::int64_t Problem::*length : {&Problem::seqlen_q, &Problem::seqlen_kv}) {
    if (!random.one_in(2)) continue;
    FuzzCase aimed = c;
    aimed.problem.*length =
        std::max<std::int64_t>(0, random.pick(tiles) * random.between(1, 3) + random.between(-1, 1));
    if (affordable(aimed.problem, limits) && valid(aimed, device)) c = aimed;
  }
  // The same of where a window begins.
  if (!c.problem.mask.left || !random.one_in(2)) return;
  FuzzCase aimed = c;
  aimed.problem.mask.left =
      std::max<std::int64_t>(0, random.pick(tiles) * random.between(0, 2) + random.between(-1, 1));
  if (valid(aimed, device)) c = aimed;
}

// None where a thousand draws are of none of the kinds.
std::optional<Problem> problem_of_kinds(Draws& random, const std::vector<FuzzKind>& kinds) {
  for (int attempt = 0; attempt < 1000; ++attempt)
    if (Problem problem = random_problem(random); is_of_any(problem, kinds)) return problem;
  return std::nullopt;
}

constexpr int kFamilyTries = 20, kProblemTries = 200;

}  // namespace

bool valid(const FuzzCase& c, const DeviceLimits& device) {
  return !c.candidate.family->why_unsupported(c.problem, device) &&
         !c.candidate.family->why_invalid(c.candidate.config, c.problem, device) &&
         c.candidate.family->keeps_bounds(c.candidate.config, c.problem);
}

namespace {

template <class IsFine>
ConfigValues draw_config(const Family& family, const Problem& problem, const DeviceLimits& device, std::uint64_t seed,
                         const IsFine& is_fine) {
  Draws random(seed);
  const ConfigSpace& space = family.space();
  for (int attempt = 0; attempt < 1000; ++attempt) {
    ConfigValues config = space.at(random.next() % space.size());
    if (!family.why_invalid(config, problem, device) && is_fine(config)) return config;
  }
  return family.default_config(problem, device);
}

}  // namespace

ConfigValues random_judged_config(const Family& family, const Problem& problem, const DeviceLimits& device,
                                  std::uint64_t seed) {
  return draw_config(family, problem, device, seed,
                     [&](const ConfigValues& config) { return family.keeps_bounds(config, problem); });
}

ConfigValues random_config(const Family& family, const Problem& problem, const DeviceLimits& device,
                           std::uint64_t seed) {
  return draw_config(family, problem, device, seed, [](const ConfigValues&) { return true; });
}

std::optional<FuzzCase> random_case(std::uint64_t seed, std::uint64_t index, const std::vector<const Family*>& families,
                                    const DeviceLimits& device, const FuzzLimits& limits) {
  if (families.empty()) return std::nullopt;
  Draws random(mix(seed, index));
  FuzzCase c;
  for (int families_tried = 0; families_tried < kFamilyTries; ++families_tried) {
    // Problems until one suits it: drawn anew with each problem, a family that takes one in twenty would hardly be
    // tried beside one that takes all.
    const Family* family = random.pick(families);
    for (int attempt = 0; attempt < kProblemTries; ++attempt) {
      const std::optional<Problem> problem = problem_of_kinds(random, limits.kinds);
      if (!problem) continue;
      c.problem = {*problem, random.pick(kLayouts)};
      make_affordable(c.problem, limits);
      if (family->why_unsupported(c.problem, device)) continue;
      // The default is what users get without tuning: tried often.
      c.candidate = {family, random.one_in(4) ? family->default_config(c.problem, device)
                                              : random_judged_config(*family, c.problem, device, random.next())};
      c.pattern = random.pick(patterns_of(c.problem));
      c.seed = random.next() % 1'000'000'000U;  // short enough to type
      aim_at_tile_edges(c, random, device, limits);
      return c;
    }
  }
  return std::nullopt;
}

}  // namespace flashcore
