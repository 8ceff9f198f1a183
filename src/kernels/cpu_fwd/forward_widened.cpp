#include "kernels/cpu_fwd/forward_widened.h"

#include <atomic>

#include "core/dtype.h"
#include "device/cpu/thread_pool.h"

namespace flashcore::cpu_fwd {
namespace {

Problem in_fp32(Problem problem) {
  problem.dtype = DType::kF32;
  problem.kv_dtype.reset();
  problem.o_dtype.reset();
  problem.scaling.reset();
  problem.v_layout = VLayout::kNd;
  problem.amax = false;  // the arguments have the address
  return problem;
}

}  // namespace

WidenedForward::Converted WidenedForward::make_copy(const void* stored, DType dtype, const TensorLayout& layout,
                                                    const float* descales, Scaling scaling,
                                                    std::int64_t heads_per_factor, bool transposed) {
  const std::int64_t rows = transposed ? layout.columns : layout.rows,
                     columns = transposed ? layout.rows : layout.columns;
  const TensorLayout whole = make_layout(Layout::kBhsd, layout.batch, layout.heads, rows, columns);
  return {stored,
          dtype,
          layout,
          whole,
          AlignedMemory(static_cast<std::size_t>(whole.elements()) * sizeof(float)),
          descales,
          scaling,
          heads_per_factor,
          transposed};
}

WidenedForward::WidenedForward(const Config& config, const Problem& problem, const AttentionArgs& args)
    : problem_(problem),
      args_(args),
      q_(make_copy(args.q, problem.dtype, args.layouts.q, args.descale_q, problem.q_scaling(), problem.group_size())),
      k_(make_copy(args.k, problem.cache_dtype(), args.layouts.k, args.descale_k, problem.k_scaling(), 1)),
      v_(make_copy(args.v, problem.cache_dtype(), args.layouts.v, args.descale_v, problem.v_scaling(), 1,
                   problem.has_transposed_v())),
      o_(make_copy(args.o, problem.output_dtype(), args.layouts.o, nullptr, Scaling::kNone, 1)),
      forward_(config, in_fp32(problem), [&] {
        AttentionArgs inner;
        inner.q = q_.values.data(), inner.k = k_.values.data(), inner.v = v_.values.data();
        inner.o = o_.values.data(), inner.lse = args.lse, inner.amax = args.amax;
        inner.sink = args.sink, inner.alibi = args.alibi;
        inner.layouts = {q_.layout, k_.layout, v_.layout, o_.layout, args.layouts.lse_elements};
        inner.tensors = args.tensors, inner.layouts.tensor_strides = args.layouts.tensor_strides;
        inner.first_batch = args.first_batch;
        return inner;
      }()) {}

template <class Body>
void WidenedForward::for_each_row(const TensorLayout& l, const Body& body) const {
  // Below this starting the other threads costs more than the work.
  constexpr std::int64_t kSmall = 1 << 14;
  std::atomic<std::int64_t> next{0};
  const std::int64_t rows = l.batch * l.heads * l.rows;
  const int threads = l.elements() < kSmall ? 1 : cpu_thread_pool().size();
  cpu_thread_pool().run(threads, [&](int) {
    for (std::int64_t i = next.fetch_add(1); i < rows; i = next.fetch_add(1))
      body(i / l.rows / l.heads, i / l.rows % l.heads, i % l.rows);
  });
}

void WidenedForward::load(const Converted& from) const {
  auto* values = reinterpret_cast<float*>(from.values.data());
  for_each_row(from.layout, [&](std::int64_t b, std::int64_t head, std::int64_t row) {
    const std::int64_t at = from.scaling == Scaling::kHead    ? b * problem_.heads_kv + head / from.heads_per_factor
                            : from.scaling == Scaling::kToken ? (b * from.layout.heads + head) * from.layout.rows + row
                                                              : 0;
    const float factor = from.descales ? from.descales[at] : 1.0f;
    const std::int64_t in = from.transposed ? from.stored_layout.offset(b, head, 0) + row
                                            : from.stored_layout.offset(b, head, row),
                       step = from.transposed ? from.stored_layout.stride_row : 1,
                       out = from.layout.offset(b, head, row);
    for (std::int64_t column = 0; column < from.layout.columns; ++column)
      values[out + column] = factor * load_element(from.dtype, from.stored, in + step * column);
  });
}

void WidenedForward::store() const {
  const auto* values = reinterpret_cast<const float*>(o_.values.data());
  for_each_row(o_.layout, [&](std::int64_t b, std::int64_t head, std::int64_t row) {
    const std::int64_t in = o_.layout.offset(b, head, row), out = o_.stored_layout.offset(b, head, row);
    for (std::int64_t column = 0; column < o_.layout.columns; ++column)
      store_element(o_.dtype, args_.o, out + column, values[in + column]);
  });
}

void WidenedForward::operator()() {
  load(q_);
  load(k_);
  load(v_);
  forward_();
  store();
}

}  // namespace flashcore::cpu_fwd
