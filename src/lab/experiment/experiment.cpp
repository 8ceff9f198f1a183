#include "lab/experiment/experiment.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/yaml_reader.h"
#include "kernels/family.h"

namespace flashcore {
namespace {

constexpr const char* kWhat = "an experiment";
// The name of a folder; of file systems, 255 bytes is the most.
constexpr std::size_t kMaxName = 100;
constexpr double kMaxRatio = 1000;

bool is_word(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
}

class ExperimentReader {
 public:
  explicit ExperimentReader(const std::filesystem::path& file) : reader_(file.string()), file_(file) {}

  Experiment read(std::string_view text) {
    const YAML::Node root = reader_.parse(text);
    reader_.check_keys(root, kWhat,
                       {"name", "hypothesis", "mechanism", "refuted_by", "known", "closed", "control", "candidates",
                        "problems", "acceptance", "regime", "condition"});
    experiment_.file = file_;
    experiment_.name = reader_.text(root, "name", kWhat);
    if (!is_word(experiment_.name))
      reader_.fail(root["name"], "name is not a word of letters, digits and '_'; it names a folder");
    if (experiment_.name.size() > kMaxName)
      reader_.fail(root["name"], fmt::format("name has {} letters; it names a folder: use at most {}",
                                             experiment_.name.size(), kMaxName));
    experiment_.hypothesis = reader_.text(root, "hypothesis", kWhat);
    experiment_.mechanism = reader_.text(root, "mechanism", kWhat);
    experiment_.refuted_by = reader_.text(root, "refuted_by", kWhat);
    if (root["known"]) experiment_.known = reader_.text(root, "known", kWhat);
    if (root["closed"]) experiment_.closed = read_closed(root["closed"]);
    read_acceptance(root);
    experiment_.control = read_arm(reader_.need(root, "control", kWhat), false);
    read_candidates(root);
    experiment_.problems = reader_.locate_each(root, "problems", kWhat, [](const std::string& id) {
      return NamedProblem{id, PlacedProblem::parse(id)};
    });
    experiment_.regime = parse_regime(reader_.word(root, "regime", {"graph", "cold", "warm"}, "graph"));
    experiment_.condition = parse_condition(reader_.word(root, "condition", {"burst", "sustained"}, "burst"));
    return experiment_;
  }

 private:
  ClosedExperiment read_closed(const YAML::Node& node) const {
    constexpr const char* kClosed = "closed";
    reader_.check_keys(node, kClosed, {"verdict", "finding", "last_commit"});
    ClosedExperiment closed;
    closed.verdict = reader_.locate(
        node["verdict"], [&] { return parse_word<HypothesisVerdict>(reader_.text(node, "verdict", kClosed)); });
    closed.finding = reader_.text(node, "finding", kClosed);
    closed.last_commit = reader_.text(node, "last_commit", kClosed);
    return closed;
  }

  void read_acceptance(const YAML::Node& root) {
    const YAML::Node node = root["acceptance"];
    if (!node) return;
    reader_.check_keys(node, "acceptance", {"margin", "processes", "seconds", "confirmed_when"});
    experiment_.margin = reader_.number_or(node, "margin", experiment_.margin);
    const std::int64_t processes = reader_.whole_or(node, "processes", experiment_.processes);
    experiment_.max_seconds = reader_.number_or(node, "seconds", experiment_.max_seconds);
    experiment_.every = reader_.word(node, "confirmed_when", {"every", "most"}, "every") == "every";
    if (!(experiment_.margin > 0 && experiment_.margin < 1))
      reader_.fail(node, "margin is a share between 0 and 1, as 0.03");
    if (processes < 1 || processes > 100)
      reader_.fail(node, "processes is a number from 1 to 100; a published verdict needs 3");
    experiment_.processes = static_cast<int>(processes);
    if (!(experiment_.max_seconds > 0 && experiment_.max_seconds <= 600))
      reader_.fail(node, "seconds goes from 0 to 600");
  }

  void read_candidates(const YAML::Node& root) {
    std::set<std::string> names = {experiment_.control.name};
    for (const YAML::Node& node : reader_.items(root, "candidates", kWhat, "{name, candidate, predicted}")) {
      experiment_.candidates.push_back(read_arm(node, true));
      if (!names.insert(experiment_.candidates.back().name).second)
        reader_.fail(node, fmt::format("the name '{}' is used twice", experiment_.candidates.back().name));
    }
  }

  ExperimentArm read_arm(const YAML::Node& node, bool predicted) {
    const char* what = predicted ? "a candidate" : "the control";
    std::vector<std::string> keys = {"name", "candidate", "patch"};
    if (predicted) keys.insert(keys.end(), {"predicted", "predicted_error"});
    reader_.check_keys(node, what, keys);
    ExperimentArm arm;
    arm.name = reader_.text(node, "name", what);
    arm.candidate = reader_.text(node, "candidate", what);
    const std::size_t colon = std::min(arm.candidate.find(':'), arm.candidate.size());
    const std::string family = arm.candidate.substr(0, colon);
    const std::filesystem::path folder = reader_.text_or(node, "patch", "");
    reader_.locate(node, [&] {
      family_by_name(family);
      if (!folder.empty()) {
        arm.patch = load_patch(inside(folder), family, folder.filename().string());
        make_patched_family(*arm.patch);
        arm.candidate = arm.patch->family_name() + arm.candidate.substr(colon);
      }
    });
    if (predicted) arm.predicted = read_prediction(reader_.need(node, "predicted", what));
    if (predicted && node["predicted_error"]) arm.predicted_error = read_error_prediction(node["predicted_error"]);
    return arm;
  }

