// Paged caches in every family that reads them, on the emulated GPU and on the CPU: lengths and tables are read at each
// launch, rows behind a last page and pages of nobody are not read, and tables that no cache has make NaN of the rows
// that need them and touch nothing else.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/problem_fields.h"
#include "core/ragged.h"
#include "device/cpu/cpu_device.h"
#include "kernels/candidates.h"
#include "kernels/emulator_run.h"
#include "kernels/gpu_family.h"

namespace flashcore::testing {
namespace {

constexpr std::int32_t kLeastInt = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMostInt = std::numeric_limits<std::int32_t>::max();

// One candidate bound once, and launched on any lengths and tables.
class PagedBatch {
 public:
  PagedBatch(const char* candidate_text, const char* id, std::string_view arch = "sm_90")
      : problem_(PlacedProblem::parse(widened(candidate_text, id))),
        layouts_(make_layouts(problem_)),
        at_(boundaries_of(problem_)) {
    const bool on_cpu = std::string_view(candidate_text).starts_with("cpu");
    device_ = on_cpu ? open_cpu_device() : open_emulator(arch);
    const DeviceLimits& limits = device_->info().limits;
    const Candidate candidate = parse_candidate(candidate_text, problem_, limits);
    loaded_ = std::make_unique<LoadedCandidate>(*device_, candidate, problem_,
                                                compile_candidate(candidate, problem_, limits));
    inputs_ = make_inputs(problem_, Pattern::kNormal, 7);
    table = inputs_.block_table, used = inputs_.seqused_kv;
    q_ = put(inputs_.q), k_ = put(inputs_.k), v_ = put(inputs_.v);
    o_ = device_->allocate(static_cast<std::size_t>(layouts_.o.span()) * size_of(problem_.output_dtype()), 4096);
    lse_ = device_->allocate(static_cast<std::size_t>(layouts_.lse_elements) * sizeof(float), 4096);
    const std::vector<std::int32_t> cu_q(at_.q.begin(), at_.q.end());
    cu_q_ = device_->allocate(cu_q.size() * 4, 4096);
    device_->upload(cu_q_->data(), cu_q.data(), cu_q.size() * 4);
    table_ = device_->allocate(table.size() * 4, 4096), used_ = device_->allocate(used.size() * 4, 4096);
    AttentionArgs args{q_->data(), k_->data(), v_->data(), o_->data(), static_cast<float*>(lse_->data()), layouts_};
    args.cu_seqlens_q = static_cast<const std::int32_t*>(cu_q_->data());
    args.block_table = static_cast<const std::int32_t*>(table_->data());
    args.seqused_kv = static_cast<const std::int32_t*>(used_->data());
    const auto put_floats = [&](const std::vector<float>& values) -> const float* {
      if (values.empty()) return nullptr;
      floats_.push_back(device_->allocate(values.size() * sizeof(float), 4096));
      device_->upload(floats_.back()->data(), values.data(), values.size() * sizeof(float));
      return static_cast<const float*>(floats_.back()->data());
    };
    args.sink = put_floats(inputs_.sink), args.alibi = put_floats(inputs_.alibi);
    args.descale_q = put_floats(inputs_.descale_q), args.descale_k = put_floats(inputs_.descale_k);
    args.descale_v = put_floats(inputs_.descale_v);
    // Written and, but for its place, not looked at: the gates judge it.
    const std::vector<float> amax(static_cast<std::size_t>(problem_.amax_count()));
    args.amax = const_cast<float*>(put_floats(amax));
    for (std::size_t t = 0; t < inputs_.tensors.size(); ++t) {
      const std::vector<std::byte>& data = inputs_.tensors[t].data;
      tensors_.push_back(device_->allocate(data.size(), 4096));
      device_->upload(tensors_.back()->data(), data.data(), data.size());
      args.tensors[t] = tensors_.back()->data();
    }
    launch_ = loaded_->bind(args);
  }

  const PlacedProblem& problem() const { return problem_; }
  std::int32_t pages() const { return static_cast<std::int32_t>(layouts_.pages); }
  std::int32_t& entry(std::int64_t s, std::int64_t page) {
    return table[static_cast<std::size_t>(s * layouts_.table_stride + page)];
  }

