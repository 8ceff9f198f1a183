// Shrinking of a failing fuzz case to the smallest that still fails.

#include <algorithm>
#include <cmath>

#include "lab/record/machine.h"
#include "lab/verify/fuzz.h"

namespace flashcore {

namespace {

int rank(Pattern pattern) {
  const auto& all = all_patterns();
  return static_cast<int>(std::find(all.begin(), all.end(), pattern) - all.begin());
}

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

class Simplifier {
 public:
  Simplifier(const FuzzCase& from, const DeviceLimits& device)
      : from_(from), device_(device), before_(complexity(from, device)) {}

  // Offers `from` changed by `edit`, also with the default config where its own does not suit the simpler problem.
  template <class Edit>
  void offer(const Edit& edit) {
    FuzzCase c = from_;
    edit(c);
    if (c.candidate.family->why_unsupported(c.problem, device_)) return;
    if (!valid(c, device_)) c.candidate.config = c.candidate.family->default_config(c.problem, device_);
    if (c != from_ && valid(c, device_) && complexity(c, device_) < before_) cases.push_back(std::move(c));
  }
  void offer_sizes(std::int64_t Problem::*size, std::int64_t least) {
    for (const std::int64_t smaller : smaller_sizes(from_.problem.*size, least)) {
      offer([&](FuzzCase& c) { c.problem.*size = smaller; });
    }
  }

  std::vector<FuzzCase> cases;

 private:
  const FuzzCase& from_;
  const DeviceLimits& device_;
  double before_;
};

void offer_features(Simplifier& simplify, const FuzzCase& from, const DeviceLimits& device) {
  simplify.offer([](FuzzCase& c) { c.problem.layout = Layout::kBhsd; });
  simplify.offer([](FuzzCase& c) { c.problem.scale.reset(); });
  simplify.offer([](FuzzCase& c) { c.problem.mask = Mask(); });
  simplify.offer([](FuzzCase& c) { c.problem.mask = Mask::causal(); });
  simplify.offer([](FuzzCase& c) { c.problem.head_dim_v = c.problem.head_dim; });
  for (const Pattern pattern : all_patterns()) {
    if (rank(pattern) < rank(from.pattern)) simplify.offer([pattern](FuzzCase& c) { c.pattern = pattern; });
  }
  const ConfigValues usual = from.candidate.family->default_config(from.problem, device);
  simplify.offer([&](FuzzCase& c) { c.candidate.config = usual; });
  for (std::size_t i = 0; i < usual.size(); ++i) {
    simplify.offer([&](FuzzCase& c) { c.candidate.config[i] = usual[i]; });
  }
}

void offer_heads(Simplifier& simplify, const Problem& from) {
  simplify.offer([](FuzzCase& c) { c.problem.heads_q = c.problem.heads_kv = 1; });
  for (const std::int64_t heads_kv : smaller_sizes(from.heads_kv, 1)) {
    simplify.offer(
        [&](FuzzCase& c) { c.problem.heads_q = heads_kv * from.group_size(), c.problem.heads_kv = heads_kv; });
  }
  for (const std::int64_t group : smaller_sizes(from.group_size(), 1)) {
    simplify.offer([&](FuzzCase& c) { c.problem.heads_q = from.heads_kv * group; });
  }
}

}  // namespace

double complexity(const FuzzCase& c, const DeviceLimits& device) {
  const Problem& p = c.problem;
  const ConfigValues usual = c.candidate.family->default_config(p, device);
  int unusual_fields = 0;
  for (std::size_t i = 0; i < usual.size(); ++i) unusual_fields += c.candidate.config[i] != usual[i] ? 1 : 0;
  // Sizes dominate, features come next: a reader wants few numbers to look at, then few things to think of.
  const double sizes =
      static_cast<double>(p.batch + p.heads_q + p.heads_kv + p.seqlen_q + p.seqlen_kv + p.head_dim + p.head_dim_v);
  const double features = (p.mask.left ? 1 : 0) + (p.mask.right ? 1 : 0) + (p.mask.right.value_or(0) != 0 ? 1 : 0) +
                          (p.mask.alignment == Alignment::kTopLeft ? 1 : 0) + (p.layout == Layout::kBhsd ? 0 : 1) +
                          (p.scale ? 1 : 0) + (p.head_dim_v != p.head_dim ? 1 : 0) + rank(c.pattern);
  return sizes * 1000 + features * 20 + unusual_fields;
}

std::vector<FuzzCase> simpler_cases(const FuzzCase& from, const DeviceLimits& device) {
  Simplifier simplify(from, device);
  simplify.offer([](FuzzCase& c) { c.problem.batch = 1; });
  offer_heads(simplify, from.problem);
  simplify.offer_sizes(&Problem::batch, 1);
  simplify.offer_sizes(&Problem::seqlen_q, 1);
  simplify.offer_sizes(&Problem::seqlen_kv, 1);
  for (const std::int64_t smaller : smaller_head_dims(from.problem.head_dim)) {
    simplify.offer([&](FuzzCase& c) {
      c.problem.head_dim = smaller, c.problem.head_dim_v = std::min(c.problem.head_dim_v, smaller);
    });
  }
  for (const std::int64_t smaller : smaller_head_dims(from.problem.head_dim_v)) {
    simplify.offer([&](FuzzCase& c) { c.problem.head_dim_v = smaller; });
  }
  offer_features(simplify, from, device);
  return simplify.cases;
}

FuzzCase shrink(const FuzzCase& failing, const DeviceLimits& device,
                const std::function<bool(const FuzzCase&)>& still_fails, int max_runs) {
  FuzzCase smallest = failing;
  int runs = 0;
  for (bool progress = true; progress && runs < max_runs;) {
    progress = false;
    for (const FuzzCase& simpler : simpler_cases(smallest, device)) {
      if (runs >= max_runs) break;
      ++runs;
      if (!still_fails(simpler)) continue;
      smallest = simpler;
      progress = true;
      break;
    }
  }
  return smallest;
}

std::string repro_command(const FuzzCase& c, const std::string& device_id) {
  return fmt::format("{}flashcore check --device {} --problem {} --family {} --config {} --patterns {} --seed {}",
                     repro_prefix(repro_variables(), device_id), device_id, c.problem.id(), c.candidate.family->name(),
                     c.candidate.family->space().print(c.candidate.config), to_string(c.pattern), c.seed);
}

}  // namespace flashcore
