#include "api/plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "api/allocations.h"
#include "api/artifact_cache.h"
#include "api/block_mask.h"
#include "api/fork_gate.h"
#include "api/sequence_status.h"
#include "core/error.h"
#include "core/problem_expressions.h"
#include "core/problem_row.h"
#include "core/slope_bound.h"
#include "device/compiler.h"
#include "kernels/batch_invariant.h"

namespace flashcore::api {
namespace {

constexpr std::array kNames = {"q", "k", "v", "o", "lse"};

// Operands of fp32 beside lse, which some problems have.
struct FloatOperand {
  const char* name;
  Operand operand;
  std::int64_t (*count)(const Problem&, const ProblemLayouts&);
  const char* unit;  // one of them
  // What to do if they are missing, and if there are none to give.
  const char *missing, *unexpected;
  bool (*allowed)(float);
  const char* rule;
};
bool is_factor(float x) { return x > 0 && !std::isinf(x); }
constexpr const char* kFactor = "factor";
constexpr const char* kNoFactors = "to fc_plan_launch_scaled, or make the plan with FC_SCALING_NONE";
constexpr const char* kNotScaled = "has no factors; give null, or make the plan with a scaling";
constexpr const char* kFactorRule = "factors are positive and finite";
constexpr FloatOperand kFloatOperands[] = {
    {"descale_q", Operand::kDescaleQ, [](const Problem& p, const ProblemLayouts& l) { return descale_counts(p, l).q; },
     kFactor, kNoFactors, kNotScaled, is_factor, kFactorRule},
    {"descale_k", Operand::kDescaleK, [](const Problem& p, const ProblemLayouts& l) { return descale_counts(p, l).k; },
     kFactor, kNoFactors, kNotScaled, is_factor, kFactorRule},
    {"descale_v", Operand::kDescaleV, [](const Problem& p, const ProblemLayouts& l) { return descale_counts(p, l).v; },
     kFactor, kNoFactors, kNotScaled, is_factor, kFactorRule},
    {"sink", Operand::kSink, [](const Problem& p, const ProblemLayouts&) { return p.sink_count(); }, "logit",
     "to fc_plan_launch_operands, or make the plan without a sink",
     "has no sink; give null, or make the plan with FC_SINK_HEAD", [](float x) { return x < INFINITY; },
     "sinks are finite, or -infinity for none"},
    {"alibi", Operand::kAlibi, [](const Problem& p, const ProblemLayouts&) { return p.alibi_count(); }, "slope",
     "to fc_plan_launch_operands, or make the plan without ALiBi",
     "has no ALiBi; give null, or make the plan with FC_ALIBI_HEAD or FC_ALIBI_BATCH",
     [](float x) { return std::isfinite(x); }, "slopes are finite"},
};

// Operands of int32, of ragged batches and paged caches. Nobody looks at their values: what is no boundary makes NaN of
// its sequence, and what is no page of the rows that see its keys.
enum class Needs { kNothing, kMayHave, kValues };
constexpr Needs values_if(bool needed) { return needed ? Needs::kValues : Needs::kNothing; }
struct Int32Operand {
  const char* name;
  Operand operand;
  Needs (*needs)(const Problem&);
  std::int64_t (*count)(const Problem&, const ProblemLayouts&);
};
std::int64_t of_boundaries(const Problem& p, const ProblemLayouts&) { return p.batch + 1; }
std::int64_t of_sequences(const Problem& p, const ProblemLayouts&) { return p.batch; }
constexpr Int32Operand kInt32Operands[] = {
    {"cu_seqlens_q", Operand::kCuSeqlensQ, [](const Problem& p) { return values_if(p.ragged()); }, of_boundaries},
    {"cu_seqlens_kv", Operand::kCuSeqlensKv, [](const Problem& p) { return values_if(p.ragged() && !p.paged()); },
     of_boundaries},
    {"seqused_kv", Operand::kSequsedKv,
     [](const Problem& p) { return p.ragged() && !p.paged() ? Needs::kMayHave : values_if(p.paged()); }, of_sequences},
    {"seqused_q", Operand::kSequsedQ, [](const Problem& p) { return p.ragged() ? Needs::kMayHave : Needs::kNothing; },
     of_sequences},
    {"block_table", Operand::kBlockTable, [](const Problem& p) { return values_if(p.paged()); },
     [](const Problem& p, const ProblemLayouts& l) {
       return l.max_pages == 0 ? 0 : (p.batch - 1) * l.table_stride + l.max_pages;
     }},
};

// Where no batch within the bounds has anything to add up, all kernels give the same.
bool needs_equal_bits(const Request& request) {
  return request.deterministic_batch && request.problem.seqlen_q > 0 && request.problem.seqlen_kv > 0;
}

std::vector<Choice> choices_for(const Request& request, const DeviceInfo& device) {
  if (request.candidate)
    return {{parse_candidate(*request.candidate, request.problem, device.limits), "asked for", ChosenBy::kCaller}};
  if (needs_equal_bits(request)) return {batch_invariant_choice(request.problem, device)};
  std::vector<Choice> choices = ranked_choices(request.problem, device);
  // dispatch() has the sentence that lists every family's reason.
  if (choices.empty()) choices.push_back(dispatch(request.problem, device));
  return choices;
}

// Why this candidate must not be given these tensors; none if it may, and `program` is then that of a GPU family. Asked
// before anything is compiled, which takes seconds.
std::optional<std::string> why_unsuitable(const Candidate& candidate, const Request& request,
                                          const DeviceLimits& limits, Program& program) {
  const Family& family = *candidate.family;
  program = {};
  if (family.kind() == DeviceKind::kCpu) return std::nullopt;
  if (request.has_negative_strides)
    return "a stride is negative, and only the CPU's kernels read such tensors; copy the tensor";
  try {
    program = family.program(candidate.config, request.problem, limits, request.layouts);
  } catch (const Error& error) {
    // Of these layouts, for the problem itself is supported: a tensor that reaches too far.
    if (error.kind() != ErrorKind::kBadInput) throw;
    return error.what();
  }
  if (program.alignment_bytes != 0 && !request.is_16b_aligned)
    return fmt::format(
        "{} copies {} bytes at a time, and an address or stride of these tensors is no multiple of that; copy them "
        "into contiguous tensors{} for a faster kernel",
        family.name(), program.alignment_bytes,
        request.problem.has_transposed_v() ? ", v into one whose columns of keys are padded to a multiple of 16," : "");
  if (!program.has_tensor_maps() || !request.is_broadcast) return std::nullopt;
  return fmt::format("{} reads through tensor maps, which do not repeat an element (stride 0)", family.name());
}

// On a device that runs a launch within the call, one at a time.
class Turn {
 public:
  explicit Turn(const Context& context) {
    std::mutex* mutex = context.turn();
    if (!mutex) return;
    inside_.emplace();  // or a child forked meanwhile could never take its turn
    lock_ = std::unique_lock(*mutex);
  }

