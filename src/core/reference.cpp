#include "core/reference.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "core/error.h"
#include "core/expression_builtin.h"
#include "core/parallel.h"
#include "core/problem_expressions.h"
#include "core/ragged.h"
#include "core/random.h"
#include "core/reference_block.h"

namespace flashcore {
namespace {

// Tiles of every size in use end at these rows, give or take one.
constexpr std::int64_t kEdges[] = {0, 16, 32, 64, 128, 256};

class RowChooser {
 public:
  RowChooser(const Problem& problem, double max_flops, std::uint64_t seed)
      : p_(problem), left_(max_flops), random_(seed) {}

  RowSample choose() {
    add_first_last_and_edges();
    // Every head once, on a tile edge; then rounds of any row, until the budget is used.
    for (int round = 0; left_ > 0 && misses_ < 64; ++round) {
      for (std::int64_t head = 0; head < p_.batch * p_.heads_q && left_ > 0; ++head)
        add(head, round % 2 == 0 ? edge_row() : any_row());
    }
    RowSample sample;
    sample.all = false;
    for (const auto& [head, row] : chosen_) sample.rows.push_back({head / p_.heads_q, head % p_.heads_q, row});
    return sample;
  }

 private:
  void add(std::int64_t head, std::int64_t row) {
    row = std::clamp<std::int64_t>(row, 0, p_.seqlen_q - 1);
    if (!chosen_.emplace(head, row).second) {
      ++misses_;
      return;
    }
    misses_ = 0;
    // One more than the visible keys: rows that see none cost something too, so the loop ends.
    left_ -= 2.0 * static_cast<double>(p_.head_dim + p_.head_dim_v) * static_cast<double>(p_.visible_keys(row) + 1);
  }
  void add_first_last_and_edges() {
    const std::int64_t last_head = p_.batch * p_.heads_q - 1, rows = p_.seqlen_q;
    for (const std::int64_t head : {std::int64_t{0}, last_head}) {
      add(head, 0);
      add(head, rows - 1);
    }
    const std::int64_t last_edge = rows / 16 * 16;
    for (std::int64_t d = -1; d <= 1; ++d) {
      for (const std::int64_t edge : kEdges) add(0, edge + d);
      add(last_head, last_edge + d);
      add(last_head, rows / 64 * 64 + d);
      // Where a window leaves the first key, and where it reaches the last.
      const Band<std::int64_t> band = p_.band();
      if (band.bounded_left) add(0, d - band.left_offset);
      if (band.bounded_left && band.bounded_right) add(last_head, p_.seqlen_kv - 1 - band.right_offset + d);
    }
  }
  std::int64_t any_row() { return static_cast<std::int64_t>(random_.next() % static_cast<std::uint64_t>(p_.seqlen_q)); }
  std::int64_t edge_row() { return any_row() / 16 * 16 + static_cast<std::int64_t>(random_.next() % 3) - 1; }

  const Problem& p_;
  double left_;
  SplitMix random_;
  int misses_ = 0;  // in a row: nearly everything is chosen already
  std::set<std::pair<std::int64_t, std::int64_t>> chosen_;
};

// One query row to compute, and where its results go.
struct Task {
  std::int64_t batch, head, row, out;
};

std::vector<Task> make_tasks(const Problem& p, const RowSample& sample) {
  std::vector<Task> tasks;
  if (sample.all) {
    tasks.reserve(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q));
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        for (std::int64_t row = 0; row < p.seqlen_q; ++row)
          tasks.push_back({b, h, row, static_cast<std::int64_t>(tasks.size())});
      }
    }
    return tasks;
  }
  for (const auto& [b, h, row] : sample.rows) {
    FC_CHECK(b >= 0 && b < p.batch && h >= 0 && h < p.heads_q && row >= 0 && row < p.seqlen_q);
    tasks.push_back({b, h, row, static_cast<std::int64_t>(tasks.size())});
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& x, const Task& y) {
    return std::tie(x.batch, x.head, x.row) < std::tie(y.batch, y.head, y.row);
  });
  return tasks;
}

