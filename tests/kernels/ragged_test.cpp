// Ragged batches in every family that has them, on the emulated GPU and on the CPU: lengths are read at each launch,
// neighbours do not leak, and boundaries that no batch has make NaN of their rows and touch nothing else.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "core/ragged.h"
#include "device/cpu/cpu_device.h"
#include "kernels/candidates.h"
#include "kernels/emulator_run.h"

namespace flashcore::testing {
namespace {

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr const char* kCandidates[] = {
    kRef,
    kSm80,
    "sm80_fwd:block_m=32,block_n=32,num_warps=2,num_stages=2,smem_layout=1,q_in_registers=1,persistent=0,ctas_per_sm=1",
    kSm90,
    kSm90Cluster,
    kSm90Groups,
    kDecode,
    kDecodeEight,
    kDecodeParts,
    kWideHeads,
    kWideSplit,
    kHopperWide,
    kHopperWideSplit,
    "cpu_fwd"};

struct Lengths {
  std::vector<std::int32_t> q, kv;                      // boundaries
  std::vector<std::int32_t> used = {}, rows_used = {};  // seqused_kv and seqused_q; empty: null, both for the second
};

// One candidate bound once to tensors of so many rows, and launched on any boundaries.
class Batch {
 public:
  Batch(const char* candidate_text, const char* id, Layout layout, SequenceLengths total)
      : problem_(Problem::parse(widened(candidate_text, id))),
        total_(total),
        layouts_(make_layouts(problem_, layout, total)) {
    const bool on_cpu = std::string_view(candidate_text).starts_with("cpu");
    device_ = on_cpu ? open_cpu_device() : open_emulator();
    const DeviceLimits& limits = device_->info().limits;
    const Candidate candidate = parse_candidate(candidate_text, problem_, limits);
    loaded_ = std::make_unique<LoadedCandidate>(*device_, candidate, problem_,
                                                compile_candidate(candidate, problem_, limits));
    // Values of a ragged problem with as many rows: which ones does not matter.
    Problem source = problem_.of_sequence(total);
    if (problem_.alibi == Alibi::kBatch) source.alibi = Alibi::kNone;
    inputs_ = make_inputs({source, layout}, Pattern::kNormal, 7);
    for (std::int64_t i = 0; i < problem_.alibi_count(); ++i)
      inputs_.alibi.push_back(0.02f * static_cast<float>(i + 1));
    q_ = room_for(inputs_.q), k_ = room_for(inputs_.k), v_ = room_for(inputs_.v);
    o_ = device_->allocate(static_cast<std::size_t>(layouts_.o.span()) * size_of(problem_.output_dtype()), 4096);
    lse_ = device_->allocate(static_cast<std::size_t>(layouts_.lse_elements) * sizeof(float), 4096);
    const auto batch = static_cast<std::size_t>(problem_.batch);
    cu_q_ = device_->allocate((batch + 1) * 4, 4096), cu_kv_ = device_->allocate((batch + 1) * 4, 4096);
    used_ = device_->allocate(batch * 4, 4096), rows_used_ = device_->allocate(batch * 4, 4096);
    if (!inputs_.alibi.empty()) {
      alibi_ = device_->allocate(inputs_.alibi.size() * 4, 4096);
      device_->upload(alibi_->data(), inputs_.alibi.data(), inputs_.alibi.size() * 4);
    }
    AttentionArgs args{q_->data(), k_->data(), v_->data(), o_->data(), static_cast<float*>(lse_->data()), layouts_};
    args.alibi = alibi_ ? static_cast<const float*>(alibi_->data()) : nullptr;
    args.cu_seqlens_q = static_cast<const std::int32_t*>(cu_q_->data());
    args.cu_seqlens_kv = static_cast<const std::int32_t*>(cu_kv_->data());
    all_keys_ = loaded_->bind(args);
    args.seqused_kv = static_cast<const std::int32_t*>(used_->data());
    some_keys_ = loaded_->bind(args);
    args.seqused_q = static_cast<const std::int32_t*>(rows_used_->data());
    some_rows_ = loaded_->bind(args);
  }

  const Problem& problem() const { return problem_; }

