#include "kernels/source_hash.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/hash.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Comments become a blank. Text in quotes stays as it is.
std::string without_comments(std::string_view source) {
  std::string code;
  for (std::size_t at = 0; at < source.size();) {
    const std::string_view rest = source.substr(at);
    if (rest.starts_with("//")) {
      at = std::min(source.find('\n', at), source.size());
    } else if (rest.starts_with("/*")) {
      const std::size_t end = source.find("*/", at + 2);
      at = end == std::string_view::npos ? source.size() : end + 2;
      code += ' ';
    } else if (rest[0] == '"' || (rest[0] == '\'' && (at == 0 || !is_word(source[at - 1])))) {  // 1'000 is a number
      std::size_t end = at + 1;
      while (end < source.size() && source[end] != rest[0]) end += source[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, source.size());
      code += source.substr(at, end - at);
      at = end;
    } else {
      code += rest[0];
      ++at;
    }
  }
  return code;
}

std::string hash_of_files(const std::vector<std::string>& paths, const SourceMap& sources) {
  Hasher hasher;
  for (const std::string& path : paths) hasher.add(path).add(code_of(sources.at(path)));
  return hasher.hex();
}

// Of a kernel's text as built in or under $FLASHCORE_SOURCE: thousands of trials ask for the same few.
std::string hash_of_kernel(const std::string& file) {
  static std::map<std::string, std::string> known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(file);
  if (is_new) place->second = hash_of_files(include_closure(file, all_sources()), all_sources());
  return place->second;
}

std::string hash_of_patched(const std::string& file, const SourceMap& overlay) {
  SourceMap sources = overlay;
  sources.insert(all_sources().begin(), all_sources().end());  // keeps what the overlay holds
  return hash_of_files(include_closure(file, sources), sources);
}

// A layout that the family cannot take has no launches: the reason is part of the result.
std::string launches_of(const Candidate& candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
  try {
    return candidate.family->program(candidate.config, problem, limits, make_layouts(problem)).fingerprint();
  } catch (const Error& e) {
    return e.what();
  }
}

// Files of CPU families that only some problems run.
struct OnlyFor {
  std::string_view file;  // its name ends before the dot
  bool (*runs)(const Problem&);
};
constexpr OnlyFor kOnlyFor[] = {
    {"cpu_ragged.", [](const Problem& p) { return p.ragged(); }},
    {"cpu_fwd/forward_widened.", [](const Problem& p) { return p.may_be_scaled(); }},
    {"cpu_fwd/functions.", [](const Problem& p) { return p.has_expression(); }},
};
bool is_run(std::string_view path, const Problem& problem) {
  return std::all_of(std::begin(kOnlyFor), std::end(kOnlyFor),
                     [&](const OnlyFor& only) { return !path.starts_with(only.file) || only.runs(problem); });
}

}  // namespace

std::string code_of(std::string_view source) {
  const std::string code = without_comments(source);
  std::istringstream lines(code);
  std::string shortened;
  bool in_directive = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, joined;
    while (words >> word) joined += (joined.empty() ? "" : " ") + word;
    if (joined.empty()) continue;
    const bool is_directive = in_directive || joined.front() == '#';
    if (!shortened.empty()) shortened += is_directive || shortened.back() == '\n' ? '\n' : ' ';
    shortened += joined;
    in_directive = is_directive && joined.back() == '\\';
    if (is_directive && !in_directive) shortened += '\n';
  }
  return shortened;
}

std::string cpu_source_hash(const std::string& family, const Problem& problem, const SourceMap& sources) {
  std::set<std::string> paths;
  for (const auto& [path, text] : sources) {
    // family.cpp computes nothing: what it chooses is in the candidate, and a row whose candidate dispatch chose is
    // judged by asking dispatch again.
    const bool is_its_own = path.starts_with(family + "/") && path != family + "/family.cpp";
    if ((!is_its_own && !is_cpu_source(path)) || !is_run(path, problem)) continue;
    for (std::string& included : include_closure(path, sources)) paths.insert(std::move(included));
  }
  return hash_of_files({paths.begin(), paths.end()}, sources);
}

std::string source_hash() {
  static const std::string hash = [] {
    Hasher hasher;
    for (const auto& [path, text] : all_sources()) {
      if (!path.starts_with("conformance/")) hasher.add(path).add(code_of(text));
    }
    return hasher.hex();
  }();
  return hash;
}

std::string source_hash(const Candidate& candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
  const Family& family = *candidate.family;
  Hasher hasher;
  if (family.kind() == DeviceKind::kCpu)
    return hasher.add(cpu_source_hash(family.name(), problem, all_sources())).add(candidate.print()).hex();
  const KernelSource source = family.source(candidate.config, problem, limits);
  const SourceMap* overlay = family.source_overlay();
  hasher.add(overlay ? hash_of_patched(source.file, *overlay) : hash_of_kernel(source.file));
  hasher.add(source.name_expression)
      .add(family.compile_arch(limits))
      .add(fmt::format("{}", source.dynamic_shared_bytes));
  for (const std::string& option : source.options) hasher.add(option);
  if (const std::string extras = source.extras(); !extras.empty()) hasher.add(extras);
  return hasher.add(launches_of(candidate, problem, limits)).hex();
}

std::string launch_hash(const Candidate& candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
  if (candidate.family->kind() == DeviceKind::kCpu) return "";
  return launches_of(candidate, problem, limits);
}

}  // namespace flashcore
