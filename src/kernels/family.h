#pragma once
// Family: a kernel design. One folder under src/kernels/; CMake finds its family.cpp, which registers it.

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config_space.h"
#include "core/operands.h"
#include "core/problem.h"
#include "device/artifact.h"
#include "device/compiler.h"
#include "device/device.h"
#include "kernels/program.h"

namespace flashcore {

// Device addresses and strides of one call.
struct AttentionArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  // may be null
  ProblemLayouts layouts;
  // Factors of 8-bit operands (Problem::input_scaling), descale_counts() of the problem and its layouts; null where the
  // problem has none.
  const float* descale_q = nullptr;
  const float* descale_k = nullptr;
  const float* descale_v = nullptr;
  const float* sink = nullptr;   // Problem::sink_count() logits
  const float* alibi = nullptr;  // Problem::alibi_count() slopes
  // Of ragged problems: boundaries, batch + 1 each, and how many of a sequence's keys and rows count; null: all. Of
  // paged ones no cu_seqlens_kv, but seqused_kv and a block table (ProblemLayouts::max_pages columns).
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_kv = nullptr;
  const std::int32_t* seqused_kv = nullptr;
  const std::int32_t* seqused_q = nullptr;
  const std::int32_t* block_table = nullptr;
  float* amax = nullptr;  // Problem::amax_count() values, written
  // Those of Problem::tensors, in their order; their strides are in layouts.
  std::array<const void*, kMaxExpressionTensors> tensors = {};
  std::int64_t first_batch =
      0;  // what functions are told of batch entry 0: of one sequence of a ragged batch, on a CPU
  Addresses addresses() const;
};

class Family {
 public:
  virtual ~Family() = default;
  virtual std::string name() const = 0;         // "sm80_fwd"
  virtual std::string description() const = 0;  // one line
  virtual DeviceKind kind() const = 0;

  // Why this family cannot run `problem` on such a device, in words; none if it can.
  virtual std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const = 0;

  virtual const ConfigSpace& space() const = 0;
  virtual ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const = 0;
  // Why this point cannot work, in words; none if it must compile, pass the resource gate and be correct.
  virtual std::optional<std::string> why_invalid(const ConfigValues& config, const Problem& problem,
                                                 const DeviceLimits& limits) const = 0;

  // Whether the config keeps the error bounds on any data of such a problem. One that promotes sums of 8-bit products
  // too seldom does not: whoever names it gets it, and nobody draws it to be judged.
  virtual bool keeps_bounds(const ConfigValues& config, const Problem& problem) const;

  // How much dispatch would like this family for a supported problem that the tuned table says nothing of; the highest
  // is taken, and among equals the one whose default is expected to be fastest. GPU families: the architecture they
  // were made for.
  virtual int preference(const Problem& problem, const DeviceLimits& limits) const;
  // What a launch should take, us, by a model fitted to measurements: to choose among configs, not to be quoted. None
  // where nothing was measured.
  virtual std::optional<double> expected_us(const ConfigValues& config, const Problem& problem,
                                            const DeviceLimits& limits) const;

  // A config with which the bits of a row depend on its own sequence alone, whatever batch it is in; what decides the
  // order of a sum is chosen by any_batch_of(problem) (kernels/batch_invariant.h). None where the family does not
  // promise it. `check --neighbours` holds it to its word.
  virtual std::optional<ConfigValues> batch_invariant_config(const Problem& problem, const DeviceLimits& limits) const;

  // GPU families: what to compile and how to launch it. The CPU's: Error kInternal. A program for layouts that the
  // family cannot take: Error kBadInput.
  virtual KernelSource source(const ConfigValues& config, const Problem& problem, const DeviceLimits& limits) const;
  virtual Program program(const ConfigValues& config, const Problem& problem, const DeviceLimits& limits,
                          const ProblemLayouts& layouts) const;
  // The architecture to compile for on such a device: "sm_90", or "sm_90a" where the family needs it.
  virtual std::string compile_arch(const DeviceLimits& limits) const;

  // Device sources that take the place of those with the same path when this family is compiled: a patched kernel under
  // test (lab/harness/patch.h). Null: none.
  virtual const SourceMap* source_overlay() const;
  // True if somebody else wrote that: what runs on this host then runs in a sandbox.
  virtual bool is_foreign() const { return false; }

  // CPU families: a callable that computes `problem` once. GPU families: Error kInternal.
  virtual Launch cpu_launch(const ConfigValues& config, const Problem& problem, const AttentionArgs& args) const;
};