  // What is wrong after a launch; "" if nothing. `only`: rows of all other sequences are NaN in q, k and v.
  std::string run(const Lengths& lengths, std::int64_t only = -1) {
    const std::vector<Rows> rows = rows_of(lengths);
    AttentionInputs given = inputs_;
    const auto at = static_cast<std::size_t>(only);
    if (only >= 0) {
      spoil(given.q, rows[at].first_q, rows[at].len_q);
      spoil(given.k, rows[at].first_kv, rows[at].len_kv);
      spoil(given.v, rows[at].first_kv, rows[at].len_kv);
    }
    upload(given, lengths);
    try {
      (lengths.used.empty() ? all_keys_ : lengths.rows_used.empty() ? some_keys_ : some_rows_)();
      download();
    } catch (const DeviceFault& fault) {
      return fault.what();
    }
    if (only >= 0) return judge_sequence(rows[at], only);
    return judge(rows);
  }

  // Two threads at once, on the CPU.
  std::string run_twice(const Lengths& lengths) {
    upload(inputs_, lengths);
    std::thread other([&] { all_keys_(); });
    all_keys_();
    other.join();
    download();
    return judge(rows_of(lengths));
  }

 private:
  // By the contract, not by the code under test.
  struct Rows {
    std::int64_t first_q, len_q, first_kv, len_kv;
    bool bad;
  };
  static bool within(std::int64_t begin, std::int64_t end, std::int64_t used, std::int64_t bound, std::int64_t total) {
    return 0 <= begin && begin <= end && end <= total && 0 <= used && used <= end - begin && used <= bound;
  }
  std::vector<Rows> rows_of(const Lengths& lengths) const {
    std::vector<Rows> all;
    for (std::size_t s = 0; s < static_cast<std::size_t>(problem_.batch); ++s) {
      const std::int64_t q = lengths.q[s], q_end = lengths.q[s + 1], kv = lengths.kv[s], kv_end = lengths.kv[s + 1];
      const std::int64_t used = lengths.used.empty() ? kv_end - kv : lengths.used[s];
      const std::int64_t rows = lengths.rows_used.empty() ? q_end - q : lengths.rows_used[s];
      const bool good = within(q, q_end, rows, problem_.seqlen_q, total_.q) &&
                        within(kv, kv_end, used, problem_.seqlen_kv, total_.kv);
      const std::int64_t first = std::clamp<std::int64_t>(q, 0, total_.q);
      const std::int64_t most = std::clamp<std::int64_t>(q_end, first, total_.q) - first;
      all.push_back({first, !lengths.rows_used.empty() && 0 <= rows && rows <= most ? rows : most, kv, used, !good});
    }
    return all;
  }

  std::unique_ptr<Buffer> room_for(const HostTensor& tensor) { return device_->allocate(tensor.data.size(), 4096); }
  void put(const Buffer& to, const HostTensor& from) { device_->upload(to.data(), from.data.data(), from.data.size()); }
  void put(const Buffer& to, const std::vector<std::int32_t>& from) {
    if (!from.empty()) device_->upload(to.data(), from.data(), from.size() * 4);
  }
  void upload(const AttentionInputs& given, const Lengths& lengths) {
    put(*q_, given.q), put(*k_, given.k), put(*v_, given.v);
    put(*cu_q_, lengths.q), put(*cu_kv_, lengths.kv), put(*used_, lengths.used), put(*rows_used_, lengths.rows_used);
    device_->fill(o_->data(), 0xff, o_->size());
    device_->fill(lse_->data(), 0xff, lse_->size());
  }
  void download() {
    device_->synchronize();
    o = HostTensor(problem_.output_dtype(), layouts_.o);
    lse.resize(static_cast<std::size_t>(layouts_.lse_elements));
    device_->download(o.data.data(), o_->data(), o.data.size());
    device_->download(lse.data(), lse_->data(), lse.size() * 4);
  }
  static void spoil(HostTensor& tensor, std::int64_t first, std::int64_t length) {
    for (std::int64_t head = 0; head < tensor.layout.heads; ++head)
      for (std::int64_t row = 0; row < tensor.layout.rows; ++row)
        for (std::int64_t c = 0; (row < first || row >= first + length) && c < tensor.layout.columns; ++c)
          tensor.set(0, head, row, c, NAN);
  }

