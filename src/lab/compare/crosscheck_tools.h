#pragma once
// The ways to time a launch that are programs of others: Nsight Compute, and what Python imports.

#include <functional>
#include <string>
#include <vector>

#include "lab/compare/crosscheck.h"

namespace flashcore {

struct ToolQuestion {
  PlacedProblem problem;
  std::string device;     // as open_device
  std::string candidate;  // text
  std::string kernel;     // its name expression; empty for a CPU
  std::string program;    // this one; Nsight Compute runs its launches
  std::string python = "python3";
  double seconds = 120;             // that a tool may take
  std::function<bool()> stop = {};  // ends the tool that runs: its answer is lost
};

struct ToolAnswers {
  std::vector<MethodReading> methods;
  std::vector<MatmulReading> matmuls;
};

// Nsight Compute's duration of the candidate's kernel, caches flushed before each launch, clocks left alone. A
// candidate of several kernels, a tool that is absent or may not attach: why_not says so.
MethodReading time_by_ncu(const ToolQuestion& question, const CompiledCandidate& compiled);
// From what `ncu --csv --page raw` wrote, the launches of that kernel alone, by name expression or mangled name. Text
// that is none gives a reading without times.
MethodReading read_ncu_durations(const std::string& text, const std::string& kernel, const std::string& symbol);

// `python -m flashcore.crosscheck`: PyTorch's profiler (which asks CUPTI), torch.utils.benchmark, Triton's do_bench,
// nvbench, and matrix multiplies. What is absent is named by the answer; without a Python that has the package all is.
ToolAnswers ask_python(const ToolQuestion& question);
// Its document. Error kBadInput for anything else.
ToolAnswers read_tool_answers(const nlohmann::json& document, const std::string& origin);

}  // namespace flashcore
