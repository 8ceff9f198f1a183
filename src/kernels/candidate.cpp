// What family.h says of candidates: texts become them, and they become compiled, loaded, bound.

#include "core/error.h"
#include "core/hash.h"
#include "device/compiler.h"
#include "device/cpu/code_identity.h"
#include "device/emulator/emulator_compiler.h"
#include "kernels/cpu_call.h"
#include "kernels/embedded.h"
#include "kernels/family.h"
#include "kernels/source_hash.h"

namespace flashcore {

std::string Candidate::print() const { return family->name() + ":" + family->space().print(config); }

Candidate parse_candidate(std::string_view text, const Problem& problem, const DeviceLimits& limits) {
  const std::size_t colon = text.find(':');
  const Family& family = family_by_name(text.substr(0, colon));
  if (auto reason = family.why_unsupported(problem, limits)) {
    throw_bad_input("family {} cannot run {}: {}", family.name(), problem.id(), *reason);
  }
  Candidate candidate{&family, family.default_config(problem, limits)};
  if (colon != std::string_view::npos) {
    candidate.config = family.space().parse(text.substr(colon + 1), candidate.config, family.name());
  }
  if (auto reason = family.why_invalid(candidate.config, problem, limits)) {
    throw_bad_input("config {} is not valid for {}: {}", candidate.print(), problem.id(), *reason);
  }
  return candidate;
}

std::vector<ConfigValues> feasible_configs(const Family& family, const Problem& problem, const DeviceLimits& limits) {
  std::vector<ConfigValues> feasible;
  const ConfigSpace& space = family.space();
  for (std::uint64_t index = 0; index < space.size(); ++index) {
    ConfigValues config = space.at(index);
    if (!family.why_invalid(config, problem, limits)) feasible.push_back(std::move(config));
  }
  return feasible;
}

std::vector<const Family*> supporting_families(const Problem& problem, const DeviceLimits& limits,
                                               std::vector<std::string>* reasons) {
  std::vector<const Family*> found;
  for (const Family* family : all_families()) {
    std::optional<std::string> reason = family->why_unsupported(problem, limits);
    if (!reason) {
      found.push_back(family);
    } else if (reasons) {
      reasons->push_back(family->name() + ": " + *reason);
    }
  }
  return found;
}

Artifact compile_candidate(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                           bool use_cache) {
  const Family& family = *candidate.family;
  if (family.kind() == DeviceKind::kCpu) {
    Artifact artifact;
    artifact.arch = "cpu";
    artifact.code_hash =
        Hasher().add(source_hash(candidate, {problem, Layout::kBhsd}, limits)).add(cpu_code_identity()).hex();
    return artifact;
  }
  KernelSource source = family.source(candidate.config, problem, limits);
  source.foreign = family.is_foreign();
  const SourceMap* overlay = family.source_overlay();
  if (!overlay) return compile_kernel(source, device_sources(), family.compile_arch(limits), limits, use_cache);
  SourceMap patched = *overlay;
  patched.insert(device_sources().begin(), device_sources().end());  // keeps what the overlay holds
  return compile_kernel(source, patched, family.compile_arch(limits), limits, use_cache);
}

Artifact compile_kernel(const KernelSource& source, const SourceMap& sources, const std::string& arch,
                        const DeviceLimits& limits, bool use_cache) {
  if (limits.emulated) {
    static const std::unique_ptr<Compiler> host_compiler = open_emulator_compiler();
    return host_compiler->compile(source, sources, arch, use_cache);
  }
  // One compiler per process: opening NVRTC maps about 100 MB of shared library.
  static const std::unique_ptr<Compiler> compiler = open_compiler();
  return compiler->compile(source, sources, arch, use_cache);
}

LoadedCandidate::LoadedCandidate(Device& device, const Candidate& candidate, const Problem& problem,
                                 const Artifact& artifact)
    : device_(&device), candidate_(candidate), problem_(problem) {
  if (candidate.family->kind() != DeviceKind::kCpu) module_ = device.load(artifact);
}

Addresses AttentionArgs::addresses() const {
  Addresses all = {q, k, v, o, lse};
  all[AddressOf(Operand::kDescaleQ).index()] = descale_q;
  all[AddressOf(Operand::kDescaleK).index()] = descale_k;
  all[AddressOf(Operand::kDescaleV).index()] = descale_v;
  all[AddressOf(Operand::kSink).index()] = sink;
  all[AddressOf(Operand::kAlibi).index()] = alibi;
  all[AddressOf(Operand::kCuSeqlensQ).index()] = cu_seqlens_q;
  all[AddressOf(Operand::kCuSeqlensKv).index()] = cu_seqlens_kv;
  all[AddressOf(Operand::kSequsedKv).index()] = seqused_kv;
  all[AddressOf(Operand::kSequsedQ).index()] = seqused_q;
  all[AddressOf(Operand::kBlockTable).index()] = block_table;
  all[AddressOf(Operand::kAmax).index()] = amax;
  for (std::size_t t = 0; t < tensors.size(); ++t) all[AddressOf(operand_of_tensor(t)).index()] = tensors[t];
  return all;
}

Launch LoadedCandidate::bind(const AttentionArgs& args, BoundWorkspaces* workspaces) const {
  const Family& family = *candidate_.family;
  if (family.kind() == DeviceKind::kCpu) return bind_on_cpu(family, candidate_.config, problem_, args);
  const Program program = family.program(candidate_.config, problem_, device_->info().limits, args.layouts);
  return bind_program(*device_, program, module_, args.addresses(), workspaces);
}

}  // namespace flashcore
