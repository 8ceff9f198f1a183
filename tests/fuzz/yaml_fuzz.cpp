// Suites, experiments and patches.
#include "core/suite.h"
#include "lab/experiment/experiment.h"
#include "target.h"

namespace flashcore::fuzz {
namespace {

const Target kSuite("suite", [](std::string_view input) {
  const Suite suite = parse_suite(input, "suite.yaml");
  FLASHCORE_REQUIRE(!suite.problems.empty());
  for (const NamedProblem& named : suite.problems) {
    named.problem.validate();
    FLASHCORE_REQUIRE(find_problem(suite, named.name).problem == named.problem);
  }
});

const Target kExperiment("experiment", [](std::string_view input) {
  // Patches lie beside the file: nothing outside patch_folders() is read, and nothing is compiled.
  const Experiment experiment = parse_experiment(input, patch_folders() / "experiment.yaml");
  FLASHCORE_REQUIRE(!experiment.candidates.empty() && !experiment.problems.empty());
  FLASHCORE_REQUIRE(experiment.processes >= 1 && experiment.max_seconds > 0 && experiment.max_seconds <= 600);
  for (const ExperimentArm& arm : experiment.candidates) FLASHCORE_REQUIRE(arm.predicted.middle() <= 1000);
});

const Target kPatch("patch", [](std::string_view input) {
  Patch patch;
  parse_patch_yaml(input, "patch.yaml", patch);
  for (const auto& [field, values] : patch.extend)
    for (const int value : values) FLASHCORE_REQUIRE(value >= 0);
});

}  // namespace
}  // namespace flashcore::fuzz