class ReferenceRun {
 public:
  ReferenceRun(const Problem& problem, const AttentionInputs& inputs, std::vector<Task> tasks, bool ideal_only)
      : p_(problem), band_(problem.band()), inputs_(inputs), tasks_(std::move(tasks)), ideal_only_(ideal_only) {
    if (problem.softcap) softcap_ = softcap_score(*problem.softcap);
    if (problem.alibi != Alibi::kNone) alibi_ = alibi_score();
    if (problem.has_score_expression()) score_ = problem.score_expression();
    if (problem.has_mask_expression()) mask_ = problem.mask_expression();
    const std::size_t rows = tasks_.size();
    const std::size_t values = rows * static_cast<std::size_t>(p_.head_dim_v);
    result_.rows = static_cast<std::int64_t>(rows);
    result_.ideal_o.resize(values);
    result_.ideal_lse.resize(rows);
    if (!ideal_only_) {
      result_.o.resize(values);
      result_.lse.resize(rows);
      result_.predicted_o.resize(rows);
      result_.predicted_lse.resize(rows);
      result_.budgets.resize(rows);
      result_.amax.resize(p_.amax ? rows : 0);
      result_.amax_error.resize(p_.amax ? rows : 0);
    }
    for (std::size_t i = 0; i < rows; ++i) {
      if (i == 0 || !same_kv_head(tasks_[i - 1], tasks_[i])) starts_.push_back(i);
    }
    starts_.push_back(rows);
  }

  Reference run(int threads) {
    // Below this starting a thread costs more than the work.
    constexpr double kSmallFlops = 2e6;
    const bool small = p_.flops() < kSmallFlops && threads == 0;
    const int used = small ? 1 : threads > 0 ? threads : hardware_threads();
    const auto groups = static_cast<std::int64_t>(starts_.size()) - 1;
    // Many small heads (decoding): whole heads side by side. Few large ones: the rows of one head side by side.
    const bool by_head = groups >= 4 * used;
    parallel_for(groups, by_head ? used : 1,
                 [&](std::int64_t group) { run_group(static_cast<std::size_t>(group), by_head ? 1 : used); });
    return std::move(result_);
  }

 private:
  bool same_kv_head(const Task& x, const Task& y) const {
    return x.batch == y.batch && x.head / p_.group_size() == y.head / p_.group_size();
  }

  KeyFactors factors_of_keys(std::int64_t batch, std::int64_t head_kv) const {
    KeyFactors factors;
    for (std::int64_t key = 0; key < p_.seqlen_kv; ++key) {
      if (p_.k_scaling() == Scaling::kToken)
        factors.k.push_back(descale_k_at(p_, inputs_.descale_k, batch, head_kv, key));
      if (p_.v_scaling() == Scaling::kToken)
        factors.v.push_back(descale_v_at(p_, inputs_.descale_v, batch, head_kv, key));
    }
    return factors;
  }

