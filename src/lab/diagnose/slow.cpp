#include "lab/diagnose/slow.h"

#include <algorithm>

#include "core/yaml_reader.h"

namespace flashcore {
namespace {

SlowKernel read_slow_kernel(const YamlReader& reader, const YAML::Node& node) {
  constexpr const char* kSubject = "a slow kernel";
  reader.check_keys(node, kSubject, {"name", "does", "bottleneck", "candidate", "unpatched", "problem", "patch"});
  SlowKernel kernel;
  kernel.name = reader.text(node, "name", kSubject);
  kernel.does = reader.text(node, "does", kSubject);
  const std::string word = reader.text(node, "bottleneck", kSubject);
  kernel.bottleneck = reader.locate(node["bottleneck"], [&] { return parse_word<Cause>(word); });
  kernel.candidate = reader.text(node, "candidate", kSubject);
  kernel.unpatched = reader.text_or(node, "unpatched", kernel.candidate);
  const std::string problem = reader.text(node, "problem", kSubject);
  kernel.problem = reader.locate(node["problem"], [&] { return PlacedProblem::parse(problem); });
  if (!node["patch"]) return kernel;
  Patch patch;
  patch.name = kernel.name;
  patch.family = kernel.candidate.substr(0, kernel.candidate.find(':'));
  patch.trusted = true;  // our own corpus
  patch.replace = read_replacements(reader, node, "patch");
  kernel.patch = std::move(patch);
  return kernel;
}

}  // namespace

std::string SlowKernel::candidate_text() const {
  if (!patch) return candidate;
  return patch->family_name() + candidate.substr(std::min(candidate.find(':'), candidate.size()));
}

std::vector<SlowKernel> parse_slow_kernels(std::string_view yaml, const std::string& origin) {
  const YamlReader reader(origin);
  const YAML::Node root = reader.parse(yaml);
  reader.check_keys(root, "the corpus", {"slow"});
  std::vector<SlowKernel> kernels;
  for (const YAML::Node& node :
       reader.items(root, "slow", "the corpus", "{name, does, bottleneck, candidate, problem}"))
    kernels.push_back(read_slow_kernel(reader, node));
  return kernels;
}

const std::vector<SlowKernel>& slow_kernels() {
  static const std::vector<SlowKernel> kernels = [] {
    std::vector<SlowKernel> all;
    for (const auto& [file, text] : embedded_slow())
      for (SlowKernel& kernel : parse_slow_kernels(text, std::string(file))) all.push_back(std::move(kernel));
    return all;
  }();
  return kernels;
}

std::string why_not_named(const SlowKernel& kernel, const Profile& profile) {
  if (profile.bottlenecks.empty()) return "no bottleneck is named";
  const Bottleneck& first = profile.bottlenecks.front();
  if (first.cause == kernel.bottleneck) return "";
  return fmt::format("{} comes first ({:.0f}%), not {}", first.cause, 100 * first.share, kernel.bottleneck);
}

std::string wrongly_named(const std::vector<SlowKernel>& kernels, const Profile& unpatched) {
  std::string named;
  for (const Bottleneck& b : unpatched.bottlenecks)
    if (std::any_of(kernels.begin(), kernels.end(), [&](const SlowKernel& k) { return k.bottleneck == b.cause; }))
      named += (named.empty() ? "" : ", ") + word_of(b.cause);
  return named;
}

SlowJudgement judge_slow(const SlowKernel& kernel, const SlowSide& slow, const SlowSide& unpatched) {
  using enum SlowJudgement::Verdict;
  if (!slow.failure.empty()) return {kMissed, slow.failure};
  if (!could_show(kernel.bottleneck, slow.facts))
    return {kLacking, fmt::format("no source is here that {} would show in", kernel.bottleneck)};
  if (std::string why = why_not_named(kernel, diagnose(slow.facts)); !why.empty()) return {kMissed, std::move(why)};
  if (!unpatched.failure.empty()) return {kMissed, fmt::format("the kernel without it failed: {}", unpatched.failure)};
  if (const std::string named = wrongly_named(slow_kernels(), diagnose(unpatched.facts)); !named.empty())
    return {kMissed, fmt::format("the kernel without it is accused too: {}", named)};
  if (!could_show(kernel.bottleneck, unpatched.facts))
    return {kLacking,
            fmt::format("of the kernel without it no source is here that {} would show in", kernel.bottleneck)};
  return {kNamed, ""};
}

}  // namespace flashcore