 private:
  std::optional<InsideLibrary> inside_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace

Plan::Plan(std::shared_ptr<Context> context, const Request& request)
    : context_(std::move(context)),
      problem_(request.problem),
      layouts_(request.layouts),
      tensor_order_(request.tensor_order),
      tensor_bytes_(request.tensor_bytes) {
  if (problem_.has_mask_expression())
    for (const int t : tensor_numbers(problem_, problem_.mask_expression()))
      is_of_mask_[static_cast<std::size_t>(t)] = true;
  needs_q_ = request.layouts.q.elements() > 0;
  needs_kv_ = request.layouts.k.elements() > 0 && needs_q_;
  needs_o_ = request.layouts.o.elements() > 0;
  const std::int64_t lse = request.layouts.lse_elements;
  const DType cache = problem_.cache_dtype();
  footprints_ = {Footprint::of(layouts_.q, problem_.dtype), Footprint::of(layouts_.k, cache),
                 Footprint::of(layouts_.v, cache), Footprint::of(layouts_.o, problem_.output_dtype()),
                 Footprint({1, 1, 1, lse, lse, lse, lse}, sizeof(float))};
  const std::vector<Choice> choices = choices_for(request, context_->info());
  std::vector<const Family*> passed_over;
  std::exception_ptr first_failure;
  const std::lock_guard lock(context_->planning());
  for (const Choice& choice : choices) {
    const Family* family = choice.candidate.family;
    if (std::find(passed_over.begin(), passed_over.end(), family) != passed_over.end()) continue;
    try {
      if (make(choice, request)) break;
    } catch (const DeviceFault&) {
      throw;
    } catch (const CompileError& error) {
      if (!first_failure) first_failure = std::current_exception();
      notes_.push_back(fmt::format("{} was passed over: {}", family->name(), error.what()));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kEnvironment) throw;
      if (!first_failure) first_failure = std::current_exception();
      notes_.push_back(fmt::format("{} was passed over: {}", family->name(), error.what()));
    }
    passed_over.push_back(family);
  }
  if (!choice_ && first_failure) std::rethrow_exception(first_failure);
  if (!choice_)
    throw_bad_input("no kernel runs {} on these tensors: {}", problem_.id(), notes_.empty() ? "" : notes_.front());
  // Of another problem are also lists that happen to be the same, as with another name of a tensor: on a device without
  // lists nothing else could tell them apart.
  list_key_ = problem_.id() + " " + candidate();
  if (list_bytes() > 0) list_key_ += " " + Context::module_key(artifact_) + " " + program_->reusable_key();
  add_slow_note(request);
  add_empty_notes(request.layouts);
}

bool Plan::make(const Choice& choice, const Request& request) {
  const Family& family = *choice.candidate.family;
  Program program;
  if (const auto reason = why_unsuitable(choice.candidate, request, context_->info().limits, program)) {
    if (request.candidate) throw_bad_input("{}", *reason);
    if (needs_equal_bits(request))
      throw_bad_input("deterministic_batch is 1, and the kernel that has its bits cannot be given these tensors: {}",
                      *reason);
    notes_.push_back(*reason);
    return false;
  }
  kernel_alignment_ = program.alignment_bytes;
  if (family.kind() == DeviceKind::kCpu) {
    artifact_ = find_or_compile(choice.candidate, problem_, context_->info().limits);
    cpu_call_ = std::make_unique<CpuCall>(family, choice.candidate.config, problem_, request.layouts);
  } else {
    load(choice, std::move(program));
  }
  choice_ = choice;
  return true;
}

void Plan::load(const Choice& choice, Program program) {
  const bool nothing = std::all_of(program.steps.begin(), program.steps.end(), [](const Step& s) { return s.empty(); });
  artifact_ = find_or_compile(choice.candidate, problem_, context_->info().limits);
  if (nothing) return;
  program_ = std::make_unique<LoadedProgram>(context_->device(), std::move(program), context_->load(artifact_),
                                             context_->somewhere());
  {
    std::unique_lock<std::mutex> turn;
    if (std::mutex* mutex = context_->turn()) turn = std::unique_lock(*mutex);
    context_->constants().provide(*program_, Context::module_key(artifact_));
  }
  if (const std::string why = why_not_kept(); !why.empty()) notes_.push_back(why);
}

// Sizes that a caller forgot are 0, and 0 is no error.
void Plan::add_empty_notes(const ProblemLayouts& layouts) {
  if (!problem_.ragged() || problem_.batch == 0) return;
  if (problem_.seqlen_q > 0 && layouts.total_q == 0)
    notes_.push_back("total_q is 0: q and o have no rows, and nothing is written");
  if (!problem_.paged() || problem_.seqlen_kv == 0) return;
  if (layouts.pages == 0)
    notes_.push_back("pages is 0: the cache has none, and each row that would see a key gets NaN");
  if (layouts.max_pages == 0)
    notes_.push_back("max_pages is 0: no sequence has room for a key, and one that has keys gets NaN");
}

// A user must not wait ten times as long without being told why.
void Plan::add_slow_note(const Request& request) {
  const Family& family = *choice_->candidate.family;
  if (family.kind() == DeviceKind::kCpu || request.candidate || problem_.flops() == 0) return;
  if (family.preference(problem_, context_->info().limits) > 0) return;
  std::vector<std::string> reasons;
  supporting_families(problem_, context_->info().limits, &reasons);
  std::string why;
  for (const std::string& reason : reasons) {
    if (!reason.starts_with("cpu_fwd")) why += (why.empty() ? "" : "; ") + reason;
  }
  notes_.push_back(fmt::format("{}, the slow reference kernel, runs {}{}{}", family.name(), problem_.id(),
                               why.empty() ? "" : ": no faster one does. ", why));
}

void Plan::check(const Addresses& addresses) const {
  const std::array<bool, 5> needed = {needs_q_, needs_kv_, needs_kv_, needs_o_, false};
  const std::size_t of_q = size_of(problem_.dtype), of_cache = least_bytes(problem_.cache_dtype());
  const std::array<std::size_t, 5> elements = {of_q, of_cache, of_cache, size_of(problem_.output_dtype()),
                                               sizeof(float)};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (needed[i] && !addresses[i])
      throw_bad_input("{} is null; give its address on {}", kNames[i], context_->info().id);
    const std::uintptr_t alignment =
        i == 4 ? elements[i] : std::max(elements[i], static_cast<std::size_t>(kernel_alignment_));
    if (reinterpret_cast<std::uintptr_t>(addresses[i]) % alignment != 0)
      throw_bad_input(
          "{} is at {}, which is no multiple of {} bytes; this plan's kernel needs that. Make the plan with "
          "fc_attention.alignment as the addresses really are, or copy the tensor",
          kNames[i], addresses[i], alignment);
    if (addresses[i] && (needed[i] || i == 4))
      allocations().check(kNames[i], addresses[i], footprints_[i].low, footprints_[i].high);
  }
  check_floats(addresses);
  check_int32s(addresses);
  check_tensors(addresses);
  check_amax(addresses);
  // Rows of an output are written while others still read theirs of the inputs.
  for (std::size_t output = 3; output < kNames.size(); ++output) {
    if (!addresses[output]) continue;
    for (std::size_t other = 0; other < output; ++other) {
      if (addresses[other] && overlap(footprints_[output], addresses[output], footprints_[other], addresses[other]))
        throw_bad_input("{} at {} overlaps {} at {}; give an output memory of its own", kNames[output],
                        addresses[output], kNames[other], addresses[other]);
    }
  }
}

void Plan::check_floats(const Addresses& addresses) const {
  for (const FloatOperand& operand : kFloatOperands) {
    const std::int64_t count = operand.count(problem_, layouts_);
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    const auto* values = static_cast<const float*>(addresses[AddressOf(operand.operand).index()]);
    const auto is_of_rows = [&](Operand factors, Scaling scaling) {
      return operand.operand == factors && scaling == Scaling::kToken;
    };
    const bool of_rows = is_of_rows(Operand::kDescaleQ, problem_.q_scaling()) ||
                         is_of_rows(Operand::kDescaleK, problem_.k_scaling()) ||
                         is_of_rows(Operand::kDescaleV, problem_.v_scaling());
    if (count == 0 && values && !of_rows)  // without rows there are none of them
      throw_bad_input("{} is given, and {} {}", operand.name, problem_.id(), operand.unexpected);
    if (count == 0 || !needs_o_) continue;
    if (!values)
      throw_bad_input("{} is null; give the address of its {} {}{} on {} {}", operand.name, count, operand.unit,
                      count == 1 ? "" : "s", context_->info().id, operand.missing);
    if (reinterpret_cast<std::uintptr_t>(values) % alignof(float) != 0)
      throw_bad_input("{} is at {}, which is no multiple of {} bytes; copy it", operand.name,
                      static_cast<const void*>(values), alignof(float));
    allocations().check(operand.name, values, 0, bytes);
    check_apart(addresses, operand.name, values, bytes);
    // Of keys that nobody sees a cache's factors may be anything.
    if (!cpu_call_ || (of_rows && problem_.has_quantised_cache())) continue;
    const double largest = operand.operand == Operand::kAlibi ? max_slope(problem_) : INFINITY;
    for (std::int64_t at = 0; at < count; ++at) {
      if (!operand.allowed(values[at])) throw_bad_input("{}[{}] is {}; {}", operand.name, at, values[at], operand.rule);
      if (operand.operand == Operand::kAlibi && std::abs(values[at]) > largest)
        throw_bad_input("{}[{}] is {}; slopes of this problem are from {:.3g} to {:.3g}, beyond which fp32 overflows",
                        operand.name, at, values[at], -largest, largest);
    }
  }
}

void Plan::check_int32s(const Addresses& addresses, Reader reader) const {
  for (const Int32Operand& operand : kInt32Operands) {
    if (reader == Reader::kLists && operand.operand == Operand::kBlockTable) continue;
    const void* values = addresses[AddressOf(operand.operand).index()];
    const std::int64_t count = operand.count(problem_, layouts_);
    const Needs needs = operand.needs(problem_);
    if (needs == Needs::kNothing && values && problem_.paged())
      throw_bad_input("{} is given, and {} has a paged cache, whose lengths are seqused_kv; give null", operand.name,
                      problem_.id());
    if (needs == Needs::kNothing && values && operand.operand == Operand::kBlockTable)
      throw_bad_input("block_table is given, and {} has no pages; give null, or make the plan with a page_size",
                      problem_.id());
    if (needs == Needs::kNothing && values)
      throw_bad_input("{} is given, and {} is no ragged batch; give null, or make the plan with FC_LENGTHS_FULL",
                      operand.name, problem_.id());
    if (needs == Needs::kNothing || (!values && (needs == Needs::kMayHave || count == 0))) continue;
    if (!values)
      throw_bad_input(
          "{} is null; give the address of its {} int32 on {} to fc_plan_launch_operands, or make the plan "
          "with {}",
          operand.name, count, context_->info().id,
          operand.operand == Operand::kBlockTable ? "page_size 0" : "FC_LENGTHS_FIXED");
    if (reinterpret_cast<std::uintptr_t>(values) % alignof(std::int32_t) != 0)
      throw_bad_input("{} is at {}, which is no multiple of {} bytes; copy it", operand.name, values,
                      alignof(std::int32_t));
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(std::int32_t));
    allocations().check(operand.name, values, 0, bytes);
    check_apart(addresses, operand.name, values, bytes);
  }
}

