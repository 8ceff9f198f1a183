#include "kernels/cpu_ragged.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "device/cpu/cpu_threads.h"
#include "device/cpu/thread_pool.h"
#include "kernels/cpu_dense.h"

namespace flashcore {
namespace {

// As tile::Sequence has it: a bad one's rows are those within the tensors, and become NaN.
struct Sequence {
  std::int64_t first_q = 0, len_q = 0, first_kv = 0, len_kv = 0;
  bool bad = false;
};

// As tile::rows_at.
bool ragged_rows_at(const std::int32_t* boundaries, const std::int32_t* used, std::int64_t s, std::int64_t bound,
                    std::int64_t total, std::int64_t& first, std::int64_t& length) {
  const std::int64_t begin = boundaries[s], end = boundaries[s + 1];
  first = std::clamp<std::int64_t>(begin, 0, total);
  length = std::clamp<std::int64_t>(end, first, total) - first;
  bool good = begin == first && end == first + length;
  if (used) {
    const std::int64_t count = used[s];
    const bool fits = count >= 0 && count <= length;
    good &= fits;
    if (fits) length = count;
  }
  return good && length <= bound;
}

class Ragged {
 public:
  Ragged(const Family& family, const ConfigValues& config, const Problem& problem, const AttentionArgs& args)
      : family_(family), config_(config), p_(problem), args_(args) {
    limits_.kind = DeviceKind::kCpu;
    limits_.multiprocessors = cpu_threads();
  }

  void operator()() const {
    std::vector<std::int64_t> long_ones, short_ones;
    for (std::int64_t s = 0; s < p_.batch; ++s) {
      const Sequence at = sequence(s);
      const bool is_short = at.bad || worthwhile_threads(problem_of(at), cpu_threads()) == 1;
      (is_short ? short_ones : long_ones).push_back(s);
    }
    for (const std::int64_t s : long_ones) run(s);
    std::atomic<std::size_t> next{0};
    cpu_thread_pool().run(static_cast<int>(std::min<std::size_t>(short_ones.size(), 1024)), [&](int) {
      for (std::size_t i = next.fetch_add(1); i < short_ones.size(); i = next.fetch_add(1)) run(short_ones[i]);
    });
  }

 private:
  // Read once for each use: whoever changes boundaries amid a launch gets wrong numbers, but no access out of bounds.
  Sequence sequence(std::int64_t s) const {
    Sequence at;
    const ProblemLayouts& l = args_.layouts;
    bool good = ragged_rows_at(args_.cu_seqlens_q, args_.seqused_q, s, p_.seqlen_q, l.total_q, at.first_q, at.len_q);
    if (p_.paged()) {
      at.len_kv = args_.seqused_kv[s];
      const std::int64_t most = std::min(p_.seqlen_kv, l.max_pages * p_.page_size);
      at.bad = !good || at.len_kv < 0 || at.len_kv > most;
      if (at.bad) at.len_kv = 0;
      return at;
    }
    good &= ragged_rows_at(args_.cu_seqlens_kv, args_.seqused_kv, s, p_.seqlen_kv, l.total_kv, at.first_kv, at.len_kv);
    at.bad = !good;
    return at;
  }
  // A quantised cache's keys are fp32 once they are out of their pages: int8 and int4 have no NaN for those of a
  // missing page.
  Problem problem_of(const Sequence& at) const {
    Problem one = p_.of_sequence({at.len_q, at.len_kv});
    if (p_.paged() && p_.has_quantised_cache()) one.kv_dtype = DType::kF32, one.scaling = Scaling::kNone;
    return one;
  }

  void run(std::int64_t s) const {
    const Sequence at = sequence(s);
    if (at.len_q == 0) return;
    if (at.bad) return write_nan(at);
    const Problem problem = problem_of(at);
    AttentionArgs args = args_of(s, at);
    // The family's kernels take rows that lie one after another.
    HostTensor k, v;
    if (p_.paged()) {
      k = gather(args_.k, args_.layouts.k, args_.descale_k, s, at.len_kv, std::numeric_limits<float>::quiet_NaN());
      v = gather(args_.v, args_.layouts.v, args_.descale_v, s, at.len_kv, 0);
      args.k = k.data.data(), args.v = v.data.data();
      args.layouts.k = k.layout, args.layouts.v = v.layout;
    }
    std::vector<float> lse(args_.lse ? static_cast<std::size_t>(p_.heads_q * at.len_q) : 0);
    if (args_.lse) args.lse = lse.data();
    const bool fits = !family_.why_invalid(config_, problem, limits_);
    bind_dense_on_cpu(family_, fits ? config_ : family_.default_config(problem, limits_), problem, args)();
    for (std::int64_t head = 0; args_.lse && head < p_.heads_q; ++head)
      std::copy_n(lse.begin() + head * at.len_q, at.len_q, lse_of(head, at));
  }

