#include "lab/campaign/ranking.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/family.h"
#include "lab/campaign/fields.h"
#include "lab/diagnose/profile.h"
#include "lab/gates/pair.h"
#include "lab/invert/variant.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kCausesOfDocument = 5;

std::vector<RankedCause> faster_without(const json& result, const std::string& problem) {
  std::vector<RankedCause> causes;
  if (lenient::text(result, "unit") != "time") return causes;
  for (const json& entry : lenient::list(result, "ranking"))
    if (lenient::text(entry, "kind") == to_string(VariantKind::kLeaveOneOut) &&
        lenient::text(entry, "verdict") == to_string(SpeedVerdict::kFaster))
      causes.push_back({"inversion", problem, lenient::text(entry, "variant"), lenient::text(entry, "sentence")});
  return causes;
}

std::vector<RankedCause> bottlenecks_of(const json& result, const std::string& problem) {
  std::vector<RankedCause> causes;
  for (const json& entry : lenient::list(result, "bottlenecks"))
    causes.push_back({"profile", problem, lenient::text(entry, "name"), lenient::text(entry, "sentence")});
  return causes;
}

// Calls `look` with each result of each command of a phase.
template <class Look>
void each_result(const std::filesystem::path& folder, const CampaignState& state, const char* phase, const Look& look) {
  const CampaignPhase* found = state.find(phase);
  if (!found) return;
  for (const CampaignCommand& command : found->commands) {
    const json document = result_of(folder, command);
    for (const json& result : lenient::list(document, "results")) look(result, command.problem);
  }
}

// The values on both sides of the present one.
std::vector<int> neighbours(const Field& field, int value) {
  std::vector<int> out;
  const auto at = std::lower_bound(field.values.begin(), field.values.end(), value);
  if (at != field.values.begin()) out.push_back(*(at - 1));
  const auto above = std::upper_bound(field.values.begin(), field.values.end(), value);
  if (above != field.values.end()) out.push_back(*above);
  return out;
}

}  // namespace

std::vector<RankedCause> ranking_of(const std::filesystem::path& folder, const CampaignState& state) {
  std::vector<RankedCause> causes;
  const auto take = [&](const std::vector<RankedCause>& found) {
    std::size_t taken = 0;
    for (const RankedCause& cause : found)
      if (!cause.name.empty() && ++taken <= kCausesOfDocument) causes.push_back(cause);
  };
  // What was planted and measured comes before what a model says.
  each_result(folder, state, "inversion",
              [&](const json& result, const std::string& problem) { take(faster_without(result, problem)); });
  each_result(folder, state, "profile",
              [&](const json& result, const std::string& problem) { take(bottlenecks_of(result, problem)); });
  return causes;
}

std::vector<InversionAnswer> inversion_answers(const std::filesystem::path& folder, const CampaignState& state) {
  std::vector<InversionAnswer> answers;
  each_result(folder, state, "inversion", [&](const json& result, const std::string& problem) {
    if (const std::string answer = lenient::text(result, "answer"); !answer.empty())
      answers.push_back({problem, answer});
  });
  return answers;
}

std::vector<ProfileMetric> metrics_of_profiles(const std::filesystem::path& folder, const CampaignState& state,
                                               std::string_view name) {
  std::vector<ProfileMetric> metrics;
  each_result(folder, state, "profile", [&](const json& result, const std::string& problem) {
    for (const json& row : lenient::list(result, "indicators")) {
      const auto value = lenient::number(row, "value");
      const auto met = lenient::flag(row, "met");
      if (lenient::text(row, "name") == name && value && met)
        metrics.push_back({problem, lenient::text(row, "unit"), *value, *met});
    }
  });
  return metrics;
}

const std::vector<CauseFields>& cause_fields() {
  const auto of = [](Cause cause, std::vector<std::string> fields) {
    return CauseFields{std::string(to_string(cause)), std::move(fields)};
  };
  static const std::vector<CauseFields> all = {
      {"no_exponentials", {"block_n", "num_consumers", "rescale_threshold"}},
      {"quarter_multiplies", {"block_m", "block_n", "num_consumers"}},
      {"one_tile_loads", {"num_stages", "num_slots", "block_n", "block_m"}},
      {"no_stores", {"block_m"}},
      of(Cause::kSpills, {"block_m", "num_warps", "num_consumers", "block_n"}),
      of(Cause::kStack, {"block_m", "num_warps", "num_consumers"}),
      of(Cause::kLowOccupancy, {"block_m", "num_stages", "num_warps", "block_n"}),
      of(Cause::kSmallGrid, {"block_m", "kv_split", "num_splits"}),
      of(Cause::kLastWave, {"block_m", "kv_split", "num_splits"}),
      of(Cause::kBankConflicts, {"block_n", "num_warps"}),
      of(Cause::kUncoalesced, {"block_n"}),
      of(Cause::kNoOverlap, {"num_stages", "num_slots", "block_n"}),
      of(Cause::kDivergence, {}),  // of the kernel's code
      of(Cause::kBarriers, {"num_stages", "num_warps", "block_n"}),
      of(Cause::kExtraWork, {"block_m", "block_n"}),
      of(Cause::kBusyMachine, {}),  // of the machine: no candidate makes it quiet
      of(Cause::kTensorCores, {"block_m", "block_n", "num_consumers"}),
      of(Cause::kSpecialFunctions, {"block_n", "num_consumers", "rescale_threshold"}),
      of(Cause::kFmaUnits, {"block_m", "block_n"}),
      of(Cause::kSharedMemory, {"block_n", "num_stages"}),
      of(Cause::kL2, {"block_m", "cluster", "block_n"}),
      of(Cause::kDram, {"block_m", "cluster", "pack_heads", "num_stages"}),
      of(Cause::kLatency, {"num_stages", "num_slots", "num_warps", "block_n"}),
  };
  return all;
}

std::vector<std::string> fields_for(std::string_view cause) {
  for (const CauseFields& row : cause_fields())
    if (row.name == cause) return row.fields;
  return {};
}

std::vector<TargetedTrial> targeted_trials(const std::filesystem::path& folder, const CampaignState& state,
                                           const DeviceInfo& device, const std::vector<NamedProblem>& problems,
                                           std::size_t most) {
  const std::vector<RankedCause> causes = ranking_of(folder, state);
  std::vector<TargetedTrial> trials;
  for (const NamedProblem& named : problems) {
    const std::string id = named.problem.id();
    std::optional<Candidate> current;
    try {
      current = dispatch(named.problem, device).candidate;
    } catch (const Error&) {
      continue;  // no family runs it here
    }
    const auto& fields = current->family->space().fields();
    std::size_t of_problem = 0;
    for (const RankedCause& cause : causes) {
      if (cause.problem_id != id) continue;
      for (const std::string& name : fields_for(cause.name)) {
        const auto field = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.name == name; });
        if (field == fields.end()) continue;
        const auto index = static_cast<std::size_t>(field - fields.begin());
        for (const int value : neighbours(*field, current->config[index])) {
          Candidate other = *current;
          other.config[index] = value;
          try {
            parse_candidate(other.print(), named.problem, device.limits);
          } catch (const Error&) {
            continue;
          }
          const std::string text = other.print();
          const bool known = std::any_of(trials.begin(), trials.end(), [&](const TargetedTrial& t) {
            return t.problem_id == id && t.candidate == text;
          });
          if (known || of_problem >= most / std::max<std::size_t>(1, problems.size())) continue;
          ++of_problem;
          trials.push_back({id, current->print(), text, name, cause.name});
        }
      }
    }
  }
  return trials;
}

}  // namespace flashcore