  // What is wrong after a launch, or after two at once; "" if nothing.
  std::string run(bool twice = false) {
    device_->upload(table_->data(), table.data(), table.size() * 4);
    device_->upload(used_->data(), used.data(), used.size() * 4);
    device_->fill(o_->data(), 0xff, o_->size());
    device_->fill(lse_->data(), 0xff, lse_->size());
    try {
      std::thread other;
      if (twice) other = std::thread([&] { launch_(); });
      launch_();
      if (twice) other.join();
      device_->synchronize();
    } catch (const DeviceFault& fault) {
      return fault.what();
    }
    o = HostTensor(problem_.output_dtype(), layouts_.o);
    lse.resize(static_cast<std::size_t>(layouts_.lse_elements));
    device_->download(o.data.data(), o_->data(), o.data.size());
    device_->download(lse.data(), lse_->data(), lse.size() * 4);
    for (std::int64_t s = 0; s < problem_.batch; ++s)
      if (std::string wrong = judge(s); !wrong.empty()) return fmt::format("sequence {}: {}", s, wrong);
    for (const Buffer* buffer : {q_.get(), k_.get(), v_.get(), o_.get(), lse_.get(), table_.get(), used_.get()})
      if (!buffer->red_zones_intact()) return "a red zone was written";
    return "";
  }

  std::vector<std::int32_t> table, used;
  HostTensor o;
  std::vector<float> lse;

 private:
  std::unique_ptr<Buffer> put(const HostTensor& tensor) {
    auto buffer = device_->allocate(tensor.data.size(), 4096);
    device_->upload(buffer->data(), tensor.data.data(), tensor.data.size());
    return buffer;
  }

  // By the contract, not by the code under test: the keys out of their pages, in fp64.
  std::string judge(std::int64_t s) const {
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t first = at_.q[at], rows = at_.q[at + 1] - first, keys = used[at];
    const auto lse_at = [&](std::int64_t head, std::int64_t row) {
      return lse[static_cast<std::size_t>(head * at_.q.back() + first + row)];
    };
    if (keys < 0 || keys > problem_.seqlen_kv || keys > layouts_.max_pages * problem_.page_size) {
      for (std::int64_t head = 0; head < problem_.heads_q; ++head)
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t c = 0; c < problem_.head_dim_v; ++c)
            if (!std::isnan(lse_at(head, row)) || !std::isnan(o.at(0, head, first + row, c)))
              return fmt::format("row {} of a bad sequence is not NaN", row);
      return "";
    }
    if (rows == 0) return "";
    const Problem one = problem_.of_sequence({rows, keys});
    Boundaries where = at_;
    for (std::size_t i = 0; i < where.kv.size(); ++i) where.kv[i] = i <= at ? 0 : keys;
    AttentionInputs given = inputs_;
    given.block_table = table;
    const AttentionInputs own = inputs_of_sequence(problem_, given, where, s);
    const Reference reference = reference_forward(one, own, {});
    std::vector<float> own_o, own_lse;
    for (std::int64_t head = 0; head < problem_.heads_q; ++head)
      for (std::int64_t row = 0; row < rows; ++row) {
        own_lse.push_back(lse_at(head, row));
        for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) own_o.push_back(o.at(0, head, first + row, c));
      }
    const OutputError error = compare(one, reference, own_o, own_lse);
    if (flashcore::within(error, error_bound(one, reference))) return "";
    return fmt::format("relative error {:.3g}, LSE {:.3g}, {} not finite", error.rel, error.lse_max_abs,
                       error.nonfinite);
  }

  PlacedProblem problem_;
  ProblemLayouts layouts_;
  Boundaries at_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<LoadedCandidate> loaded_;
  AttentionInputs inputs_;
  std::unique_ptr<Buffer> q_, k_, v_, o_, lse_, cu_q_, table_, used_;
  std::vector<std::unique_ptr<Buffer>> floats_, tensors_;
  Launch launch_;
};

// Some families load whole boxes of pages alone.
bool reads_pages(const std::string& candidate, const char* id, std::string_view arch = "sm_90") {
  const Family& family = family_by_name(candidate.substr(0, candidate.find(':')));
  const bool on_cpu = candidate.starts_with("cpu");
  const PlacedProblem problem = PlacedProblem::parse(widened(candidate, id));
  const DeviceInfo info = (on_cpu ? open_cpu_device() : open_emulator(arch))->info();
  return !family.why_unsupported(problem.problem(), info.limits);
}

// A config that is written out is not for every size, and no family is for every head dim.
bool is_valid(const char* candidate, const char* id, std::string_view arch = "sm_90") {
  const bool on_cpu = std::string_view(candidate).starts_with("cpu");
  try {
    parse_candidate(candidate, PlacedProblem::parse(id).problem(),
                    (on_cpu ? open_cpu_device() : open_emulator(arch))->info().limits);
    return true;
  } catch (const Error& e) {
    const std::string_view what = e.what();
    return what.find("is not valid for") == what.npos && what.find("head dim") == what.npos &&
           what.find("head_dim=") == what.npos;
  }
}

class PagedKernelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PagedKernelTest, EveryLayoutAndPageSize) {
  for (const char* id : {"b3_h4_hk2_sq3_sk40_d64_bf16_causal_raggedfull_page16",
                         "b4_h2_hk1_sq9_sk30_d24_dv40_fp16_bshd_raggedrandom_page1",
                         "b3_h2_sq5_sk40_d64_bf16_wl9_wr4_strided_raggedhalving_page7",
                         "b2_h2_sq7_sk20_d64_fp16_causaltl_softcap5_raggedrandom_page256",
                         "b5_h2_hk1_sq3_sk90_d24_dv40_bf16_bshd_raggedrandom_page24",
                         "b3_h2_sq5_sk140_d64_fp16_wl39_wr4_strided_alibi_sink_raggedhalving_page8"})
    if (reads_pages(GetParam(), id) && (std::string_view(GetParam()) != kDecodeEight || is_valid(kDecodeEight, id))) {
      EXPECT_EQ(PagedBatch(GetParam(), id).run(), "") << id;
    }
}

// One launch, bound once, as a captured graph is: a cache grows, pages are freed and given to others.
TEST_P(PagedKernelTest, LengthsAndTablesMayChangeBetweenLaunches) {
  PagedBatch batch(GetParam(), "b3_h2_hk1_sq2_sk40_d64_bf16_causal_bshd_raggedfull_page8");
  EXPECT_EQ(batch.run(), "");
  batch.used = {1, 0, 33};
  EXPECT_EQ(batch.run(), "");
  batch.used = {40, 17, 8};
  for (std::int64_t page = 0; page < 3; ++page) batch.entry(1, page) = batch.entry(0, page + 1);
  EXPECT_EQ(batch.run(), "") << "pages of a neighbour";
  for (std::int64_t page = 0; page < 5; ++page) batch.entry(2, page) = batch.entry(0, 4);
  batch.used = {40, 24, 40};
  EXPECT_EQ(batch.run(), "") << "one page five times";
}

// Whatever a table says: NaN where the contract has it, the reference's numbers elsewhere, no access outside. Of three
// sequences with 12 rows and 40 keys each, two heads and pages of 8 keys.
void try_hostile_tables(const char* candidate, const char* id, std::string_view arch = "sm_90") {
  PagedBatch batch(candidate, id, arch);
  const std::vector<std::int32_t> table = batch.table, used = batch.used;
  for (const std::int32_t page : {-1, batch.pages(), kMostInt, kLeastInt, -batch.pages()}) {
    batch.table = table;
    batch.entry(1, 4) = page;  // keys 32 to 39, which rows 0 to 3 do not see
    EXPECT_EQ(batch.run(), "") << page;
    EXPECT_TRUE(std::isnan(batch.lse[12 + 11])) << page;
    EXPECT_FALSE(std::isnan(batch.lse[12])) << page;
    batch.entry(1, 0) = page;
    EXPECT_EQ(batch.run(), "") << page;
    EXPECT_TRUE(std::isnan(batch.lse[12])) << page;
  }
  batch.table = table;
  for (const std::int32_t keys : {-1, 41, 48, 49, kMostInt, kLeastInt}) {
    batch.used = used;
    batch.used[1] = keys;
    EXPECT_EQ(batch.run(), "") << keys;
    EXPECT_TRUE(std::isnan(batch.lse[12])) << keys;
    EXPECT_FALSE(std::isnan(batch.lse[0])) << keys;
  }
  batch.used = used;
  EXPECT_EQ(batch.run(), "");
}

TEST_P(PagedKernelTest, HostileTablesGiveNaNAndTouchNothingElse) {
  try_hostile_tables(GetParam(), "b3_h2_sq12_sk40_d64_fp16_causal_raggedfull_page8");
}

// Pages that a window has left behind may be anybody's by now.
TEST_P(PagedKernelTest, PagesOutsideOfTheWindowAreNotLookedAt) {
  PagedBatch batch(GetParam(), "b2_h2_sq2_sk40_d64_fp16_causal_wl9_raggedfull_page8");
  std::int32_t nobodys = 0;  // which is full of NaN
  while (std::ranges::count(batch.table, nobodys) > 0) ++nobodys;
  ASSERT_LT(nobodys, batch.pages());
  for (std::int64_t page = 0; page < 3; ++page) batch.entry(0, page) = -1;
  EXPECT_EQ(batch.run(), "");
  EXPECT_FALSE(std::isnan(batch.lse[0]));
  for (std::int64_t page = 0; page < 3; ++page) batch.entry(0, page) = nobodys;
  EXPECT_EQ(batch.run(), "");
  EXPECT_FALSE(std::isnan(batch.lse[0]));
}