  // The keys of a sequence out of their pages; a quantised cache's with their factors. A page that the pool does not
  // have holds `missing`.
  HostTensor gather(const void* pool, const TensorLayout& layout, const float* descales, std::int64_t s,
                    std::int64_t keys, float missing) const {
    const DType stored = p_.cache_dtype(), dtype = p_.has_quantised_cache() ? DType::kF32 : stored;
    HostTensor dense(dtype, make_layout(Layout::kBhsd, 1, layout.heads, keys, layout.columns));
    const std::int32_t* row = args_.block_table + s * args_.layouts.table_stride;
    const auto factor = [&](std::int64_t head, std::int64_t page, std::int64_t in_page) {
      switch (p_.input_scaling()) {
        case Scaling::kNone: break;
        case Scaling::kTensor: return descales[0];
        case Scaling::kHead: return descales[s * p_.heads_kv + head];
        case Scaling::kToken: return descales[(page * p_.heads_kv + head) * p_.page_size + in_page];
      }
      return 1.0f;
    };
    for (std::int64_t first = 0; first < keys; first += p_.page_size) {
      // Read once: whoever changes the table amid a launch gets wrong numbers, but no access out of bounds.
      const std::int64_t page = std::atomic_ref(const_cast<std::int32_t&>(row[first / p_.page_size])).load();
      const std::int64_t end = std::min(keys, first + p_.page_size);
      for (std::int64_t head = 0; head < layout.heads; ++head)
        for (std::int64_t key = first; key < end; ++key) {
          const std::int64_t to = dense.layout.offset(0, head, key);
          const bool exists = page >= 0 && page < layout.batch;
          const std::int64_t from = exists ? layout.offset(page, head, key - first) : 0;
          if (exists && dtype == stored) {
            std::memcpy(dense.address(to), static_cast<const std::byte*>(pool) + bytes_of(stored, from),
                        dense.row_bytes());
            continue;
          }
          const float by = exists ? factor(head, page, key - first) : 1.0f;
          for (std::int64_t column = 0; column < layout.columns; ++column)
            store_element(dtype, dense.data.data(), to + column,
                          exists ? by * load_element(stored, pool, from + column) : missing);
        }
    }
    return dense;
  }

  float* lse_of(std::int64_t head, const Sequence& at) const {
    return args_.lse + head * args_.layouts.total_q + at.first_q;
  }

  AttentionArgs args_of(std::int64_t s, const Sequence& at) const {
    AttentionArgs args = args_;
    const auto move = [](auto* address, const TensorLayout& layout, std::int64_t rows, DType dtype) {
      using Byte =
          std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(address)>>, const std::byte, std::byte>;
      return static_cast<Byte*>(address) + bytes_of(dtype, rows * layout.stride_row);
    };
    ProblemLayouts& l = args.layouts;
    args.q = move(args_.q, l.q, at.first_q, p_.dtype);
    if (!p_.paged()) args.k = move(args_.k, l.k, at.first_kv, p_.cache_dtype());
    if (!p_.paged()) args.v = move(args_.v, l.v, at.first_kv, p_.cache_dtype());
    args.o = move(args_.o, l.o, at.first_q, p_.output_dtype());
    l.q.rows = l.o.rows = l.total_q = at.len_q;
    l.k.rows = l.v.rows = l.total_kv = at.len_kv;
    l.lse_elements = p_.heads_q * at.len_q;
    for (const float** descales : {&args.descale_q, &args.descale_k, &args.descale_v}) {
      if (*descales && p_.input_scaling() == Scaling::kHead) *descales += s * p_.heads_kv;
      if (p_.paged() && p_.has_quantised_cache()) *descales = nullptr;  // gather() has used them
    }
    if (p_.alibi == Alibi::kBatch) args.alibi += s * p_.heads_q;
    args.first_batch = s;
    args.cu_seqlens_q = args.cu_seqlens_kv = args.seqused_kv = args.seqused_q = args.block_table = nullptr;
    return args;
  }

  void write_nan(const Sequence& at) const {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    const TensorLayout& o = args_.layouts.o;
    for (std::int64_t head = 0; head < p_.heads_q; ++head) {
      for (std::int64_t row = at.first_q; row < at.first_q + at.len_q; ++row)
        for (std::int64_t column = 0; column < o.columns; ++column)
          store_element(p_.output_dtype(), static_cast<std::byte*>(args_.o), o.offset(0, head, row) + column, kNaN);
      if (args_.lse) std::fill_n(lse_of(head, at), at.len_q, kNaN);
    }
  }

  const Family& family_;
  ConfigValues config_;
  Problem p_;
  AttentionArgs args_;
  DeviceLimits limits_;
};

}  // namespace

Launch bind_ragged_on_cpu(const Family& family, const ConfigValues& config, const Problem& problem,
                          const AttentionArgs& args) {
  return Ragged(family, config, problem, args);
}

}  // namespace flashcore
