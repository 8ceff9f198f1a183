// Plants faults in copies of the kernel sources, one at a time; the emulated GPU, or the comparison with the reference
// of what it computed, must name each.

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "kernels/emulator_run.h"
#include "kernels/mutations/all.h"

namespace flashcore::testing {
namespace {

// `parts`: alternatives divided by '|'. Which of two reports comes first may depend on the order of threads.
bool names_one(const std::string& verdict, const std::string& parts) {
  std::istringstream stream(parts);
  for (std::string part; std::getline(stream, part, '|');) {
    if (verdict.find(part) != std::string::npos) return true;
  }
  return false;
}

// The line in the kernel, who, and how to see it again; of a race also the address and the other party with its line.
void expect_actionable(const std::string& report) {
  static const std::regex line(R"(kernels/\w+/\w+\.cuh:\d+ \w+)");
  EXPECT_TRUE(std::regex_search(report, line)) << report;
  EXPECT_NE(report.find("FLASHCORE_EMULATOR_SEED="), std::string::npos) << report;
  EXPECT_TRUE(std::regex_search(report, std::regex("threads? \\d|warpgroup \\d|mbarrier at offset"))) << report;
  if (!report.starts_with("race")) return;
  EXPECT_TRUE(std::regex_search(report, std::regex("(shared|global) memory 0x[0-9a-f]+ \\("))) << report;
  const std::size_t other = report.find("the other party: ");
  ASSERT_NE(other, std::string::npos) << report;
  EXPECT_TRUE(std::regex_search(report.substr(other), line)) << report;
}

class MutationTest : public ::testing::TestWithParam<Mutation> {};

TEST_P(MutationTest, IsNamed) {
  const Mutation& mutation = GetParam();
  SourceMap sources = device_sources();
  std::string& text = sources.at(mutation.file);
  const std::size_t at = text.find(mutation.from);
  ASSERT_NE(at, std::string::npos) << "the kernel no longer holds the text to change; adapt the mutation:\n"
                                   << mutation.from;
  text.replace(at, std::string_view(mutation.from).size(), mutation.to);
  const EmulatorRun run = run_on_emulator(sources, mutation.candidate, PlacedProblem::parse(mutation.problem));
  RecordProperty("verdict", run.verdict().substr(0, run.verdict().find('\n')));
  if (*mutation.why) {
    EXPECT_EQ(run.verdict(), "passed") << "listed as benign: " << mutation.why;
  } else {
    EXPECT_NE(run.verdict(), "passed");
    EXPECT_TRUE(names_one(run.verdict(), mutation.named)) << "expected: " << mutation.named << "\n" << run.verdict();
    if (!run.fault.empty()) expect_actionable(run.fault);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MutationTest, ::testing::ValuesIn(mutations()),
                         [](const auto& given) { return std::string(given.param.name); });

std::string family_of(const Mutation& mutation) {
  const std::string candidate = mutation.candidate;
  return candidate.substr(0, candidate.find(':'));
}

std::set<std::string> mutated_families() {
  std::set<std::string> families;
  for (const Mutation& mutation : mutations()) families.insert(family_of(mutation));
  return families;
}

// Without a change the same runs pass: what is named above is the fault.
class UnchangedTest : public ::testing::TestWithParam<std::string> {};

TEST_P(UnchangedTest, EveryCandidateOfTheMutationsPasses) {
  std::set<std::pair<std::string, std::string>> done;
  for (const Mutation& mutation : mutations()) {
    if (family_of(mutation) != GetParam() || !done.emplace(mutation.candidate, mutation.problem).second) continue;
    EXPECT_EQ(run_on_emulator(device_sources(), mutation.candidate, PlacedProblem::parse(mutation.problem)).verdict(),
              "passed")
        << mutation.candidate << " " << mutation.problem;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, UnchangedTest, ::testing::ValuesIn(mutated_families()),
                         [](const auto& given) { return given.param; });

}  // namespace
}  // namespace flashcore::testing