// Each with its default config, and those with tensor cores with others too.
INSTANTIATE_TEST_SUITE_P(All, PagedKernelTest,
                         ::testing::Values("cpu_fwd", kRef, kDecode, kDecodeEight, kDecodeParts, "sm80_wide_fwd",
                                           kWideHeads, kWideSplit, "sm90_wide_fwd", kHopperWide, kHopperWideSplit,
                                           "sm80_fwd", kSm80, kSm80Padded, "sm90_fwd", kSm90, kSm90Single,
                                           "sm90_short_fwd", kShortPages, kShortPagesParts, kShortPagesRows),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

// Quantised caches: int8 and int4, which have no NaN for the keys of a missing page, too.
class QuantisedCacheTest : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantisedCacheTest, EveryTypeScalingAndLayout) {
  for (const char* id : {"b3_h4_hk2_sq3_sk40_d64_bf16_kve4m3_causal_raggedfull_page16",
                         "b3_h4_hk2_sq3_sk40_d64_fp16_kve4m3_perhead_causal_bshd_raggedhalving_page7",
                         "b4_h2_hk1_sq9_sk30_d32_dv48_fp16_kve5m2_perhead_bshd_raggedrandom_page1",
                         "b3_h2_sq5_sk70_d80_bf16_kvint8_perhead_wl9_wr4_strided_raggedhalving_page7",
                         "b2_h8_hk1_sq7_sk90_d128_bf16_kvint8_causaltl_softcap5_alibi_sink_raggedrandom_page256",
                         "b2_h2_sq2_sk90_d256_fp16_kve4m3_unscaled_raggedhalving_page64",
                         "b2_h2_sq2_sk90_d112_dv16_bf16_kve5m2_unscaled_raggedhalving_page2",
                         "b3_h4_hk2_sq3_sk150_d64_bf16_kve4m3_pertoken_causal_bshd_raggedhalving_page16",
                         "b3_h2_sq5_sk70_d80_fp16_kvint8_pertoken_wl9_strided_softcap5_alibi_raggedrandom_page7",
                         "b2_h2_sq2_sk90_d256_bf16_kve5m2_pertoken_raggedhalving_page64",
                         "b1_h2_sq12_sk700_d64_bf16_kve4m3_pertoken_raggedfull_page32",
                         "b3_h4_hk2_sq3_sk150_d128_bf16_kvint4_perhead_causal_bshd_raggedhalving_page16",
                         "b3_h2_sq5_sk70_d96_dv32_fp16_kvint4_pertoken_wl9_strided_softcap5_alibi_raggedrandom_page7",
                         "b2_h2_sq2_sk90_d256_bf16_kvint4_pertoken_raggedhalving_page64",
                         "b2_h4_hk1_sq2_sk90_d576_dv512_bf16_kve4m3_bshd_raggedfull_page64",
                         "b2_h4_hk2_sq3_sk70_d272_dv144_fp16_kvint8_pertoken_causal_raggedhalving_page7",
                         "b3_h2_sq5_sk70_d320_fp16_kve5m2_perhead_wl9_strided_softcap5_alibi_sink_raggedrandom_page16",
                         "b2_h4_hk1_sq3_sk90_d288_dv160_bf16_kvint4_pertoken_causal_raggedrandom_page1"})
    EXPECT_EQ(is_valid(GetParam(), id) ? PagedBatch(GetParam(), id).run() : "", "") << id;
}

TEST_P(QuantisedCacheTest, HostileTablesGiveNaNAndTouchNothingElse) {
  for (const char* id : {"b3_h2_sq12_sk40_d64_fp16_kvint8_causal_raggedfull_page8",
                         "b3_h2_sq12_sk40_d64_bf16_kve4m3_perhead_causal_raggedfull_page8",
                         "b3_h2_sq12_sk40_d64_fp16_kve5m2_causal_raggedfull_page8",
                         "b3_h2_sq12_sk40_d64_fp16_kvint8_pertoken_causal_raggedfull_page8",
                         "b3_h2_sq12_sk40_d64_bf16_kvint4_causal_raggedfull_page8",
                         "b3_h2_sq12_sk40_d272_bf16_kve4m3_causal_raggedfull_page8",
                         "b3_h2_sq12_sk40_d144_fp16_kvint8_pertoken_causal_raggedfull_page8"})
    if (is_valid(GetParam(), id)) try_hostile_tables(GetParam(), id);
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantisedCacheTest,
    ::testing::Values("cpu_fwd", kRef, "sm80_wide_fwd", kWideSplit, "sm80_decode_fwd", kDecode, kDecodeParts,
                      "sm80_decode_fwd:warp_rows=16,row_warps=2,key_warps=2,block_n=32,num_stages=4", kDecodeEight,
                      "sm80_decode_fwd:warp_rows=8,key_warps=1,block_n=32,num_stages=2"));