  void run_group(std::size_t group, int threads) {
    const std::size_t begin = starts_[group], end = starts_[group + 1];
    const std::int64_t batch = tasks_[begin].batch, head_kv = tasks_[begin].head / p_.group_size();
    const PackedHead head =
        pack_head(inputs_.k, inputs_.v, p_.v_layout, batch, head_kv, factors_of_keys(batch, head_kv));
    const double of_k = p_.k_scaling() == Scaling::kToken ? 1 : descale_k_at(p_, inputs_.descale_k, batch, head_kv, 0);
    const double of_v = p_.v_scaling() == Scaling::kToken ? 1 : descale_v_at(p_, inputs_.descale_v, batch, head_kv, 0);
    const ReferenceHead what{p_.dtype, p_.output_dtype(),      p_.softmax_scale() * of_k,
                             of_v,     p_.softcap.value_or(0), p_.has_quantised_cache()};
    // Few rows of many keys: a block of rows each, so that every core has some.
    const std::size_t blocks = (end - begin + kReferenceRows - 1) / kReferenceRows;
    const std::size_t share = (blocks + static_cast<std::size_t>(threads) - 1) / static_cast<std::size_t>(threads);
    const std::size_t rows_per_job = std::min<std::size_t>(share, 8) * kReferenceRows;
    parallel_for(static_cast<std::int64_t>((end - begin + rows_per_job - 1) / rows_per_job), threads,
                 [&](std::int64_t job) {
                   const std::size_t first = begin + static_cast<std::size_t>(job) * rows_per_job;
                   const std::size_t last = std::min(end, first + rows_per_job);
                   ReferenceScratch scratch;
                   add_functions(batch, scratch);
                   std::optional<ExpressionEvaluator> mask;
                   if (mask_) mask.emplace(*mask_, elements_of(*mask_));
                   for (std::size_t i = first; i < last;) {
                     std::vector<ReferenceRow> rows;
                     for (const std::size_t stop = block_end(i, last); i < stop; ++i)
                       rows.push_back(make_row(tasks_[i], mask ? &*mask : nullptr));
                     reference_block(head, what, rows, scratch);
                   }
                 });
  }

  void add_functions(std::int64_t batch, ReferenceScratch& scratch) const {
    if (softcap_) scratch.softcap.emplace(*softcap_);
    if (alibi_)
      scratch.alibi.emplace(*alibi_, [this, batch](int, std::span<const std::int32_t> indices) -> double {
        return slope_at(p_, inputs_.alibi, batch, indices[0]);
      });
    if (score_) scratch.score.emplace(*score_, elements_of(*score_));
  }

  ExpressionElements elements_of(const Expression& expression) const {
    return [this, numbers = tensor_numbers(p_, expression)](int tensor, std::span<const std::int32_t> indices) {
      return inputs_.tensors[static_cast<std::size_t>(numbers[static_cast<std::size_t>(tensor)])].at(indices);
    };
  }

  // Rows of a block are all multiplied with the keys that any of them sees: under a window, rows of a sample that are
  // far apart would be with most keys.
  std::size_t block_end(std::size_t begin, std::size_t end) const {
    KeyRange<std::int64_t> any = band_.keys_of_row(tasks_[begin].row);
    std::int64_t most = any.size();
    std::size_t at = begin + 1;
    for (; at < std::min(end, begin + kReferenceRows); ++at) {
      const KeyRange<std::int64_t> keys = band_.keys_of_row(tasks_[at].row);
      if (keys.empty()) continue;
      any = any.empty() ? keys : KeyRange{std::min(any.begin, keys.begin), std::max(any.end, keys.end)};
      most = std::max(most, keys.size());
      if (any.size() > 2 * most) break;
    }
    return at;
  }

  ReferenceRow make_row(const Task& task, ExpressionEvaluator* mask) {
    ReferenceRow row;
    row.q.resize(static_cast<std::size_t>(p_.head_dim));
    for (std::int64_t d = 0; d < p_.head_dim; ++d)
      row.q[static_cast<std::size_t>(d)] = inputs_.q.at(task.batch, task.head, task.row, d);
    row.q_factor = descale_q_at(p_, inputs_.descale_q, task.batch, task.head, task.row);
    row.keys = band_.keys_of_row(task.row);
    row.at.b = static_cast<std::int32_t>(inputs_.first_batch + task.batch),
    row.at.h = static_cast<std::int32_t>(task.head);
    row.at.hk = static_cast<std::int32_t>(task.head / p_.group_size()), row.at.i = static_cast<std::int32_t>(task.row);
    row.at.seqlen_q = static_cast<std::int32_t>(p_.seqlen_q);
    row.at.seqlen_kv = static_cast<std::int32_t>(p_.seqlen_kv);
    if (mask) {
      row.visible.resize(static_cast<std::size_t>(row.keys.size()));
      ExpressionPoint from = row.at;
      from.j = static_cast<std::int32_t>(row.keys.begin);
      mask->masks(from, row.visible);
    }
    if (p_.sink) row.sink = inputs_.sink[static_cast<std::size_t>(task.head)];
    row.ideal_o = result_.ideal_o.data() + task.out * p_.head_dim_v;
    row.ideal_lse = result_.ideal_lse.data() + task.out;
    if (ideal_only_) return row;
    row.o = result_.o.data() + task.out * p_.head_dim_v;
    row.lse = result_.lse.data() + task.out;
    row.predicted_o = result_.predicted_o.data() + task.out;
    row.predicted_lse = result_.predicted_lse.data() + task.out;
    row.budget = result_.budgets.data() + task.out;
    if (p_.amax) row.amax = result_.amax.data() + task.out, row.amax_error = result_.amax_error.data() + task.out;
    return row;
  }

