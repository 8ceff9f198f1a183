#pragma once
// What goes between the laboratory and a peer as files: inputs out, outputs back and judged against fp64. A file is the
// elements of [batch, heads, rows, columns] in C order, no header.

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/harness/oracle.h"

namespace flashcore {

// Writes q.bin, k.bin and v.bin into `folder`: {"q": {"file": PATH, "shape": [..], "dtype": "fp16"}, ...}; and what
// else the problem has: factors, slopes, sinks, boundaries, a block table and its lengths (int32), and under "tensors"
// those of its functions. Of a ragged batch q is [1, heads, total_q, head_dim], of a paged cache k and v are pools.
nlohmann::json write_inputs(const std::filesystem::path& folder, const Problem& problem, const AttentionInputs& inputs);

struct OutputJudgement {
  double rel_error = 0;
  std::string wrong;  // what is wrong with it; empty: nothing
};

// Of ours the whole bound holds: each row's error and the log-sum-exp too. A peer may round more than flashcore does,
// so its overall error may be kPeerFactor times the bound.
enum class Strictness { kOurs, kPeer };
inline constexpr double kPeerFactor = 4;

// `answer`: what the peer says to "output": {"outputs": [{"o": FILE, "lse": FILE or none}, ...]}, every buffer that its
// timed launches wrote. The worst of them is given. Nothing that a peer says of itself counts.
OutputJudgement judge_outputs(const PlacedProblem& problem, const Oracle& oracle, const nlohmann::json& answer,
                              Strictness strictness);
// What the laboratory's own process answers, which judges where the red zones are: {"wrong", "rel_error"}.
OutputJudgement read_laboratory_judgement(const nlohmann::json& answer);

}  // namespace flashcore
