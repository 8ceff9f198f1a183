#pragma once
// tune() with worker processes on the fake device.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "lab/fake.h"
#include "lab/tune/tune.h"
#include "temporary_folder.h"

namespace flashcore::test {

// The families are known to both sides.
class TuneTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return folder_ / "trials.db"; }

  static TuneOptions options_for(const std::string& family, int trials) {
    TuneOptions options;
    options.device = "fake";
    options.suite.name = "test";
    PlacedProblem problem;
    problem.dtype = DType::kF32;
    problem.seqlen_q = problem.seqlen_kv = 19;
    problem.head_dim = problem.head_dim_v = 8;
    problem.mask = Mask::causal();
    options.suite.problems = {{"tiny", problem}};
    options.family = family;
    options.budget_trials = trials;
    options.worker_executable = FLASHCORE_WORKER_HELPER;
    return options;
  }
  static TuneResult run(const TuneOptions& options, Store& store) { return tune(options, store, {}, {}); }

  AllFakeFamilies families_;
  const TemporaryFolder own_folder_;
  const std::filesystem::path folder_ = own_folder_.path();
};

}  // namespace flashcore::test
