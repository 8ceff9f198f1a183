#include "api/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mutex>
#include <optional>
#include <span>

#include "api/artifact_cache.h"
#include "api/fork_gate.h"
#include "api/operand_checks.h"
#include "core/dtype.h"
#include "core/error.h"

namespace flashcore::api {
namespace {

constexpr std::int64_t kMostNumbered = std::numeric_limits<std::int32_t>::max();

quantise::Kind read_quantise_kind(const fc_quantize_kind* given) {
  const fc_quantize_kind kind = whole_struct(given, fc_quantize_kind FC_QUANTIZE_KIND_INIT, "fc_quantize_kind",
                                             {offsetof(fc_quantize_kind, counts_saturated)});
  if (kind.dtype < FC_FP32 || kind.dtype > FC_BF16)
    throw_bad_input("dtype is {}; use FC_FP32 (0), FC_FP16 (1) or FC_BF16 (2)", kind.dtype);
  if (kind.code_dtype != FC_E4M3 && kind.code_dtype != FC_E5M2)
    throw_bad_input("code_dtype is {}; use FC_E4M3 (3) or FC_E5M2 (4)", kind.code_dtype);
  if (kind.counts_saturated != 0 && kind.counts_saturated != 1)
    throw_bad_input("counts_saturated is {}; use 0 or 1", kind.counts_saturated);
  return {static_cast<Element>(kind.dtype), static_cast<Element>(kind.code_dtype), kind.counts_saturated == 1};
}

// A launch's operands, checked and in the form that kernels take.
class QuantiseReader {
 public:
  QuantiseReader(const Context& context, const quantise::Kind& kind, const fc_quantize_operands& given)
      : context_(context), kind_(kind), given_(given), checks_(context), params_(quantise::params_of(sizes())) {
    const fc_quantize_operands& g = given_;
    params_.has_factors = g.has_factors;
    params_.saturated = checks_.counts("saturated", g.saturated, 3, kind_.counts);
    tensor(params_.q, {"q", "q_codes", "descale_q"}, g.q, g.q_strides, g.q_codes, g.q_codes_strides, g.descale_q);
    tensor(params_.k, {"k", "k_codes", "descale_k"}, g.k, g.k_strides, g.k_codes, g.k_codes_strides, g.descale_k);
    params_.is_transposed = g.v_layout == FC_V_DN;
    tensor(params_.v, {"v", "v_codes", "descale_v"}, g.v, g.v_strides, g.v_codes, g.v_codes_strides, g.descale_v);
    if (g.k_mean && g.seqlen_kv > 0) {
      checks_.array("k_mean", g.k_mean, std::int64_t{params_.heads} * params_.k.dim, sizeof(float), true);
      params_.k_mean = g.k_mean;
    }
    checks_.check_apart();
  }
  quantise::QuantiseParams& params() { return params_; }

 private:
  struct Names {
    const char *x, *codes, *factors;
  };

  quantise::Sizes sizes() const {
    const fc_quantize_operands& g = given_;
    if (g.scaling != FC_SCALING_USUAL && g.scaling != FC_SCALING_TENSOR && g.scaling != FC_SCALING_HEAD &&
        g.scaling != FC_SCALING_TOKEN)
      throw_bad_input("scaling is {}; use FC_SCALING_TENSOR (2), FC_SCALING_HEAD (3) or FC_SCALING_TOKEN (4)",
                      g.scaling);
    if (g.v_layout != FC_V_ND && g.v_layout != FC_V_DN)
      throw_bad_input("v_layout is {}; use FC_V_ND (0) or FC_V_DN (1)", g.v_layout);
    if (g.has_factors != 0 && g.has_factors != 1) throw_bad_input("has_factors is {}; use 0 or 1", g.has_factors);
    if (g.has_factors == 1 && g.scaling == FC_SCALING_TOKEN)
      throw_bad_input("has_factors is 1 and scaling is FC_SCALING_TOKEN, whose factors are found on the way; use 0");
    if (g.hadamard != 0 && g.hadamard != 1) throw_bad_input("hadamard is {}; use 0 or 1", g.hadamard);
    quantise::Sizes all;
    all.batch = checks_.whole("batch", g.batch, 0);
    all.heads_kv = checks_.whole("heads_kv", g.heads_kv, 1);
    all.heads_q = checks_.whole("heads_q", g.heads_q, 1);
    if (all.heads_q % all.heads_kv != 0)
      throw_bad_input("heads_q is {} and heads_kv {}; give a multiple of heads_kv", all.heads_q, all.heads_kv);
    all.seqlen_q = checks_.whole("seqlen_q", g.seqlen_q, 0);
    all.seqlen_kv = checks_.whole("seqlen_kv", g.seqlen_kv, 0);
    all.head_dim = checks_.whole("head_dim", g.head_dim, 1, quantise::kMostColumns);
    all.head_dim_v = checks_.whole("head_dim_v", g.head_dim_v, 1, quantise::kMostColumns);
    check_rows("q", all.batch, all.heads_q, all.seqlen_q);
    check_rows("k and v", all.batch, all.heads_kv, all.seqlen_kv);
    all.by_head = g.scaling == FC_SCALING_HEAD, all.by_row = g.scaling == FC_SCALING_TOKEN;
    all.rows_of_q = block("block_q", g.block_q), all.rows_of_k = block("block_kv", g.block_kv);
    all.rotates = g.hadamard == 1;
    if (all.rotates && ((all.head_dim & (all.head_dim - 1)) != 0 || all.head_dim > quantise::kMostRotated))
      throw_bad_input("head_dim is {}, and hadamard needs a power of two up to {}; leave it out", all.head_dim,
                      quantise::kMostRotated);
    all.seed = g.seed;
    return all;
  }