std::vector<std::int32_t> Plan::download_int32s(const Addresses& addresses, Operand wanted) const {
  const auto* const operand = std::find_if(std::begin(kInt32Operands), std::end(kInt32Operands),
                                           [&](const Int32Operand& each) { return each.operand == wanted; });
  const void* values = addresses[AddressOf(wanted).index()];
  if (!values || operand->needs(problem_) == Needs::kNothing) return {};
  std::vector<std::int32_t> found(static_cast<std::size_t>(operand->count(problem_, layouts_)));
  const std::size_t bytes = found.size() * sizeof(std::int32_t);
  if (!allocations().check(operand->name, values, 0, static_cast<std::int64_t>(bytes)) &&
      context_->info().limits.emulated)
    throw_bad_input("{} is at {}: an emulated GPU has the memory of fc_memory_allocate alone, and this is none of it",
                    operand->name, values);
  if (bytes > 0) context_->device().download(found.data(), values, bytes);
  return found;
}

std::string Plan::status(const Addresses& addresses, void* stream) const {
  if (context_->on_cpu() && stream) throw_bad_input("a stream was given, and the CPU has none; give null");
  check_int32s(addresses);
  std::vector<BadSequence> bad;
  if (problem_.ragged() && problem_.batch > 0) {
    context_->device().synchronize_stream(stream);
    bad = find_bad_sequences(problem_, layouts_,
                             {.cu_seqlens_q = download_int32s(addresses, Operand::kCuSeqlensQ),
                              .cu_seqlens_kv = download_int32s(addresses, Operand::kCuSeqlensKv),
                              .seqused_kv = download_int32s(addresses, Operand::kSequsedKv),
                              .seqused_q = download_int32s(addresses, Operand::kSequsedQ),
                              .block_table = download_int32s(addresses, Operand::kBlockTable)});
  }
  nlohmann::json said{{"sequences", problem_.ragged() ? problem_.batch : 0}, {"bad", nlohmann::json::array()}};
  for (const BadSequence& each : bad) said["bad"].push_back({{"sequence", each.sequence}, {"why", each.why}});
  return said.dump();
}