// Without pages: packed, and dense.
TEST(QuantisedCachesTest, DenseAndPacked) {
  for (const char* id :
       {"b2_h4_hk2_sq3_sk70_d64_fp16_kve4m3", "b2_h4_hk2_sq3_sk70_d64_bf16_kvint8_perhead_causal",
        "b1_h4_hk1_sq2_sk90_d80_fp16_kve5m2_unscaled_strided",
        "b2_h4_hk2_sq3_sk300_d64_bf16_kvint8_pertoken_causal_bshd",
        "b2_h4_hk2_sq3_sk300_d64_bf16_kvint4_pertoken_causal_bshd", "b1_h4_hk1_sq2_sk90_d128_fp16_kvint4_strided",
        "b3_h8_hk2_sq2_sk200_d192_dv224_bf16_kvint4_perhead_strided_sink_raggedrandom",
        "b3_h8_hk2_sq2_sk200_d256_bf16_kve5m2_strided_softcap5_alibi_raggedrandom",
        "b2_h3_hk1_sq20_sk100_d48_dv208_bf16_kve4m3_causal_wl30_bshd_raggedhalving",
        "b1_h6_hk2_sq15_sk100_d272_dv144_fp16_kve4m3_pertoken_causal_strided",
        "b1_h4_hk1_sq2_sk150_d512_bf16_kvint8_perhead_softcap5_alibi_sink",
        "b3_h4_hk2_sq9_sk90_d320_fp16_kvint4_unscaled_wl20_raggedhalving"}) {
    const PlacedProblem problem = PlacedProblem::parse(id);
    for (const char* candidate : {kRef, kDecode, kDecodeEight, "sm80_decode_fwd", kWideHeads, "sm80_wide_fwd"})
      if (is_valid(candidate, id)) {
        EXPECT_EQ(run_on_emulator(device_sources(), candidate, problem, 2).verdict(), "passed")
            << candidate << " " << id;
      }
  }
}

// Families without a conversion say so, and that it is the cache.
TEST(QuantisedCachesTest, OthersRefuseByName) {
  const Problem problem = Problem::parse("b2_h4_s64_d64_fp16_kve4m3");
  std::vector<std::string> reasons;
  const std::unique_ptr<Device> device = open_emulator();
  std::vector<std::string> names;
  for (const Family* family : supporting_families(problem, device->info().limits, &reasons))
    names.push_back(family->name());
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"ref_fwd", "sm80_decode_fwd"}));
  EXPECT_EQ(dispatch(problem, device->info()).candidate.family->name(), "sm80_decode_fwd");
  std::size_t about_caches = 0;
  for (const std::string& reason : reasons) about_caches += reason.find("a cache of e4m3") != std::string::npos;
  EXPECT_GE(about_caches, 4u);
}

// Where a family's own ways to load matter: pages smaller and larger than a block of keys, and blocks that a page does
// not divide; more boxes to a block than a warp has lanes; rows of all tiles and keys of many blocks.
class PagedTensorCoreTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(PagedTensorCoreTest, IsRight) {
  const auto [candidate, id] = GetParam();
  EXPECT_EQ(PagedBatch(candidate, id).run(), "");
}