  // The sequence by itself, in fp64.
  std::string judge_sequence(const Rows& rows, std::int64_t s) const {
    const Problem one = problem_.of_sequence({rows.len_q, rows.len_kv});
    if (rows.len_q == 0) return "";
    const Boundaries where{{rows.first_q, rows.first_q + rows.len_q}, {rows.first_kv, rows.first_kv + rows.len_kv}};
    Problem batch = problem_;
    batch.alibi = Alibi::kNone;
    AttentionInputs own = inputs_of_sequence(batch, inputs_, where, 0);
    const std::int64_t slopes = problem_.alibi == Alibi::kBatch ? s * problem_.heads_q : 0;
    if (problem_.alibi != Alibi::kNone)
      own.alibi.assign(inputs_.alibi.begin() + slopes, inputs_.alibi.begin() + slopes + problem_.heads_q);
    const Reference reference = reference_forward(one, own, {});
    std::vector<float> own_o, own_lse;
    for (std::int64_t head = 0; head < problem_.heads_q; ++head)
      for (std::int64_t row = rows.first_q; row < rows.first_q + rows.len_q; ++row) {
        own_lse.push_back(lse_at(head, row));
        for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) own_o.push_back(o.at(0, head, row, c));
      }
    const OutputError error = compare(one, reference, own_o, own_lse);
    if (flashcore::within(error, error_bound(one, reference))) return "";
    return fmt::format("sequence {}: relative error {:.3g}, LSE {:.3g}, {} not finite", s, error.rel, error.lse_max_abs,
                       error.nonfinite);
  }

  float lse_at(std::int64_t head, std::int64_t row) const {
    return lse[static_cast<std::size_t>(head * total_.q + row)];
  }
  bool is_poison(std::int64_t head, std::int64_t row) const {
    const auto* first = o.data.data() + static_cast<std::size_t>(o.layout.offset(0, head, row)) * size_of(o.dtype);
    const float value = lse_at(head, row);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    return bits == 0xffffffffu &&
           std::all_of(first, first + o.layout.columns * static_cast<std::int64_t>(size_of(o.dtype)),
                       [](std::byte b) { return b == std::byte{0xff}; });
  }
  // All of it NaN, and written: the poison has every bit set.
  bool is_nan(std::int64_t head, std::int64_t row) const {
    bool all = std::isnan(lse_at(head, row)) && !is_poison(head, row);
    for (std::int64_t c = 0; c < o.layout.columns; ++c) all = all && std::isnan(o.at(0, head, row, c));
    return all;
  }

  std::string judge(const std::vector<Rows>& all) const {
    std::vector<int> owner(static_cast<std::size_t>(total_.q), -1);
    for (std::size_t s = 0; s < all.size(); ++s) {
      for (std::int64_t row = all[s].first_q; row < all[s].first_q + all[s].len_q; ++row) {
        owner[static_cast<std::size_t>(row)] = static_cast<int>(s);
        for (std::int64_t head = 0; all[s].bad && head < problem_.heads_q; ++head)
          if (!is_nan(head, row)) return fmt::format("row {} of the bad sequence {} is not NaN", row, s);
      }
      if (all[s].bad) continue;
      if (std::string wrong = judge_sequence(all[s], static_cast<std::int64_t>(s)); !wrong.empty()) return wrong;
    }
    for (std::int64_t row = 0; row < total_.q; ++row)
      for (std::int64_t head = 0; owner[static_cast<std::size_t>(row)] < 0 && head < problem_.heads_q; ++head)
        if (!is_poison(head, row)) return fmt::format("row {} is nobody's and was written", row);
    for (const Buffer* buffer : {q_.get(), k_.get(), v_.get(), o_.get(), lse_.get(), cu_q_.get(), cu_kv_.get()})
      if (!buffer->red_zones_intact()) return "a red zone was written";
    return "";
  }