void Plan::check_tensors(const Addresses& addresses, Reader reader) const {
  for (std::size_t t = 0; t < kMaxExpressionTensors; ++t) {
    const void* values = addresses[AddressOf(operand_of_tensor(t)).index()];
    if (t >= problem_.tensors.size() || !needs_o_) continue;
    if (reader == Reader::kLists && !is_of_mask_[t]) continue;
    const char* name = problem_.tensors[t].name.c_str();
    if (!values)
      throw_bad_input("the tensor '{}' is null; give its address on {} to fc_plan_launch_operands", name,
                      context_->info().id);
    const std::size_t alignment = problem_.tensors[t].element == ExpressionType::kBool ? 1 : 4;
    if (reinterpret_cast<std::uintptr_t>(values) % alignment != 0)
      throw_bad_input("the tensor '{}' is at {}, which is no multiple of {} bytes; copy it", name, values, alignment);
    allocations().check(name, values, 0, tensor_bytes_[t]);
    check_apart(addresses, name, values, tensor_bytes_[t]);
  }
}

namespace {

Footprint footprint_of_bytes(std::int64_t bytes) { return Footprint({1, 1, 1, bytes, bytes, bytes, bytes}, 1); }

}  // namespace

void Plan::check_amax(const Addresses& addresses) const {
  const void* values = addresses[AddressOf(Operand::kAmax).index()];
  if (!problem_.amax) {
    if (values)
      throw_bad_input(
          "amax is given, and {} does not ask for largest magnitudes; give null, or make the plan with "
          "FC_AMAX_HEAD",
          problem_.id());
    return;
  }
  if (!values)
    throw_bad_input(
        "amax is null; give the address of [2, heads_q] fp32 on {} to fc_plan_launch_operands, or make the "
        "plan with FC_AMAX_NONE",
        context_->info().id);
  if (reinterpret_cast<std::uintptr_t>(values) % alignof(float) != 0)
    throw_bad_input("amax is at {}, which is no multiple of {} bytes; give another address", values, alignof(float));
  const std::int64_t bytes = problem_.amax_count() * static_cast<std::int64_t>(sizeof(float));
  allocations().check("amax", values, 0, bytes);
  const Footprint footprint = footprint_of_bytes(bytes);
  for (std::size_t other = 0; other < kNames.size(); ++other)
    if (addresses[other] && overlap(footprint, values, footprints_[other], addresses[other]))
      throw_bad_input("amax at {} overlaps {} at {}; give an output memory of its own", values, kNames[other],
                      addresses[other]);
}

