#pragma once
// Planted slow kernels: right results, and one thing that makes each slow. A profile must name that first, and must not
// name it of the kernel without the fault. Data: tests/planted/slow.yaml, built in.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/diagnose/profile.h"
#include "lab/harness/patch.h"

namespace flashcore {

// tests/planted/slow.yaml, by path. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_slow();

struct SlowKernel {
  std::string name;
  std::string does;                   // what is slow about it
  Cause bottleneck = Cause::kSpills;  // that must be named first
  std::string candidate;              // text; of a patched kernel without "+name"
  std::string unpatched;              // the kernel without the fault
  PlacedProblem problem;
  std::optional<Patch> patch;

  std::string candidate_text() const;  // with "+name"
};

// A list under `slow:`. Error kBadInput with file and line.
std::vector<SlowKernel> parse_slow_kernels(std::string_view yaml, const std::string& origin);
const std::vector<SlowKernel>& slow_kernels();

// A profile's facts, or why the candidate failed its gates.
struct SlowSide {
  ProfileFacts facts;
  std::string failure;
};

struct SlowJudgement {
  enum class Verdict { kNamed, kMissed, kLacking } verdict = Verdict::kMissed;
  std::string why;  // empty: named
};

// The cause must come first of the slow kernel, and no planted cause may be named of the kernel without the fault.
// kLacking: what was there says nothing against it, but on one side there is no source that the cause shows in.
SlowJudgement judge_slow(const SlowKernel& kernel, const SlowSide& slow, const SlowSide& unpatched);

// What is wrong with a profile of the slow kernel: another cause came first, or none. Empty: it named the right one.
std::string why_not_named(const SlowKernel& kernel, const Profile& profile);
// Which of the planted causes a profile of a kernel without them names. Empty: none.
std::string wrongly_named(const std::vector<SlowKernel>& kernels, const Profile& unpatched);

}  // namespace flashcore
