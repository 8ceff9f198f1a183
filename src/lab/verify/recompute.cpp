#include "lab/verify/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/data.h"
#include "core/environment_error.h"
#include "core/foreign_text.h"
#include "core/parallel.h"
#include "core/problem_row.h"
#include "kernels/family.h"
#include "lab/gates/request.h"
#include "lab/harness/oracle.h"
#include "lab/record/freshness.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

// The gate looked at more rows of the reference, or drew other data where a seed was given: 0.9% apart at most over 12
// problems of results/h200/canonical.json.
constexpr double kBoundTolerance = 0.03;
constexpr double kReferenceFlops = 1e9;

class RowRecomputation {
 public:
  explicit RowRecomputation(const json& row) : row_(row), name_(name_of_row(row)) {}

  void compile(Recomputed& found) const {
    if (text_in(part(part(row_, "device"), "limits"), "kind") != "cuda" || text_in(row_, "code_hash").empty()) return;
    if (!freshness_of_row(row_).is_fresh()) return;
    const PlacedProblem problem = problem_of(row_);
    const DeviceLimits limits = row_.at("device").get<DeviceInfo>().limits;
    const Artifact artifact =
        compile_candidate(parse_candidate(candidate_of_row(row_), problem, limits), problem, limits);
    const std::string code = text_in(row_, "code_hash"), compiler = text_in(row_, "compiler");
    if (artifact.code_hash != code) {
      if (artifact.compiler == compiler)
        found.wrong.push_back(fmt::format("{}: {} makes the machine code {} of its source, and the row says {}", name_,
                                          excerpt(compiler), artifact.code_hash, excerpt(code)));
      else
        found.remarks.push_back(fmt::format("{}: {} compiled it, and {}, which is here, makes other code", name_,
                                            excerpt(compiler), artifact.compiler));
      return;
    }
    if (artifact.compiler != compiler)
      found.remarks.push_back(fmt::format("{}: it names the compiler '{}', and {} makes the same code", name_,
                                          excerpt(compiler), artifact.compiler));
    const json registers = part(row_, "registers");
    if (!registers.is_null() && registers != json(artifact.registers))
      found.wrong.push_back(fmt::format("{}: its machine code has {} registers, and the row says {}", name_,
                                        artifact.registers, registers.dump()));
  }

  void bound(Recomputed& found) const {
    const json recorded = part(part(row_, "correct"), "bound");
    if (!is_timed(row_) || !recorded.is_number()) return;
    const PlacedProblem problem = problem_of(row_);
    const double bound = recorded.get<double>();
    double highest = 0;
    for (const Pattern pattern : patterns_of(problem)) {  // the worst of them gave it, and the row does not say which
      const double again = shared_oracles().get(problem, pattern, EvaluateRequest().seed, kReferenceFlops)->bound.rel;
      if (std::abs(bound / again - 1) <= kBoundTolerance) return;
      highest = std::max(highest, again);
    }
    if (bound > highest)
      found.wrong.push_back(fmt::format(
          "{}: its correctness bound is {:.4g}, and the highest that the reference gives its problem is {:.4g}", name_,
          bound, highest));
    else
      found.remarks.push_back(fmt::format(
          "{}: its correctness bound is {:.4g}, which the reference gives its problem on none of its data now", name_,
          bound));
  }

  template <class Compute>
  void attempt(const char* what, Recomputed& found, const Compute& compute) const {
    try {
      compute();
    } catch (const std::exception& e) {
      found.remarks.push_back(fmt::format("{}: {} could not be computed again: {}", name_, what,
                                          is_environment_error(e) ? environment_message(e) : std::string(e.what())));
    }
  }

 private:
  const json& row_;
  std::string name_;
};

}  // namespace

Recomputed recompute_rows(const json& rows) {
  std::vector<Recomputed> of(rows.size());
  parallel_for(static_cast<std::int64_t>(rows.size()), 0, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    if (!rows[at].is_object()) return;
    const RowRecomputation row(rows[at]);
    row.attempt("its machine code", of[at], [&] { row.compile(of[at]); });
  });
  Recomputed all;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].is_object()) {  // the reference uses all cores by itself, and its cache is of one thread
      const RowRecomputation row(rows[i]);
      row.attempt("its bound", of[i], [&] { row.bound(of[i]); });
    }
    all.wrong.insert(all.wrong.end(), of[i].wrong.begin(), of[i].wrong.end());
    all.remarks.insert(all.remarks.end(), of[i].remarks.begin(), of[i].remarks.end());
  }
  return all;
}

}  // namespace flashcore