void Plan::check_apart(const Addresses& addresses, const char* name, const void* values, std::int64_t bytes) const {
  const Footprint footprint = footprint_of_bytes(bytes);
  const void* amax = addresses[AddressOf(Operand::kAmax).index()];
  if (amax && overlap(footprint_of_bytes(problem_.amax_count() * 4), amax, footprint, values))
    throw_bad_input("amax at {} overlaps {}; give an output memory of its own", amax, name);
  for (std::size_t output = 3; output < kNames.size(); ++output) {
    if (addresses[output] && overlap(footprints_[output], addresses[output], footprint, values))
      throw_bad_input("{} at {} overlaps {}; give an output memory of its own", kNames[output], addresses[output],
                      name);
  }
}

void Plan::place_tensors(const void* const* given, AttentionArgs& args) const {
  if (given && tensor_order_.empty()) throw_bad_input("tensors is given, and {} has none; give null", problem_.id());
  for (std::size_t t = 0; given && t < tensor_order_.size(); ++t) args.tensors[t] = given[tensor_order_[t]];
}

void Plan::make_lists(const Addresses& addresses, void* stream, void* memory) const {
  if (context_->on_cpu() && stream) throw_bad_input("a stream was given, and the CPU has none; give null");
  check_int32s(addresses, Reader::kLists);
  check_tensors(addresses, Reader::kLists);
  if (!memory) return;
  const Turn turn(*context_);
  program_->make_reusable(stream, addresses, memory);
}