  Problem problem_;
  SequenceLengths total_;
  ProblemLayouts layouts_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<LoadedCandidate> loaded_;
  AttentionInputs inputs_;
  std::unique_ptr<Buffer> q_, k_, v_, o_, lse_, cu_q_, cu_kv_, used_, rows_used_, alibi_;
  Launch all_keys_, some_keys_, some_rows_;
  HostTensor o;
  std::vector<float> lse;
};

class RaggedKernelTest : public ::testing::TestWithParam<const char*> {};

// Refused with windows and functions of scores, for want of registers (sm90_fwd/config.h), or with functions of scores
// and some head dims (sm80_decode_fwd/config.h).
bool has_few_traits(std::string_view candidate) {
  return candidate.find("key_groups=2") != candidate.npos || candidate == kDecodeEight;
}

// One launch, bound once, as a captured graph is: any lengths within the bounds, of tensors with rows to spare.
TEST_P(RaggedKernelTest, LengthsMayChangeBetweenLaunches) {
  const char* const id = has_few_traits(GetParam()) ? "b4_h4_hk2_sq70_sk90_d64_bf16_causal_raggedfull"
                                                    : "b4_h4_hk2_sq70_sk90_d64_bf16_causal_alibibatch_raggedfull";
  Batch batch(GetParam(), id, Layout::kBshd, {150, 200});
  const Lengths all[] = {
      {{0, 70, 71, 71, 140}, {0, 90, 90, 100, 190}},  // full, one row without a key, none with keys, full
      {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}},             // nothing
      {{0, 1, 65, 129, 150}, {0, 33, 97, 160, 200}},  // to the end of the tensors
      {{0, 33, 33, 66, 80}, {0, 10, 20, 25, 90}},     // more rows than keys
      {{10, 40, 60, 61, 61}, {5, 6, 36, 100, 164}},   // not from row 0
      {{0, 70, 71, 71, 140}, {0, 90, 90, 100, 190}, {3, 0, 10, 64}},
      {{0, 30, 60, 90, 120}, {0, 40, 80, 120, 160}, {40, 0, 1, 33}},
      {{0, 30, 60, 90, 120}, {0, 40, 80, 120, 160}, {40, 0, 1, 33}, {30, 4, 0, 7}},
      // Padding in front, more of it than a sequence may be long.
      {{9, 9, 81, 149, 150}, {10, 11, 20, 150, 200}, {1, 9, 90, 50}, {0, 70, 68, 1}},
  };
  for (const Lengths& lengths : all) EXPECT_EQ(batch.run(lengths), "") << lengths.q[1] << " " << lengths.kv[1];
}

// Without bounds of the mask a block of keys is taken in full up to the sequence's end: what comes next in memory is
// another's. In each layout, and with windows.
TEST_P(RaggedKernelTest, NeighboursDoNotLeak) {
  for (const char* id : {"b4_h2_hk1_sq70_sk90_d64_fp16_raggedfull", "b4_h2_sq70_sk90_d72_bf16_wl9_wr4_raggedfull",
                         "b4_h2_hk1_sq70_sk90_d64_bf16_causaltl_softcap5_raggedfull"}) {
    if (has_few_traits(GetParam()) && (Problem::parse(id).mask.left || Problem::parse(id).has_score())) continue;
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
      Batch batch(GetParam(), id, layout, {150, 200});
      const Lengths lengths{{0, 7, 76, 80, 150}, {0, 35, 45, 61, 151}};
      for (std::int64_t only = 0; only < 4; ++only) EXPECT_EQ(batch.run(lengths, only), "") << id;
      EXPECT_EQ(batch.run({lengths.q, lengths.kv, {5, 10, 0, 70}}, 3), "") << id;
    }
  }
}

TEST_P(RaggedKernelTest, HostileBoundariesGiveNaNAndTouchNothingElse) {
  Batch batch(GetParam(), "b3_h2_sq40_sk50_d64_fp16_causal_raggedfull", Layout::kBhsd, {110, 140});
  const Lengths good{{0, 40, 70, 110}, {0, 50, 90, 140}};
  struct Case {
    const char* name;
    Lengths lengths;
  };
  // No row is claimed by two sequences: it would hold the one's or the other's, and the emulator would name the race.
  const Case all[] = {
      {"begin before the tensor", {{-5, 30, 60, 90}, good.kv}},
      {"end before begin", {{0, 40, 20, 20}, good.kv}},
      {"end past the tensor", {{0, 40, 80, 115}, good.kv}},
      {"begin past the tensor", {{0, 40, 70, 70}, {0, 50, 90, 141}}},
      {"longer than the bound", {{0, 20, 40, 110}, good.kv}},
      {"much longer than the bound", {{0, 110, 110, 110}, good.kv}},
      {"all of int", {{kLeast, kMost, kMost, kLeast}, good.kv}},
      {"all of int, the other way", {{kMost, kLeast, kMost, kLeast}, good.kv}},
      {"keys before the tensor", {good.q, {-1, 49, 90, 140}}},
      {"keys end before they begin", {good.q, {0, 50, 40, 90}}},
      {"keys past the tensor", {good.q, {0, 50, 100, 150}}},
      {"more keys than the bound", {good.q, {0, 60, 90, 140}}},
      {"keys of all of int", {good.q, {kLeast, kMost, kLeast, kMost}}},
      {"more used than there are", {good.q, good.kv, {50, 41, 50}}},
      {"fewer than none used", {good.q, good.kv, {50, -1, kLeast}}},
      {"more rows used than the bound", {{0, 60, 70, 110}, good.kv, {50, 40, 50}, {41, 10, 0}}},
      {"as many used as an int has", {good.q, good.kv, {kMost, 40, 0}}},
      {"more rows used than there are", {good.q, good.kv, {50, 40, 50}, {40, 31, 40}}},
      {"fewer rows than none used", {good.q, good.kv, {50, 40, 50}, {-1, 30, kLeast}}},
      {"more rows used than the bound", {{0, 10, 60, 110}, good.kv, {50, 40, 50}, {10, 41, 40}}},
  };
  EXPECT_EQ(batch.run(good), "");
  for (const Case& one : all) EXPECT_EQ(batch.run(one.lengths), "") << one.name;
  EXPECT_EQ(batch.run(good), "");
}

