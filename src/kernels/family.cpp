#include "kernels/family.h"

#include "core/error.h"

namespace flashcore {

KernelSource Family::source(const ConfigValues&, const Problem&, const DeviceLimits&) const {
  throw_internal("family {} has no device source", name());
}
Program Family::program(const ConfigValues&, const Problem&, const DeviceLimits&, const ProblemLayouts&) const {
  throw_internal("family {} has no GPU launch", name());
}
const SourceMap* Family::source_overlay() const { return nullptr; }
int Family::preference(const Problem&, const DeviceLimits&) const { return 1; }
bool Family::keeps_bounds(const ConfigValues&, const Problem&) const { return true; }
std::optional<double> Family::expected_us(const ConfigValues&, const Problem&, const DeviceLimits&) const {
  return std::nullopt;
}
std::optional<ConfigValues> Family::batch_invariant_config(const Problem&, const DeviceLimits&) const {
  return std::nullopt;
}
std::string Family::compile_arch(const DeviceLimits& limits) const { return fmt::format("sm_{}", limits.arch); }
Launch Family::cpu_launch(const ConfigValues&, const Problem&, const AttentionArgs&) const {
  throw_internal("family {} does not run on a CPU", name());
}

}  // namespace flashcore