void Plan::launch(const Addresses& given, void* stream, const BlockMask* block_mask) const {
  check(given);
  const void* lists = block_mask ? block_mask->lists_for(*this, stream) : nullptr;
  if (cpu_call_) {
    if (stream) throw_bad_input("a stream was given, and the CPU has none; give null");
    AttentionArgs args;
    args.q = given[0];
    args.k = given[1];
    args.v = given[2];
    args.o = const_cast<void*>(given[3]);
    args.lse = static_cast<float*>(const_cast<void*>(given[4]));
    const auto floats = [&](Operand operand) { return static_cast<const float*>(given[AddressOf(operand).index()]); };
    args.descale_q = floats(Operand::kDescaleQ), args.descale_k = floats(Operand::kDescaleK);
    args.descale_v = floats(Operand::kDescaleV);
    args.sink = floats(Operand::kSink), args.alibi = floats(Operand::kAlibi);
    const auto int32s = [&](Operand operand) {
      return static_cast<const std::int32_t*>(given[AddressOf(operand).index()]);
    };
    args.cu_seqlens_q = int32s(Operand::kCuSeqlensQ), args.cu_seqlens_kv = int32s(Operand::kCuSeqlensKv);
    args.seqused_kv = int32s(Operand::kSequsedKv), args.seqused_q = int32s(Operand::kSequsedQ);
    args.block_table = int32s(Operand::kBlockTable);
    args.amax = const_cast<float*>(floats(Operand::kAmax));
    for (std::size_t t = 0; t < args.tensors.size(); ++t)
      args.tensors[t] = given[AddressOf(operand_of_tensor(t)).index()];
    (*cpu_call_)(args);
    return;
  }
  if (!program_) return;
  Addresses addresses = given;
  const Turn turn(*context_);
  context_->workspaces().provide(stream, lists ? program_->workspaces_beside_reused() : program_->workspaces(),
                                 addresses);
  program_->launch_on(stream, addresses, lists);
}