std::vector<std::pair<const char*, const char*>> pairs_of_tensor_cores() {
  constexpr const char* kIds[] = {
      "b2_h2_hk1_sq70_sk150_d128_bf16_causal_bshd_sink_raggedhalving_page48",
      "b2_h2_sq33_sk140_d256_fp16_alibibatch_raggedhalving_page64",
      "b2_h1_sq20_sk130_d128_fp16_causal_bshd_raggedfull_page2",
      "b2_h2_hk1_sq140_sk300_d64_bf16_causal_strided_raggedhalving_page1",
      "b2_h1_sq20_sk300_d64_bf16_wl100_wr30_strided_raggedhalving_page128",
      "b3_h2_sq130_sk150_d96_dv64_fp16_causal_bshd_softcap5_alibi_sink_raggedhalving_page256",
      "b3_h2_sq30_sk90_d72_dv40_bf16_raggedrandom_page7",
  };
  std::vector<std::pair<const char*, const char*>> pairs;
  for (const char* candidate : {"sm80_fwd", "sm90_fwd"})
    for (const char* id : kIds) pairs.emplace_back(candidate, id);
  // Blocks of 112 keys in boxes of 7, 16, 48 in boxes of 16, 128 in boxes of one.
  constexpr const char* kSm90Wide =
      "sm90_fwd:num_consumers=2,block_n=112,num_stages=2,q_stages=1,ping_pong=1,rescale_threshold=8,scheduler=1,"
      "cluster=1,key_groups=1";
  constexpr const char* kSm90Long =
      "sm90_fwd:num_consumers=2,block_n=128,num_stages=2,q_stages=1,ping_pong=1,rescale_threshold=8,scheduler=2,"
      "cluster=1,key_groups=1";
  pairs.emplace_back(kSm90Wide, "b2_h2_hk1_sq140_sk300_d64_bf16_causal_raggedhalving_page7");
  pairs.emplace_back(kSm90Wide, "b2_h2_hk1_sq40_sk300_d64_bf16_bshd_raggedhalving_page16");
  pairs.emplace_back(kSm90Single, "b2_h2_hk1_sq40_sk300_d64_bf16_bshd_raggedhalving_page16");
  pairs.emplace_back(kSm90Long, "b2_h2_hk1_sq140_sk300_d128_fp16_causal_bshd_raggedhalving_page1");
  pairs.emplace_back(kSm90Long, "b2_h2_hk1_sq140_sk300_d128_fp16_wl50_raggedhalving_page2");
  // More warps with boxes than boxes; head dims whose parts are uneven; more sequences than fit at once, some without
  // keys; tiles of the grid without rows; parts without blocks; blocks of several tiles of rows.
  constexpr const char* kShortDeep =
      "sm90_short_fwd:row_groups=1,key_groups=1,cluster=4,block_n=96,num_stages=3,pack_heads=16,early_launch=0";
  for (const char* candidate : {"sm90_short_fwd", kShortDeep, kShortPagesParts, kShortPagesRows})
    for (const char* id : {"b2_h2_hk1_sq4_sk150_d128_bf16_causal_bshd_sink_raggedhalving_page48",
                           "b3_h2_sq2_sk190_d96_dv64_fp16_causal_bshd_softcap5_alibi_sink_raggedhalving_page256",
                           "b20_h4_hk2_sq1_sk700_d64_bf16_bshd_raggedrandom_page16",
                           "b2_h2_hk1_sq140_sk300_d64_bf16_causal_strided_raggedhalving_page32",
                           "b3_h16_hk2_sq16_sk100_d72_dv40_bf16_wl30_wr10_raggedhalving_page8"})
      pairs.emplace_back(candidate, id);
  pairs.emplace_back("sm90_short_fwd", "b2_h2_sq3_sk140_d256_fp16_alibibatch_raggedhalving_page64");
  pairs.emplace_back(kSm90GroupsNoTurns, "b2_h2_hk1_sq140_sk300_d64_fp16_causal_raggedhalving_page1");
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(All, PagedTensorCoreTest, ::testing::ValuesIn(pairs_of_tensor_cores()));

// Pages whose distance is no multiple of their keys', as where one tensor holds more than keys.
TEST(PageEndMapTest, LeadsToTheKeysThatCountAndOutOfTheMapAfterThem) {
  constexpr int kRows = 4;
  for (const std::int64_t page_stride : {8 * 64, 8 * 64 + 24, 3 * 8 * 64 + 8}) {
    const TensorLayout layout{.batch = 5,
                              .heads = 2,
                              .rows = 8,
                              .columns = 40,
                              .stride_batch = page_stride,
                              .stride_head = 16,
                              .stride_row = 64};
    const PageEndMap end = page_end_map_of(0, DType::kF16, layout, kRows);
    const auto& map = end.map;
    for (std::int64_t page = 0; page < layout.batch; ++page)
      for (std::int64_t key = 0; key < layout.rows; key += kRows)
        for (std::int64_t valid = 1; valid < kRows; ++valid) {
          const std::int64_t last = page * end.steps_per_page + (key + valid) * end.steps_per_key;
          EXPECT_LT(last, static_cast<std::int64_t>(map.extents[3]));
          for (std::int64_t i = 0; i < kRows; ++i) {
            const std::int64_t row = kRows - valid + i;
            EXPECT_EQ(row < static_cast<std::int64_t>(map.extents[1]), i < valid);
            EXPECT_EQ(map.offset_bytes + row * static_cast<std::int64_t>(map.strides_bytes[0]) +
                          last * static_cast<std::int64_t>(map.strides_bytes[2]),
                      2 * layout.offset(page, 0, key + i));
          }
        }
  }
}

TEST(PageEndMapTest, TooManyStepsAreRefused) {
  const TensorLayout layout{.batch = std::int64_t{1} << 20,
                            .heads = 1,
                            .rows = 8,
                            .columns = 64,
                            .stride_batch = (std::int64_t{1} << 20) + 8,
                            .stride_head = 64,
                            .stride_row = 64};
  try {
    page_end_map_of(0, DType::kBF16, layout, 8);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("too many for a tensor map"), std::string::npos) << e.what();
  }
}