  const Problem& p_;
  const Band<std::int64_t> band_;
  const AttentionInputs& inputs_;
  std::vector<Task> tasks_;
  bool ideal_only_;
  std::optional<Expression> softcap_, alibi_;  // what the problem's names stand for
  std::optional<Expression> score_, mask_;     // the user's own
  std::vector<std::size_t> starts_;            // of each run of tasks that share a head of k and v, and the end
  Reference result_;
};

}  // namespace

RowSample choose_rows(const Problem& problem, double max_flops, std::uint64_t seed) {
  const double flops = problem.flops();
  if (flops <= max_flops) return {};
  if (!problem.ragged()) return RowChooser(problem, max_flops, seed).choose();
  return choose_rows(problem, problem.sequences(), max_flops, seed);
}

RowSample choose_rows(const Problem& problem, const std::vector<SequenceLengths>& sequences, double max_flops,
                      std::uint64_t seed) {
  double flops = 0;
  for (const SequenceLengths& each : sequences) flops += problem.of_sequence(each).flops();
  RowSample sample;
  sample.all = false;
  const Boundaries boundaries = boundaries_of(sequences);
  if (flops <= max_flops) {
    for (std::int64_t head = 0; head < problem.heads_q; ++head)
      for (std::int64_t row = 0; row < boundaries.q.back(); ++row) sample.rows.push_back({0, head, row});
    return sample;
  }
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s].q == 0) continue;
    const Problem one = problem.of_sequence(sequences[s]);
    for (const auto& [b, h, row] : RowChooser(one, max_flops * one.flops() / flops, seed + s).choose().rows)
      sample.rows.push_back({0, h, boundaries.q[s] + row});
  }
  return sample;
}

namespace {

void check_inputs(const Problem& problem, const AttentionInputs& inputs) {
  problem.validate();
  const ProblemLayouts expected = make_layouts(problem, Layout::kBhsd);
  const auto fits = [](const HostTensor& tensor, const TensorLayout& as) {
    const TensorLayout& at = tensor.layout;
    return at.batch == as.batch && at.heads == as.heads && at.rows == as.rows && at.columns == as.columns;
  };
  FC_CHECK(fits(inputs.q, expected.q) && fits(inputs.k, expected.k) && fits(inputs.v, expected.v));
  const DescaleCounts counts = descale_counts(problem, expected);
  FC_CHECK(static_cast<std::int64_t>(inputs.descale_q.size()) == counts.q);
  FC_CHECK(static_cast<std::int64_t>(inputs.descale_k.size()) == counts.k);
  FC_CHECK(static_cast<std::int64_t>(inputs.descale_v.size()) == counts.v);
  FC_CHECK(static_cast<std::int64_t>(inputs.sink.size()) == problem.sink_count());
  FC_CHECK(static_cast<std::int64_t>(inputs.alibi.size()) == problem.alibi_count());
  FC_CHECK(inputs.tensors.size() == problem.tensors.size());
  const auto sequences = static_cast<std::size_t>(problem.paged() ? problem.batch : 0);
  FC_CHECK(inputs.seqused_kv.size() == sequences);
  FC_CHECK(inputs.block_table.size() >= sequences * static_cast<std::size_t>(expected.max_pages));
}

}  // namespace

