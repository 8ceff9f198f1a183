#pragma once
// The long-context gate of 8 bits: does o show single keys of a long context as often as bf16's does, and how far does
// it drift from bf16's, for each interval at which sums of tensor cores are added to those in fp32 (promoted).

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/family.h"
#include "lab/process/worker.h"
#include "lab/verify/needle_data.h"

namespace flashcore {

// Of the needles, how many fewer 8 bits may find than bf16.
inline constexpr double kNeedleLoss = 0.02;

// A needle is found if what it leaves in its row of o is nearest to its own code. What it leaves: o less what all other
// keys give in fp64.
struct NeedleCount {
  int all = 0;
  std::vector<int> by_weight, by_place;  // in the order of kNeedleWeights and kNeedlePlaces
};

// Between two outputs, over the plain rows. Of o relative to the rms of bf16's.
struct Drift {
  double o_rms = 0, o_max = 0, lse_rms = 0, lse_max = 0;
};
// What quantising the inputs costs (fp64 of e4m3 inputs beside bf16's o) and what rounding theory grants an 8-bit
// kernel on those inputs (error_bound), together.
struct DriftLimit {
  double o_rms = 0, lse_max = 0;
};

struct NeedleVerdict {
  NeedleCount found;
  Drift drift;
  DriftLimit limit;
  bool finds = false;  // found.all >= bf16's - kNeedleLoss of the needles
  bool stays = false;  // drift within its limit
  bool passed() const { return finds && stays; }
  std::string words() const;  // "passes", "loses 7 needles", "drifts 0.31 of 0.012", or both of the latter
  int lost = 0;               // bf16's less found
};

// o: a row of head_dim values for each row of `data`; lse one.
NeedleCount count_found(const NeedleData& data, const std::vector<float>& o);
NeedleVerdict judge_needles(const NeedleData& data, const std::vector<float>& o, const std::vector<float>& lse,
                            const std::vector<float>& bf16_o, const std::vector<float>& bf16_lse);

// How often a candidate promotes. None of families that have no such field (a CPU's sums are in fp32).
struct Promotion {
  std::string field;  // "promote_every", "promote_keys"
  int value = 0;      // 0: never
  std::int64_t keys = 0;
};
std::optional<Promotion> promotion_of(const Candidate& candidate);

struct NeedleCandidate {
  Candidate candidate;
  bool gated = false;  // what a user gets, or has named: the others are asked for by name, and are told about only
};
// Without `pinned` (a family, or one with its config) what dispatch takes and each family that promotes. Of a family
// its default, which is gated too, and for each other interval the config that is nearest to it. None if nothing runs
// there, and why_none says why. Error kBadInput as parse_candidate for a config.
std::vector<NeedleCandidate> needle_candidates(const std::string& pinned, const Problem& problem,
                                               const DeviceInfo& device, std::string& why_none);

struct NeedleOptions {
  std::vector<std::int64_t> seqlens_kv, head_dims;
  std::uint64_t seed = 1;
  std::string pinned;
  double timeout_seconds = 0;  // of one launch and its judgement; 0: by what it computes
  std::function<void(int done, int total, const std::string& what)> progress = {};
  std::function<bool()> stop = [] { return false; };
};
struct NeedleResult {
  NeedleCandidate candidate;
  NeedleVerdict verdict;
  std::string failure = {};  // it did not compile, faulted, crashed or hung: there is no verdict
  bool passed() const { return failure.empty() && verdict.passed(); }
  std::string words() const { return failure.empty() ? verdict.words() : failure.substr(0, failure.find('\n')); }
};
struct NeedleRun {
  PlacedProblem problem;
  int needles = 0;
  std::string bf16;  // the candidate whose o bf16 counts by; "idealised" on the emulator: that of core/reference.h
  NeedleCount bf16_found;
  std::vector<NeedleResult> results;
  std::string why_none;  // no candidate
  std::string failure;   // what bf16 counts by gave no outputs: nothing is judged
  std::string lacking;   // what the machine had not: no run came after this one
};
// One run for each head dim and length, in this order; those that were done where `stop` says so. Each candidate is
// launched in the worker's child, so that one that faults, crashes or hangs fails alone. Throws as Worker::run_task,
// but for Cancelled, which ends the runs.
std::vector<NeedleRun> run_needles(Worker& worker, const NeedleOptions& options);
// The child's side.
inline constexpr const char* kNeedleTask = "needle";
WorkerTask needle_task();
// {"schema": "flashcore.needles/1", ...}.
nlohmann::json needles_json(const std::vector<NeedleRun>& runs, const NeedleOptions& options, const DeviceInfo& device);

}  // namespace flashcore