  int block(const char* name, std::int64_t given) const {
    if (given != 0 && given_.scaling != FC_SCALING_TOKEN)
      throw_bad_input("{} is {} and scaling is not FC_SCALING_TOKEN; use 0", name, given);
    return std::max(checks_.whole(name, given, 0), 1);
  }

  // The kernels number rows, and the CTAs and tiles that share them, in 32 bits.
  static void check_rows(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t seqlen) {
    constexpr std::int64_t kMost = kMostNumbered / 8;
    if (batch * heads > kMost || (seqlen > 0 && batch * heads > kMost / seqlen))
      throw_bad_input("{}: {} batch entries of {} heads and {} rows are too many; at most {} rows are allowed", name,
                      batch, heads, seqlen, kMost);
  }

  void tensor(quantise::Operand& x, const Names& names, const void* from, const fc_strides& f, void* to,
              const fc_strides& t, float* factors) {
    const std::int64_t batch = given_.batch;
    x.from = from, x.to = to, x.factors = factors;
    x.from_stride = {f.batch, f.head, f.row}, x.to_stride = {t.batch, t.head, t.row};
    checks_.tensor(names.x, from, {batch, x.heads, x.seqlen, x.dim, f.batch, f.head, f.row},
                   static_cast<DType>(kind_.element), false);
    const int count = quantise::factors_of(x);
    checks_.array(names.factors, factors, count, sizeof(float), !params_.has_factors);
    if (params_.has_factors && context_.on_cpu()) check_factors(names.factors, factors, count);
    TensorLayout codes{batch, x.heads, x.seqlen, x.dim, t.batch, t.head, t.row};
    if (&x == &params_.v && params_.is_transposed && x.seqlen > 0) {
      codes.rows = x.dim, codes.columns = quantise::round_up_keys(x.seqlen);
      // Of one element any stride is the same.
      const bool steps = (batch > 1 && t.batch % 16 != 0) || (x.heads > 1 && t.head % 16 != 0) ||
                         (x.dim > 1 && (t.row % 16 != 0 || t.row < codes.columns));
      if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || steps)
        throw_bad_input(
            "v_codes is at {} with strides ({}, {}, {}) and v_layout is FC_V_DN; give multiples of 16, and a row's "
            "stride of at least {}, which is seqlen_kv rounded up",
            to, t.batch, t.head, t.row, codes.columns);
    }
    checks_.tensor(names.codes, to, codes, static_cast<DType>(kind_.code), true);
  }

  static void check_factors(const char* name, const float* factors, int count) {
    for (int i = 0; i < count; ++i)
      if (!(factors[i] > 0) || std::isinf(factors[i]))
        throw_bad_input("{} has {} at {}; factors are positive and finite", name, factors[i], i);
  }

  const Context& context_;
  const quantise::Kind& kind_;
  const fc_quantize_operands& given_;
  OperandChecks checks_;
  quantise::QuantiseParams params_;
};

}  // namespace

Quantise::Quantise(std::shared_ptr<Context> context, const fc_quantize_kind* given)
    : context_(std::move(context)), kind_(read_quantise_kind(given)) {
  if (context_->on_cpu()) return;
  const std::lock_guard lock(context_->planning());
  module_ = context_->load(find_or_compile(quantise::source_of(kind_), context_->info().limits));
}

void Quantise::launch(const fc_quantize_operands* given, void* stream) const {
  const fc_quantize_operands whole =
      whole_struct(given, fc_quantize_operands FC_QUANTIZE_OPERANDS_INIT, "fc_quantize_operands",
                   {offsetof(fc_quantize_operands, has_factors)});
  QuantiseReader reader(*context_, kind_, whole);
  if (context_->on_cpu()) {
    if (stream) throw_bad_input("a stream was given, and the CPU has none; give null");
    return quantise::run_on_cpu(kind_, reader.params());
  }
  std::optional<InsideLibrary> inside;
  std::unique_lock<std::mutex> turn;
  if (std::mutex* mutex = context_->turn()) {
    inside.emplace();  // or a child forked meanwhile could never take its turn
    turn = std::unique_lock(*mutex);
  }
  quantise::QuantiseParams& params = reader.params();
  Addresses addresses{};
  context_->workspaces().provide(stream, quantise::workspaces_of(params), addresses);
  const auto workspace = [&](std::size_t i) {
    return const_cast<void*>(addresses[AddressOf::workspace(i).index()]);  // memory of our own
  };
  quantise::set_workspaces(params, workspace(0), workspace(1));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&params, 1));
  const quantise::Launches launches = quantise::launches_of(kind_, params);
  for (std::size_t i = 0; i < launches.count; ++i)
    context_->device().launch_on(stream, *module_, launches.all[i], bytes);
}

}  // namespace flashcore::api