  // Somebody else's experiment must not read folders of the user's, whose lines a compiler's messages would show.
  std::filesystem::path inside(const std::filesystem::path& folder) const {
    std::error_code ignored;
    const auto base = std::filesystem::weakly_canonical(file_.has_parent_path() ? file_.parent_path() : ".", ignored);
    const auto whole = std::filesystem::weakly_canonical(base / folder, ignored);
    const auto below = whole.lexically_relative(base);
    if (below.empty() || below == "." || *below.begin() == "..")
      throw_bad_input("the patch folder {} is not inside the experiment's folder; copy it beside the file",
                      folder.string());
    return whole;
  }

  Prediction read_range(const YAML::Node& node, const std::string& name, const char* of) const {
    std::vector<double> range;
    if (node.IsSequence() && node.size() == 2)
      for (const YAML::Node& bound : node) range.push_back(reader_.number_of(bound, "a bound of " + name));
    if (range.size() != 2 || !(range[0] > 0 && range[0] <= range[1] && range[1] <= kMaxRatio))
      reader_.fail(node, fmt::format("{0} is not a range of {1} (the lower one first, above 0, at most {2}); write "
                                     "{0}: [1.02, 1.10]",
                                     name, of, kMaxRatio));
    return {range[0], range[1]};
  }

  ErrorPrediction read_error_prediction(const YAML::Node& node) const {
    reader_.check_keys(node, "predicted_error", {"o", "lse"});
    constexpr const char* kOf = "a candidate's error over the control's";
    ErrorPrediction prediction;
    if (node["o"]) prediction.o = read_range(node["o"], "o", kOf);
    if (node["lse"]) prediction.lse = read_range(node["lse"], "lse", kOf);
    return prediction;
  }

  Prediction read_prediction(const YAML::Node& node) const {
    const Prediction prediction = read_range(node, "predicted", "speed-ups over the control");
    const auto allows = [&](SpeedVerdict verdict) { return prediction.allows(verdict, experiment_.margin); };
    if (allows(SpeedVerdict::kFaster) && allows(SpeedVerdict::kSlower) && allows(SpeedVerdict::kSame))
      reader_.fail(node, "this prediction agrees with every verdict, so nothing could refute it; narrow it");
    return prediction;
  }

  YamlReader reader_;
  std::filesystem::path file_;
  Experiment experiment_;
};

}  // namespace

double Prediction::middle() const { return std::sqrt(low * high); }

bool Prediction::allows(SpeedVerdict verdict, double margin) const {
  if (verdict == SpeedVerdict::kFaster) return high > 1 + margin / 2;
  if (verdict == SpeedVerdict::kSlower) return low < 1 / (1 + margin / 2);
  return verdict == SpeedVerdict::kSame && low < 1 + margin && high > 1 / (1 + margin);
}

std::vector<Patch> Experiment::patches() const {
  std::vector<Patch> all;
  const auto add = [&](const ExperimentArm& arm) {
    if (arm.patch && std::find(all.begin(), all.end(), *arm.patch) == all.end()) all.push_back(*arm.patch);
  };
  add(control);
  for (const ExperimentArm& arm : candidates) add(arm);
  return all;
}

Experiment load_experiment(const std::filesystem::path& file) { return parse_experiment(read_file(file), file); }

Experiment parse_experiment(std::string_view text, const std::filesystem::path& file) {
  return ExperimentReader(file).read(text);
}

RangePlace place_in_range(const Prediction& predicted, double ci95_low, double ci95_high) {
  if (ci95_low > predicted.high) return RangePlace::kAbove;
  return ci95_high < predicted.low ? RangePlace::kBelow : RangePlace::kWithin;
}

HypothesisVerdict outcome_of(const Prediction& predicted, const Comparison& measured, double margin) {
  const SpeedVerdict verdict = measured.verdict;
  if (verdict != SpeedVerdict::kFaster && verdict != SpeedVerdict::kSlower && verdict != SpeedVerdict::kSame)
    return HypothesisVerdict::kInconclusive;
  if (!predicted.allows(verdict, margin)) return HypothesisVerdict::kRefuted;
  return place_in_range(predicted, measured.ci95_low, measured.ci95_high) == RangePlace::kWithin
             ? HypothesisVerdict::kConfirmed
             : HypothesisVerdict::kSizeOutside;
}

HypothesisVerdict overall_outcome(const std::vector<HypothesisVerdict>& outcomes, bool every) {
  const auto count = [&](HypothesisVerdict outcome) {
    return static_cast<std::size_t>(std::count(outcomes.begin(), outcomes.end(), outcome));
  };
  const std::size_t confirmed = count(HypothesisVerdict::kConfirmed), refuted = count(HypothesisVerdict::kRefuted);
  if (every ? refuted > 0 : 2 * refuted > outcomes.size()) return HypothesisVerdict::kRefuted;
  const auto enough = [&](std::size_t agree) {
    return !outcomes.empty() && (every ? agree == outcomes.size() : 2 * agree > outcomes.size());
  };
  if (enough(confirmed)) return HypothesisVerdict::kConfirmed;
  return enough(confirmed + count(HypothesisVerdict::kSizeOutside)) ? HypothesisVerdict::kSizeOutside
                                                                    : HypothesisVerdict::kInconclusive;
}

PlacedProblem shrunk_for_emulator(PlacedProblem problem, std::int64_t rows) {
  problem.batch = 1;
  problem.heads_q = problem.group_size();
  problem.heads_kv = 1;
  problem.seqlen_q = std::min(problem.seqlen_q, rows);
  problem.seqlen_kv = std::min(problem.seqlen_kv, rows);
  return problem;
}

}  // namespace flashcore