// --- registry -------------------------------------------------------------------------------------------------------
// CMake finds kernels/*/family.cpp and makes the list of them (families.cpp in the build folder).
// Sorted by name.
const std::vector<const Family*>& all_families();
// Error kBadInput listing the known names.
const Family& family_by_name(std::string_view name);

// --- candidate: family + config -------------------------------------------------------------------------------------
struct Candidate {
  const Family* family = nullptr;
  ConfigValues config;
  std::string print() const;  // "sm80_fwd:block_m=64,..."
  bool operator==(const Candidate&) const = default;
};
// "family" (its default config) or "family:key=value,...". Error kBadInput as ConfigSpace::parse, or with the reason of
// why_unsupported / why_invalid.
Candidate parse_candidate(std::string_view text, const Problem& problem, const DeviceLimits& limits);

// Every valid config of the space, in order; the feasible count is its size.
std::vector<ConfigValues> feasible_configs(const Family& family, const Problem& problem, const DeviceLimits& limits);

// A candidate made ready on a device: compiled, loaded. Keep it alive while its launches are in use.
class LoadedCandidate {
 public:
  // `artifact` of a GPU family from Compiler::compile; ignored for a CPU family.
  LoadedCandidate(Device& device, const Candidate& candidate, const Problem& problem, const Artifact& artifact);
  // With args.layouts, and workspaces of its own, which are told (a CPU family has none): one launch at a time.
  Launch bind(const AttentionArgs& args, BoundWorkspaces* workspaces = nullptr) const;
  const Candidate& candidate() const { return candidate_; }

 private:
  Device* device_;
  Candidate candidate_;
  Problem problem_;
  std::shared_ptr<Module> module_;
};

// Compiles a GPU candidate (embedded sources, the family's architecture); for a CPU candidate returns an Artifact whose
// code_hash stands for the family, the config, and the build and threads that run them (device/cpu/code_identity.h).
Artifact compile_candidate(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                           bool use_cache = true);
// A kernel by itself, by the compiler of such a device.
Artifact compile_kernel(const KernelSource& source, const SourceMap& sources, const std::string& arch,
                        const DeviceLimits& limits, bool use_cache = true);

// Families that support the problem on such a device, in registry order; reasons of the others on request.
std::vector<const Family*> supporting_families(const Problem& problem, const DeviceLimits& limits,
                                               std::vector<std::string>* reasons = nullptr);

// --- dispatch -------------------------------------------------------------------------------------------------------
enum class ChosenBy : std::uint8_t {
  kCaller,     // named on the command line or in a plan
  kDispatch,   // by what is built in: tuned table, models, defaults
  kUserTable,  // by an entry of the user's own tuned table
};
struct Choice {
  Candidate candidate;
  std::string reason;  // "tuned table entry b1_h8_s512_d64_fp16 on h200" or "default of sm80_fwd: no entry near"
  ChosenBy chosen_by = ChosenBy::kDispatch;
};
// Tuned table (kernels/tuned.json, embedded, by device key and problem), then the default config of the first
// supporting family in order of preference (newest architecture first, ref_fwd last). A neighbour's entry counts unless
// it is expected to be slower here than that default: tiles that fill the device there may leave it half empty here.
// Error kBadInput with every family's reason if none supports it.
Choice dispatch(const Problem& problem, const DeviceInfo& device);
// The same by what is built in alone: a pure function of problem, device and source.
Choice dispatch_as_built(const Problem& problem, const DeviceInfo& device);
// All that dispatch could choose, best first: tuned entries from the nearest on, each family's default after them. For
// who may have to pass one over (it does not compile here, the tensors' strides do not suit it). Empty if no family
// supports the problem.
std::vector<Choice> ranked_choices(const Problem& problem, const DeviceInfo& device);

// The user's own tuned table, beside the one that is built in and before it at equal distance: what `tune` found on
// this machine, as {"<device key>": {"<problem id>": "<candidate>"}} in $FLASHCORE_TUNED, else in `tuned.json` of the
// cache folder. Read once per process; an entry that cannot be read is passed over, and named in the reason of a
// choice.
std::filesystem::path user_table_path();
// Devices that the two tables have entries for, sorted: "h100", "h200".
std::vector<std::string> tuned_device_keys();

}  // namespace flashcore

// In kernels/<folder>/family.cpp, once: FLASHCORE_FAMILY(<folder>, <class>)
#define FLASHCORE_FAMILY(folder, type)                                                \
  namespace flashcore {                                                               \
  std::unique_ptr<Family> make_family_##folder() { return std::make_unique<type>(); } \
  }
