#pragma once
// Shared by the ways of checking: a suite (check.cpp), the fuzzer (check_fuzz.cpp), and those of a flag of their own.

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/fuzz_flags.h"
#include "lab/gates/evaluate.h"
#include "lab/process/worker.h"

namespace flashcore::cli {

struct CheckOptions {
  Common common;
  std::vector<std::string> patterns;
  bool conformance = false, planted = false, needles = false;
  std::vector<std::int64_t> seqlens_kv = {131072}, head_dims = {64, 128, 256};  // of --needles
  std::string record, recording;                                                // files: of --conformance
  int random_configs = -1;                                                      // not said
  FuzzFlags fuzz;
  std::string again;  // a file: of --fuzz
  int neighbours = 0;
  int jobs = 0;
  std::uint64_t seed = 1;
};

enum class Judgement { kPassed, kFailed, kSkipped };

struct CheckTally {
  int passed = 0, failed = 0, lacking = 0;  // lacking: what the machine could not try
  std::map<std::string, int> skipped;       // reason -> times
  Judgement count(const Trial& trial);
};

EvaluateRequest check_request(const NamedProblem& problem, const std::string& suite, const Candidate& candidate,
                              const std::vector<Pattern>& patterns, std::uint64_t seed);

// body(worker, mutex, i) for 0 <= i < count, spread over worker processes; the mutex guards what bodies share. Ctrl-C
// ends those in hand without a result.
void for_each_with_worker(const CheckOptions& options, const DeviceInfo& device, std::int64_t count,
                          const std::function<void(Worker&, std::mutex&, std::int64_t)>& body);

// Summary line and exit code.
int conclude(Console& console, const CheckTally& tally);
// JSON as well, of schema flashcore.check/1.
int finish(const CheckOptions& options, Console& console, const CheckTally& tally, const nlohmann::json& results);

int check_fuzz(const CheckOptions& options, const DeviceInfo& device);
int check_planted(const CheckOptions& options);
int check_conformance(const CheckOptions& options);
int check_needles(const CheckOptions& options);
int check_neighbours(const CheckOptions& options);

}  // namespace flashcore::cli