INSTANTIATE_TEST_SUITE_P(All, RaggedKernelTest, ::testing::ValuesIn(kCandidates), [](const auto& given) {
  return std::string(given.param).substr(0, std::string_view(given.param).find(':')) + std::to_string(given.index);
});

// More sequences than the table of Hopper's tiles ranks; one; and those of which the longer has the fewer rows.
TEST(RaggedTilesTest, AnyNumberOfSequences) {
  for (const char* id :
       {"b300_h1_s20_d64_fp16_causal_raggedrandom", "b256_h1_s20_d64_fp16_causal_raggedrandom",
        "b1_h3_sq150_sk70_d64_bf16_causal_raggedfull", "b7_h2_sq150_sk200_d64_bf16_causal_raggedrandom"})
    EXPECT_EQ(run_on_emulator(device_sources(), kSm90Single, PlacedProblem::parse(id), 2).verdict(), "passed") << id;
}

// 8 bits, whose rows are half as long.
TEST(RaggedBytesTest, OtherLengthsNeighboursAndHostileBoundaries) {
  for (const char* candidate : {kAda, kSm90Fp8, kSm90Fp8Three, kSm90Fp8Single})
    for (const char* id : {"b3_h4_hk2_sq40_sk50_d64_e4m3_unscaled_causal_alibibatch_raggedfull",
                           "b3_h2_sq40_sk50_d48_e4m3_unscaled_wl9_wr4_raggedfull"}) {
      const std::string what = std::string(candidate) + " " + id;
      Batch batch(candidate, id, Layout::kBshd, {110, 140});
      const Lengths good{{0, 40, 70, 110}, {0, 50, 90, 140}};
      EXPECT_EQ(batch.run(good), "") << what;
      EXPECT_EQ(batch.run({{0, 1, 33, 40}, {5, 5, 38, 70}, {0, 20, 32}}), "") << what;
      EXPECT_EQ(batch.run({{0, 0, 0, 0}, {0, 0, 0, 0}}), "") << what;
      EXPECT_EQ(batch.run({good.q, good.kv, {50, 9, 1}, {3, 30, 40}}), "") << what;
      for (std::int64_t only = 0; only < 3; ++only) EXPECT_EQ(batch.run(good, only), "") << what;
      EXPECT_EQ(batch.run({{-5, 30, 60, 90}, good.kv}), "") << what;
      EXPECT_EQ(batch.run({{0, 110, 110, 110}, good.kv}), "") << what;
      EXPECT_EQ(batch.run({good.q, {kLeast, kMost, kLeast, kMost}}), "") << what;
      EXPECT_EQ(batch.run({good.q, good.kv, {50, 41, 50}}), "") << what;
    }
}

TEST(RaggedOnCpuTest, LaunchesMayOverlap) {
  Batch batch("cpu_fwd", "b5_h4_hk2_sq60_sk80_d32_fp32_causal_raggedfull", Layout::kBshd, {150, 200});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(batch.run_twice({{0, 60, 61, 61, 90, 150}, {0, 80, 80, 100, 120, 200}}), "");
}

}  // namespace
}  // namespace flashcore::testing
