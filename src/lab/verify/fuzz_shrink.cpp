// Shrinking of a failing fuzz case to the smallest that still fails.

#include <algorithm>
#include <cmath>

#include "core/problem_fields.h"
#include "lab/record/machine.h"
#include "lab/verify/fuzz.h"

namespace flashcore {

namespace {

int rank(Pattern pattern) {
  const auto& all = all_patterns();
  return static_cast<int>(std::find(all.begin(), all.end(), pattern) - all.begin());
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
  std::vector<FuzzCase> cases;

 private:
  const FuzzCase& from_;
  const DeviceLimits& device_;
  double before_;
};

}  // namespace

double complexity(const FuzzCase& c, const DeviceLimits& device) {
  const ConfigValues usual = c.candidate.family->default_config(c.problem, device);
  int unusual_fields = 0;
  for (std::size_t i = 0; i < usual.size(); ++i) unusual_fields += c.candidate.config[i] != usual[i] ? 1 : 0;
  // What is not of the problem weighs as its features do, and a field of the config less.
  const double beside = (c.problem.layout == Layout::kBhsd ? 0 : 1) + rank(c.pattern);
  return complexity(c.problem.problem()) + beside * 20 + unusual_fields;
}

std::vector<FuzzCase> simpler_cases(const FuzzCase& from, const DeviceLimits& device) {
  Simplifier simplify(from, device);
  for (const Problem& problem : simpler_problems(from.problem))
    simplify.offer([&](FuzzCase& c) { c.problem = {problem, from.problem.layout}; });
  simplify.offer([](FuzzCase& c) { c.problem.layout = Layout::kBhsd; });
  for (const Pattern pattern : all_patterns()) {
    if (rank(pattern) < rank(from.pattern)) simplify.offer([pattern](FuzzCase& c) { c.pattern = pattern; });
  }
  const ConfigValues usual = from.candidate.family->default_config(from.problem, device);
  simplify.offer([&](FuzzCase& c) { c.candidate.config = usual; });
  for (std::size_t i = 0; i < usual.size(); ++i) {
    simplify.offer([&](FuzzCase& c) { c.candidate.config[i] = usual[i]; });
  }
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
                     repro_prefix(repro_variables(), device_id), device_id, shell_quote(c.problem.portable()),
                     c.candidate.family->name(), c.candidate.family->space().print(c.candidate.config),
                     to_string(c.pattern), c.seed);
}

}  // namespace flashcore