// The bits of the middle one of three sequences beside several neighbours: how many different ones there are.
std::size_t different_bits(const char* candidate) {
  PagedBatch batch(candidate, "b3_h2_hk1_sq1_sk600_d64_bf16_bshd_raggedfull_page16");
  std::set<std::vector<float>> seen;
  for (const auto& [before, after] : {std::pair(600, 600), {0, 0}, {17, 600}, {300, 1}, {600, -1}}) {
    batch.used = {before, 500, after};
    EXPECT_EQ(batch.run(), "") << before << " " << after;
    std::vector<float> row;
    for (std::int64_t head = 0; head < 2; ++head) {
      row.push_back(batch.lse[static_cast<std::size_t>(3 * head + 1)]);
      for (std::int64_t c = 0; c < 64; ++c) row.push_back(batch.o.at(0, head, 1, c));
    }
    seen.insert(row);
  }
  return seen.size();
}

TEST(PagedDecodeTest, WithPartsOfAFixedSizeTheBitsOfARowAreItsOwn) {
  EXPECT_EQ(different_bits(kDecodeParts), 1u);
  EXPECT_GT(different_bits(kDecode), 1u) << "keys dealt out evenly are cut where the neighbours say";
}

// As the fuzzer draws them.
TEST(PagedOnCpuTest, AnyHundredProblems) {
  constexpr double kMostFlops = 1e8;  // more takes the reference seconds each
  Draws draws(41);
  for (int found = 0; found < 100;) {
    const Problem p = random_problem(draws);
    if (!p.paged() || p.head_dim > 256 || p.head_dim_v > 256 || p.flops() > kMostFlops) continue;
    const Layout layout = draws.pick(std::array{Layout::kBhsd, Layout::kBshd, Layout::kStrided});
    const std::string id = PlacedProblem(p, layout).id();
    EXPECT_EQ(PagedBatch("cpu_fwd", id.c_str()).run(), "") << id;
    ++found;
  }
}

TEST(PagedOnCpuTest, LaunchesMayOverlap) {
  PagedBatch batch("cpu_fwd", "b5_h4_hk2_sq60_sk80_d32_fp32_causal_bshd_raggedfull_page16");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(batch.run(true), "");
}

TEST(PagedFamiliesTest, ThatReadPages) {
  const Problem problem = Problem::parse("b3_h2_sq12_sk40_d64_fp16_causal_raggedfull_page8");
  const std::unique_ptr<Device> device = open_emulator();
  std::vector<std::string> reasons;
  const auto families = supporting_families(problem, device->info().limits, &reasons);
  std::vector<std::string> names;
  for (const Family* family : families) names.push_back(family->name());
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"ref_fwd", "sm80_decode_fwd", "sm80_fwd", "sm90_fwd", "sm90_short_fwd"}));
  // Few rows are decoded, many are not.
  DeviceInfo ampere = device->info();
  ampere.limits = limits_of_arch("sm_80");
  const Problem prompt = Problem::parse("b3_h2_sq300_sk400_d64_fp16_causal_raggedfull_page8");
  EXPECT_EQ(dispatch(problem, device->info()).candidate.family->name(), "sm90_short_fwd");
  EXPECT_EQ(dispatch(problem, ampere).candidate.family->name(), "sm80_decode_fwd");
  EXPECT_EQ(dispatch(prompt, device->info()).candidate.family->name(), "sm90_fwd");
  EXPECT_EQ(dispatch(prompt, ampere).candidate.family->name(), "sm80_fwd");
  // Each of the others says that it is the pages, but those that take wide heads alone, or 8 bits, and the CPU's.
  int about_pages = 0;
  for (const std::string& reason : reasons) {
    const auto says = [&](const char* words) { return reason.find(words) != std::string::npos; };
    about_pages += says("paged caches");
    EXPECT_TRUE(says("paged caches") || says("head dim") || says("e4m3 and e5m2 only") || says("it runs on a CPU"))
        << reason;
  }
  EXPECT_GE(about_pages, 2);
}

TEST(PagedFamiliesTest, Fp32) {
  for (const char* candidate : {"cpu_fwd", kRef})
    EXPECT_EQ(PagedBatch(candidate, "b3_h2_sq5_sk40_d64_fp32_wl9_wr4_strided_raggedhalving_page7").run(), "")
        << candidate;
}

// q, k and v of 8 bits, and before sm_89 e4m3 without an instruction that converts it.
struct OnArch {
  const char* candidate;
  const char* arch;
};
class EightBitsTest : public ::testing::TestWithParam<OnArch> {};