namespace {

// Rows of a ragged batch, by sequence: where they are in it, and in the results.
struct SequenceRows {
  RowSample sample;
  std::vector<std::int64_t> out;
};

std::vector<SequenceRows> rows_by_sequence(const Problem& problem, const Boundaries& boundaries,
                                           const RowSample& rows) {
  std::vector<SequenceRows> all(static_cast<std::size_t>(problem.batch));
  const auto add = [&](std::int64_t head, std::int64_t row, std::int64_t out) {
    const auto s = static_cast<std::size_t>(sequence_of_row(boundaries.q, row));
    all[s].sample.rows.push_back({0, head, row - boundaries.q[s]});
    all[s].out.push_back(out);
  };
  for (SequenceRows& each : all) each.sample.all = false;
  const std::int64_t total = boundaries.q.back();
  if (rows.all) {
    for (std::int64_t out = 0; out < problem.heads_q * total; ++out) add(out / total, out % total, out);
    return all;
  }
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const auto& [b, head, row] = rows.rows[i];
    FC_CHECK(b == 0 && head >= 0 && head < problem.heads_q);
    add(head, row, static_cast<std::int64_t>(i));
  }
  return all;
}

template <class Value>
void scatter(const std::vector<Value>& from, const std::vector<std::int64_t>& out, std::int64_t width,
             std::vector<Value>& to, std::size_t rows) {
  if (from.empty()) return;
  to.resize(rows * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < out.size(); ++i)
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(i) * width, width, to.begin() + out[i] * width);
}

// Of the head of its batch entry. Rows of a ragged batch are in the order of their sample, or of head and row.
void limit_by_heads(const Problem& problem, const RowSample& rows, Reference& reference) {
  std::vector<std::int32_t>& heads = reference.head_of_row;
  const std::int64_t of_head =
      reference.rows / std::max<std::int64_t>(1, problem.heads_q * (problem.ragged() ? 1 : problem.batch));
  for (std::int64_t row = 0; row < reference.rows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    const std::int64_t head = rows.all ? row / of_head : rows.rows[at].batch * problem.heads_q + rows.rows[at].head;
    heads.push_back(static_cast<std::int32_t>(head));
  }
  limit_heads(problem, reference);
}

// Those by which a sequence with more of all keys would keep other cores waiting have all of them; the others have one
// core each.
constexpr std::int64_t kShareOfOneCore = 2;

// Each sequence by itself, and its rows put where they belong.
Reference of_sequences(const Problem& problem, const std::vector<SequenceLengths>& sequences,
                       const AttentionInputs& inputs, const RowSample& rows, bool ideal_only, int threads) {
  const Boundaries boundaries = boundaries_of(sequences);
  const std::vector<SequenceRows> by_sequence = rows_by_sequence(problem, boundaries, rows);
  Reference all;
  for (const SequenceRows& each : by_sequence) all.rows += static_cast<std::int64_t>(each.out.size());
  const auto count = static_cast<std::size_t>(all.rows);
  std::vector<Reference> parts(sequences.size());
  const auto run = [&](std::size_t s, int with_threads) {
    if (by_sequence[s].out.empty()) return;
    const Problem one = problem.of_sequence(sequences[s]);
    const AttentionInputs own = inputs_of_sequence(problem, inputs, boundaries, static_cast<std::int64_t>(s));
    parts[s] = ReferenceRun(one, own, make_tasks(one, by_sequence[s].sample), ideal_only).run(with_threads);
  };
  std::vector<std::size_t> small;
  const std::int64_t cores = threads > 0 ? threads : hardware_threads();
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s].kv * cores * kShareOfOneCore > boundaries.kv.back()) run(s, threads);
    else small.push_back(s);
  }
  parallel_for(static_cast<std::int64_t>(small.size()), threads,
               [&](std::int64_t i) { run(small[static_cast<std::size_t>(i)], 1); });
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<std::int64_t>& out = by_sequence[s].out;
    if (out.empty()) continue;
    const Reference& part = parts[s];
    scatter(part.o, out, problem.head_dim_v, all.o, count);
    scatter(part.lse, out, 1, all.lse, count);
    scatter(part.ideal_o, out, problem.head_dim_v, all.ideal_o, count);
    scatter(part.ideal_lse, out, 1, all.ideal_lse, count);
    scatter(part.predicted_o, out, 1, all.predicted_o, count);
    scatter(part.predicted_lse, out, 1, all.predicted_lse, count);
    scatter(part.budgets, out, 1, all.budgets, count);
    scatter(part.amax, out, 1, all.amax, count);
    scatter(part.amax_error, out, 1, all.amax_error, count);
  }
  return all;
}

}  // namespace

