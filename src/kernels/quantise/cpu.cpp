// Quantising on a CPU: the same rows, factors and codes as kernel.cuh, in plain loops.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>

#include "core/dtype.h"
#include "device/cpu/cpu_threads.h"
#include "device/cpu/thread_pool.h"
#include "kernels/quantise/quantise.h"
#include "kernels/tile/saturation.h"

namespace flashcore::quantise {
namespace {

// A thread more is worth it from about so many bytes on: what one core quantises in the time of a fork-join.
constexpr std::int64_t kBytesPerThread = 1 << 15;

class CpuQuantiser {
 public:
  CpuQuantiser(const Kind& kind, const QuantiseParams& params)
      : params_(params),
        kind_(kind),
        type_(static_cast<DType>(kind.element)),
        code_(static_cast<DType>(kind.code)),
        largest_code_(largest_of(kind.code)) {}

  void run() const {
    if (params_.k_mean && params_.k.seqlen > 0) for_each(params_.heads, params_.k, [&](int slab) { find_mean(slab); });
    for (const Operand* x : {&params_.q, &params_.k, &params_.v}) {
      if (!params_.has_factors) find_factors(*x);
      for_each(x->rows, *x, [&](int row) { write_row(*x, row); });
    }
    if (params_.is_transposed) for_each(params_.heads, params_.v, [&](int slab) { write_padding(slab); });
  }

 private:
  void find_factors(const Operand& x) const {
    const int factors = factors_of(x);
    std::fill_n(x.factors, factors, 0.0f);
    for_each(x.rows, x, [&](int row) { note_largest(x, row); });
    // Of a block the first row has it first.
    for (int i = 0; i < factors; ++i) {
      const int first = x.by_block ? first_of_block(x, i) : i;
      x.factors[i] = first == i ? factor_of(x.factors[i], x.factors[i] > 0, largest_code_) : x.factors[first];
    }
  }
  static int first_of_block(const Operand& x, int number) {
    const int row = number % x.run_rows;
    return number - row + row / x.group_rows * x.group_rows;
  }

  using Row = std::array<float, kMostColumns>;

  // body(i) for 0 <= i < count, of which each is a row of x or more.
  template <class Body>
  void for_each(int count, const Operand& x, const Body& body) const {
    const std::int64_t bytes = std::int64_t{x.rows} * x.dim * static_cast<int>(size_of(type_));
    const std::int64_t wanted = std::clamp<std::int64_t>(bytes / kBytesPerThread, 1, cpu_threads());
    std::atomic<int> next{0};
    const auto work = [&](int) {
      constexpr int kStep = 8;
      for (int first = next.fetch_add(kStep); first < count; first = next.fetch_add(kStep))
        for (int i = first; i < std::min(first + kStep, count); ++i) body(i);
    };
    if (wanted == 1) work(0);
    else cpu_thread_pool().run(static_cast<int>(wanted), work);
  }

  void find_mean(int slab) const {
    const Operand& k = params_.k;
    std::array<double, kMostColumns> sums;
    std::fill_n(sums.begin(), k.dim, 0.0);
    for (int key = 0; key < k.seqlen; ++key) {
      const std::int64_t from = offset_of(k.from_stride, place_of(k, slab * k.seqlen + key));
      for (int c = 0; c < k.dim; ++c) sums[static_cast<std::size_t>(c)] += load_element(type_, k.from, from + c);
    }
    for (int c = 0; c < k.dim; ++c)
      params_.k_mean[std::int64_t{slab} * k.dim + c] = static_cast<float>(sums[static_cast<std::size_t>(c)] / k.seqlen);
  }

  void read_row(const Operand& x, const Place& place, Row& row) const {
    const std::int64_t from = offset_of(x.from_stride, place);
    const float* mean =
        &x == &params_.k && params_.k_mean ? params_.k_mean + std::int64_t{place.slab} * x.dim : nullptr;
    for (int c = 0; c < x.dim; ++c) {
      float& value = row[static_cast<std::size_t>(c)];
      value = load_element(type_, x.from, from + c);
      if (mean) value -= mean[c];
    }
    if (x.is_rotated) rotate(row, x.dim);
  }

  void rotate(Row& row, int dim) const {
    const auto at = [&](int c) -> float& { return row[static_cast<std::size_t>(c)]; };
    for (int c = 0; c < dim; ++c)
      if (params_.signs[c / 32] >> c % 32 & 1u) at(c) = -at(c);
    for (int size = 1; size < dim; size *= 2)
      for (int c = 0; c < dim; ++c) {
        if (c & size) continue;
        const float a = at(c), b = at(c + size);
        at(c) = a + b, at(c + size) = a - b;
      }
    for (int c = 0; c < dim; ++c) at(c) *= params_.rotation_scale;
  }

  static float& factor_of_row(const Operand& x, int number) {
    return x.factors[x.by_row ? number : x.by_block ? first_of_block(x, number) : number / x.group_rows];
  }

  // The largest so far is in the place of the factor.
  void note_largest(const Operand& x, int number) const {
    Row row;
    read_row(x, place_of(x, number), row);
    float largest = 0;
    for (int c = 0; c < x.dim; ++c) {
      const float magnitude = std::abs(row[static_cast<std::size_t>(c)]);
      if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
    }
    const std::atomic_ref<float> cell(factor_of_row(x, number));
    float known = cell.load(std::memory_order_relaxed);
    while (largest > known && !cell.compare_exchange_weak(known, largest, std::memory_order_relaxed)) {
    }
  }

  void write_row(const Operand& x, int number) const {
    Row row;
    const Place place = place_of(x, number);
    read_row(x, place, row);
    const float factor = factor_of_row(x, number);
    const bool is_column = &x == &params_.v && params_.is_transposed;
    const Strides& s = x.to_stride;
    const std::int64_t first = place.batch * s.batch + place.head * s.head + place.row * (is_column ? 1 : s.row);
    const std::int64_t step = is_column ? s.row : 1;
    std::uint64_t saturated = 0;
    for (int c = 0; c < x.dim; ++c) {
      const float value = row[static_cast<std::size_t>(c)] / factor;
      store_element(code_, x.to, first + c * step, value);
      if (saturates(kind_.code, std::bit_cast<std::uint32_t>(value))) ++saturated;
    }
    if (kind_.counts && saturated != 0)
      __atomic_fetch_add(reinterpret_cast<std::uint64_t*>(params_.saturated) + x.number, saturated, __ATOMIC_RELAXED);
  }

  // Keys of V up to the next multiple of 16.
  void write_padding(int slab) const {
    const Operand& v = params_.v;
    auto* to =
        static_cast<unsigned char*>(v.to) + slab / v.heads * v.to_stride.batch + slab % v.heads * v.to_stride.head;
    for (int c = 0; c < v.dim; ++c)
      std::fill(to + c * v.to_stride.row + v.seqlen, to + c * v.to_stride.row + round_up_keys(v.seqlen), 0);
  }

  const QuantiseParams& params_;
  Kind kind_;
  DType type_, code_;
  float largest_code_;
};

}  // namespace

void run_on_cpu(const Kind& kind, const QuantiseParams& params) { CpuQuantiser(kind, params).run(); }

}  // namespace flashcore::quantise