std::string Plan::describe() const {
  const Candidate& candidate = choice_->candidate;
  std::size_t workspace_bytes = 0;
  if (program_) {
    for (const Workspace& workspace : program_->workspaces()) workspace_bytes += workspace.bytes;
  }
  nlohmann::json said{{"device", context_->info().id},
                      {"family", candidate.family->name()},
                      {"config", candidate.family->space().to_json(candidate.config)},
                      {"candidate", candidate.print()},
                      {"reason", choice_->reason},
                      {"notes", notes_},
                      {"alignment", std::max(static_cast<std::size_t>(kernel_alignment_),
                                             std::max(size_of(problem_.dtype), size_of(problem_.output_dtype())))},
                      {"workspace_bytes", workspace_bytes},
                      {"block_mask_bytes", list_bytes()},
                      {"compile_ms", artifact_.compile_ms},
                      {"from_cache", artifact_.from_cache},
                      {"code_hash", artifact_.code_hash},
                      {"registers", artifact_.registers},
                      {"shared_bytes", artifact_.dynamic_shared_bytes + artifact_.static_shared_bytes}};
  put_problem(said, {problem_, Layout::kBhsd});
  return said.dump();
}

std::string explain(const Context& context, const Request& request) {
  const std::vector<Choice> choices = choices_for(request, context.info());
  std::vector<std::string> refused;
  supporting_families(request.problem, context.info().limits, &refused);
  nlohmann::json alternatives = nlohmann::json::array();
  const Choice* taken = nullptr;
  std::optional<std::string> first_reason;
  for (const Choice& choice : choices) {
    Program program;
    if (const auto reason = why_unsuitable(choice.candidate, request, context.info().limits, program)) {
      if (!first_reason) first_reason = reason;
      if (std::find(refused.begin(), refused.end(), *reason) == refused.end()) refused.push_back(*reason);
    } else if (!taken) {
      taken = &choice;
    } else {
      alternatives.push_back({{"candidate", choice.candidate.print()}, {"reason", choice.reason}});
    }
  }
  if (!taken) throw_bad_input("no kernel runs {} on these tensors: {}", request.problem.id(), *first_reason);
  nlohmann::json said{{"device", context.info().id},
                      {"family", taken->candidate.family->name()},
                      {"config", taken->candidate.family->space().to_json(taken->candidate.config)},
                      {"candidate", taken->candidate.print()},
                      {"reason", taken->reason},
                      {"alternatives", alternatives},
                      {"refused", refused}};
  put_problem(said, {request.problem, Layout::kBhsd});
  return said.dump();
}

}  // namespace flashcore::api