TEST_P(EightBitsTest, EveryTypeScalingAndPageSize) {
  const auto& [candidate, arch] = GetParam();
  for (const char* id : {"b3_h4_hk2_sq3_sk40_d64_e4m3_perhead_causal_raggedfull_page16",
                         "b3_h4_hk2_sq1_sk150_d128_e4m3_raggedhalving_page1",
                         "b4_h2_hk1_sq9_sk30_d32_dv48_e5m2_ofp16_perhead_bshd_raggedrandom_page1",
                         "b2_h8_hk1_sq7_sk90_d128_e4m3_ofp16_causaltl_softcap5_alibi_sink_raggedfull_page256",
                         "b2_h2_sq2_sk90_d256_e4m3_perhead_raggedhalving_page64",
                         "b3_h2_sq5_sk70_d80_e5m2_unscaled_wl9_wr4_strided_raggedhalving_page7",
                         "b2_h4_sq2_sk90_d112_dv16_e4m3_oe4m3_raggedhalving_page16",
                         "b2_h4_hk1_sq3_sk90_d48_dv80_e4m3_oe5m2_sink_raggedfull_page16"})
    if (reads_pages(candidate, id, arch) && is_valid(candidate, id, arch)) {
      EXPECT_EQ(PagedBatch(candidate, id, arch).run(), "") << id;
    }
}

TEST_P(EightBitsTest, EmptySequencesAndHostileTables) {
  const auto& [candidate, arch] = GetParam();
  PagedBatch batch(candidate, "b3_h2_hk1_sq2_sk40_d64_e4m3_perhead_causal_sink_raggedfull_page8", arch);
  for (const auto& used : {std::vector{0, 0, 0}, {40, 0, 1}, {0, 33, 0}}) {
    batch.used = used;
    EXPECT_EQ(batch.run(), "") << used[0] << " " << used[1];
  }
  for (const char* id :
       {"b3_h2_sq12_sk40_d64_e4m3_causal_raggedfull_page8", "b3_h2_sq12_sk40_d64_e5m2_perhead_causal_raggedfull_page8"})
    if (reads_pages(candidate, id, arch) && is_valid(candidate, id, arch)) try_hostile_tables(candidate, id, arch);
}

INSTANTIATE_TEST_SUITE_P(All, EightBitsTest,
                         ::testing::Values(OnArch{kRef, "sm_90"}, OnArch{"sm80_decode_fwd", "sm_80"},
                                           OnArch{"sm80_decode_fwd", "sm_90"}, OnArch{kDecode, "sm_80"},
                                           OnArch{kDecodeEight, "sm_90"}, OnArch{kDecodeParts, "sm_90"},
                                           OnArch{"sm90_fp8_fwd", "sm_90"}, OnArch{kSm90Fp8, "sm_90"},
                                           OnArch{kSm90Fp8Single, "sm_90"}));

TEST(EightBitFamiliesTest, DenseAndPacked) {
  for (const char* id : {"b2_h4_hk2_sq3_sk70_d64_e4m3_perhead", "b1_h4_hk1_sq2_sk90_d80_e5m2_unscaled_strided",
                         "b2_h8_hk2_sq1_sk300_d192_dv224_e4m3_wl90_bshd_softcap5_alibibatch",
                         "b3_h8_hk2_sq2_sk200_d128_e4m3_perhead_causal_strided_sink_raggedhalving",
                         "b3_h3_hk1_sq20_sk100_d48_dv208_e5m2_ofp16_causal_wl30_bshd_raggedrandom"}) {
    for (const char* candidate : {kDecode, kDecodeEight, "sm80_decode_fwd"})
      if (is_valid(candidate, id)) {
        EXPECT_EQ(run_on_emulator(device_sources(), candidate, PlacedProblem::parse(id), 2).verdict(), "passed")
            << candidate << " " << id;
      }
  }
}

TEST(EightBitFamiliesTest, WhatDecodingRefuses) {
  const DeviceLimits limits = limits_of_arch("sm_80");
  const Family& family = family_by_name("sm80_decode_fwd");
  for (const auto& [id, says] : {std::pair("b1_h2_sq1_sk64_d64_e4m3_pertoken", "a factor for each row of q"),
                                 {"b1_h2_sq1_sk64_d64_e4m3_vdn", "v_layout dn"},
                                 {"b1_h2_sq1_sk64_d40_e5m2", "e5m2 with head dims that are multiples of 16"}})
    EXPECT_NE(family.why_unsupported(Problem::parse(id), limits).value_or("").find(says), std::string::npos) << id;
}

}  // namespace
}  // namespace flashcore::testing