void limit_heads(const Problem& problem, Reference& reference) {
  reference.scale_limits = limit_scales(problem, reference.head_of_row, reference.o, reference.budgets, kFalseAlarm);
  reference.lse_limits = limit_lse(reference.head_of_row, reference.lse, reference.budgets, kFalseAlarm);
}

Reference reference_forward(const Problem& problem, const AttentionInputs& inputs, const RowSample& rows, int threads) {
  check_inputs(problem, inputs);
  Reference reference = problem.ragged() ? of_sequences(problem, problem.sequences(), inputs, rows, false, threads)
                                         : ReferenceRun(problem, inputs, make_tasks(problem, rows), false).run(threads);
  limit_by_heads(problem, rows, reference);
  return reference;
}

Reference reference_forward(const Problem& problem, const std::vector<SequenceLengths>& sequences,
                            const AttentionInputs& inputs, const RowSample& rows, int threads) {
  check_inputs(problem, inputs);
  FC_CHECK(problem.ragged() && !rows.all);
  Reference reference = of_sequences(problem, sequences, inputs, rows, false, threads);
  limit_by_heads(problem, rows, reference);
  return reference;
}

Reference ideal_forward(const Problem& problem, const AttentionInputs& inputs, int threads) {
  check_inputs(problem, inputs);
  if (problem.ragged()) return of_sequences(problem, problem.sequences(), inputs, {}, true, threads);
  return ReferenceRun(problem, inputs, make_tasks(problem, {}), true).run(threads);
}

std::vector<float> gather_rows(const HostTensor& tensor, const RowSample& rows) {
  const TensorLayout& at = tensor.layout;
  std::vector<float> values;
  const auto take = [&](std::int64_t b, std::int64_t h, std::int64_t row) {
    for (std::int64_t column = 0; column < at.columns; ++column) values.push_back(tensor.at(b, h, row, column));
  };
  if (!rows.all) {
    values.reserve(rows.rows.size() * static_cast<std::size_t>(at.columns));
    for (const auto& [b, h, row] : rows.rows) take(b, h, row);
    return values;
  }
  values.reserve(static_cast<std::size_t>(at.elements()));
  for (std::int64_t b = 0; b < at.batch; ++b) {
    for (std::int64_t h = 0; h < at.heads; ++h) {
      for (std::int64_t row = 0; row < at.rows; ++row) take(b, h, row);
    }
  }
  return values;
}

std::vector<float> gather_lse(const Problem& problem, const std::vector<float>& lse, const RowSample& rows) {
  const TensorLayout at = make_layouts(problem, Layout::kBhsd).o;
  FC_CHECK(static_cast<std::int64_t>(lse.size()) == at.batch * at.heads * at.rows);
  if (rows.all) return lse;
  std::vector<float> values;
  values.reserve(rows.rows.size());
  for (const auto& [b, h, row] : rows.rows)
    values.push_back(lse[static_cast<std::size_t>((b * at.heads + h) * at.rows + row)]);
  return values;
}

}  // namespace flashcore
