#include "lab/campaign/ranking.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "kernels/family.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kCausesOfDocument = 5;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Depth first: `look` is shown every object and array with the key that it lies under.
template <class Look>
void walk(const json& j, const std::string& key, const Look& look) {
  look(key, j);
  if (j.is_object())
    for (const auto& [name, value] : j.items()) walk(value, name, look);
  if (j.is_array())
    for (const json& value : j) walk(value, key, look);
}

std::string first_text(const json& j, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = j.find(key); found != j.end() && found->is_string()) return found->get<std::string>();
  return "";
}

bool is_ranked_list(const std::string& key, const json& j) {
  static const std::vector<std::string> names = {"bottlenecks", "sensitivities", "ranking", "ranked"};
  return j.is_array() && !j.empty() && j.front().is_object() &&
         std::find(names.begin(), names.end(), key) != names.end();
}

struct Point {
  const char* word;
  std::vector<std::string> fields;
};
// First match counts, so that "shared memory" is no "memory".
const std::vector<Point>& points() {
  static const std::vector<Point> all = {
      {"spill", {"block_m", "num_warps", "num_consumers", "block_n"}},
      {"stack", {"block_m", "num_warps", "num_consumers"}},
      {"occupancy", {"block_m", "num_stages", "num_warps", "block_n"}},
      {"register", {"block_m", "num_warps", "num_consumers"}},
      {"bank", {"block_n", "num_warps"}},
      {"shared", {"block_n", "num_stages"}},
      {"overlap", {"num_stages", "block_n"}},
      {"load", {"num_stages", "block_n", "block_m"}},
      {"latency", {"num_stages", "num_warps", "block_n"}},
      {"wave", {"block_m", "kv_split", "num_splits", "key_split"}},
      {"grid", {"block_m", "kv_split", "num_splits", "key_split"}},
      {"barrier", {"num_stages", "num_warps", "block_n"}},
      {"exp", {"block_n", "num_consumers", "rescale_threshold"}},
      {"special", {"block_n", "num_consumers", "rescale_threshold"}},
      {"multipl", {"block_m", "block_n"}},
      {"tensor", {"block_m", "block_n", "num_consumers"}},
      {"fma", {"block_m", "block_n"}},
      {"coalesc", {"block_n"}},
      {"l2", {"block_m", "cluster_m", "block_n"}},
      {"dram", {"block_m", "cluster_m", "num_stages"}},
      {"cache", {"block_m", "block_n"}},
      {"memory", {"block_m", "block_n", "num_stages"}},
      {"store", {"block_m"}},
      {"thread", {"threads"}},
      {"busy", {"threads"}},
  };
  return all;
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
  // What was planted and measured comes before what a model says.
  for (const char* phase : {"inversion", "profile"}) {
    const CampaignPhase* found = state.find(phase);
    if (!found) continue;
    for (const CampaignCommand& command : found->commands) {
      std::size_t taken = 0;
      walk(result_of(folder, command), "", [&](const std::string& key, const json& j) {
        if (!is_ranked_list(key, j) || taken > 0) return;
        for (const json& entry : j) {
          if (!entry.is_object() || ++taken > kCausesOfDocument) continue;
          causes.push_back({phase, command.problem,
                            first_text(entry, {"cause", "name", "what", "variant", "pathology", "bottleneck", "title"}),
                            first_text(entry, {"sentence", "summary", "text", "meaning"})});
        }
      });
    }
  }
  std::erase_if(causes, [](const RankedCause& c) { return c.name.empty() && c.sentence.empty(); });
  return causes;
}

std::vector<ProfileMetric> metrics_of_profiles(const std::filesystem::path& folder, const CampaignState& state,
                                               const std::vector<std::string>& parts) {
  std::vector<ProfileMetric> metrics;
  const CampaignPhase* phase = state.find("profile");
  if (!phase) return metrics;
  for (const CampaignCommand& command : phase->commands)
    walk(result_of(folder, command), "", [&](const std::string&, const json& j) {
      if (!j.is_object()) return;
      const std::string name = first_text(j, {"name", "metric", "indicator"}), small = lower(name);
      const auto value = j.find("value"), met = j.find("met");
      const bool named = !name.empty() && std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
        return small.find(part) != std::string::npos;
      });
      if (!named || value == j.end() || !value->is_number()) return;
      ProfileMetric metric{command.problem, name, first_text(j, {"unit"}), value->get<double>(), std::nullopt};
      if (met != j.end() && met->is_boolean()) metric.met = met->get<bool>();
      metrics.push_back(std::move(metric));
    });
  return metrics;
}

std::vector<std::string> fields_for(std::string_view cause) {
  const std::string text = lower(cause);
  for (const Point& point : points())
    if (text.find(point.word) != std::string::npos) return point.fields;
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
      for (const std::string& name : fields_for(cause.name.empty() ? cause.sentence : cause.name)) {
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
          trials.push_back({id, current->print(), text, name, cause.name.empty() ? cause.sentence : cause.name});
        }
      }
    }
  }
  return trials;
}

}  // namespace flashcore
