// One family of no kernel, in the place of the registry: what parsers ask of it is whether a name is known. And, in the
// place of what is not built here, functions that say that they are not.
#include <stdexcept>

#include "core/error.h"
#include "core/foreign_text.h"
#include "kernels/embedded.h"
#include "kernels/family.h"
#include "kernels/registry.h"
#include "kernels/source_hash.h"
#include "lab/verify/claims.h"
#include "lab/verify/recompute.h"

namespace flashcore {
namespace {

class NamedFamily final : public Family {
 public:
  std::string name() const override { return "sm80_fwd"; }
  std::string description() const override { return "a name"; }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::optional<std::string> why_unsupported(const Problem&, const DeviceLimits&) const override {
    return std::nullopt;
  }
  const ConfigSpace& space() const override { return space_; }
  ConfigValues default_config(const Problem&, const DeviceLimits&) const override { return space_.at(0); }
  std::optional<std::string> why_invalid(const ConfigValues&, const Problem&, const DeviceLimits&) const override {
    return std::nullopt;
  }

 private:
  ConfigSpace space_ = ConfigSpace({{"block_m", {16, 64}}, {"num_stages", {1, 2}}});
};

[[noreturn]] void not_here() { throw std::logic_error("a parser used a kernel"); }

}  // namespace

const std::vector<const Family*>& all_families() {
  static const NamedFamily family;
  static const std::vector<const Family*> families = {&family};
  return families;
}
const Family& family_by_name(std::string_view name) {
  if (const Family* family = all_families().front(); family->name() == name) return *family;
  throw_bad_input("unknown family '{}'; known: sm80_fwd", excerpt(name));
}
const SourceMap& device_sources() {
  static const SourceMap sources = {{"sm80_fwd/kernel.cuh", "int x;\n"}};
  return sources;
}
std::string source_hash() { return "0123456789abcdef0123456789abcdef"; }
std::string source_hash(const Candidate&, const PlacedProblem&, const DeviceLimits&) { return source_hash(); }
std::string launch_hash(const Candidate&, const PlacedProblem&, const DeviceLimits&) { return source_hash(); }
Artifact compile_candidate(const Candidate&, const Problem&, const DeviceLimits&, bool) {
  throw_environment("no compiler");
}

std::string Candidate::print() const { return family->name() + ":" + family->space().print(config); }
Candidate parse_candidate(std::string_view text, const Problem& problem, const DeviceLimits& limits) {
  const std::size_t colon = text.find(':');
  const Family& family = family_by_name(text.substr(0, colon));
  Candidate candidate{&family, family.default_config(problem, limits)};
  if (colon != std::string_view::npos)
    candidate.config = family.space().parse(text.substr(colon + 1), candidate.config, family.name());
  return candidate;
}
Choice dispatch_as_built(const Problem& problem, const DeviceInfo& device) {
  return {parse_candidate("sm80_fwd", problem, device.limits), "the only one"};
}

// What `verify` asks of git, and `verify --recompute` of the compiler: no parser starts a program.
Claims audit_commits(const nlohmann::json&, const std::filesystem::path&) { return {}; }
Recomputed recompute_rows(const nlohmann::json&) { not_here(); }

ScopedFamily::ScopedFamily(std::unique_ptr<Family>) { not_here(); }
ScopedFamily::~ScopedFamily() = default;

}  // namespace flashcore
