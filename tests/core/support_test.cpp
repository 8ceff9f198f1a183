// hash, parallel and tensor: the small things under everything else.

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/hash.h"
#include "core/operands.h"
#include "core/parallel.h"

namespace flashcore {
namespace {

TEST(HashTest, IsXxh3Of128Bits) {
  EXPECT_EQ(hash128(""), "99aa06d3014798d86001c324468d497f");  // from the xxHash specification's test vectors
  EXPECT_EQ(hash128("flashcore").size(), 32u);
  EXPECT_NE(hash128("flashcore"), hash128("flashcorf"));
}

TEST(HashTest, PartsAreKeptApart) {
  EXPECT_NE(Hasher().add("ab").add("c").hex(), Hasher().add("a").add("bc").hex());
  EXPECT_NE(Hasher().add("").hex(), Hasher().hex());
  EXPECT_EQ(Hasher().add("ab").add("c").hex(), Hasher().add("ab").add("c").hex());
}

TEST(ParallelTest, CallsEveryIndexOnce) {
  for (const int threads : {0, 1, 2, 7}) {
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      parallel_for(count, threads, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      for (const auto& n : calls) EXPECT_EQ(n, 1);
    }
  }
  EXPECT_GE(hardware_threads(), 1);
}

TEST(ParallelTest, RethrowsAndStopsEarly) {
  for (const int threads : {1, 4}) {
    std::atomic<std::int64_t> calls{0};
    const auto body = [&](std::int64_t i) {
      ++calls;
      if (i == 3) throw std::runtime_error("three");
    };
    EXPECT_THROW(parallel_for(1'000'000, threads, body), std::runtime_error);
    EXPECT_LT(calls, 1'000'000);
  }
}

TEST(TensorTest, LayoutsAddressEveryElementOnceWithinTheSpan) {
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
    const TensorLayout at = make_layout(layout, 2, 3, 5, 7);
    EXPECT_EQ(at.elements(), 210);
    std::vector<int> used(static_cast<std::size_t>(at.span()), 0);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t row = 0; row < 5; ++row) {
          for (std::int64_t c = 0; c < 7; ++c) ++used.at(static_cast<std::size_t>(at.offset(b, h, row) + c));
        }
      }
    }
    EXPECT_EQ(std::accumulate(used.begin(), used.end(), 0), 210);
    EXPECT_EQ(*std::max_element(used.begin(), used.end()), 1);
    EXPECT_EQ(at.span(), layout == Layout::kStrided ? 2 * 5 * 3 * 15 - 8 : 210);
  }
  EXPECT_EQ(make_layout(Layout::kStrided, 2, 3, 0, 7).span(), 0);
}

TEST(TensorTest, StridesAreMultiplesOf16BytesWhereRowsAre) {
  for (const char* id : {"b2_h3_s5_d16_e4m3_strided", "b2_h3_s5_d8_bf16_strided", "b2_h3_s5_d4_fp32_strided"}) {
    const PlacedProblem problem = PlacedProblem::parse(id);
    const ProblemLayouts layouts = make_layouts(problem);
    const auto bytes = static_cast<std::int64_t>(size_of(problem.dtype));
    EXPECT_EQ(layouts.q.stride_head * bytes, problem.head_dim * bytes + 16) << id;
    EXPECT_EQ(layouts.k.stride_head * bytes, problem.head_dim * bytes + 32) << id;
    EXPECT_EQ(layouts.k.stride_row, 2 * layouts.k.stride_batch) << id;
    EXPECT_EQ(layouts.v.stride_row * bytes, problem.head_dim * bytes + 48) << id;
    for (const TensorLayout& at : {layouts.q, layouts.k, layouts.v}) {
      EXPECT_EQ(at.stride_head * bytes % 16, 0) << id;
      EXPECT_EQ(at.stride_row * bytes % 16, 0) << id;
      EXPECT_EQ(at.stride_batch * bytes % 16, 0) << id;
    }
    EXPECT_EQ(layouts.o.stride_head * static_cast<std::int64_t>(size_of(problem.output_dtype())) % 16, 0) << id;
  }
}

TEST(TensorTest, StridesOfTheNamedLayouts) {
  const TensorLayout bhsd = make_layout(Layout::kBhsd, 2, 3, 5, 7), bshd = make_layout(Layout::kBshd, 2, 3, 5, 7);
  EXPECT_EQ((std::vector<std::int64_t>{bhsd.stride_batch, bhsd.stride_head, bhsd.stride_row}),
            (std::vector<std::int64_t>{105, 35, 7}));
  EXPECT_EQ((std::vector<std::int64_t>{bshd.stride_batch, bshd.stride_head, bshd.stride_row}),
            (std::vector<std::int64_t>{105, 7, 21}));
  const ProblemLayouts layouts = make_layouts(PlacedProblem::parse("b2_h6_hk3_sq5_sk9_d16_dv8_fp16"));
  EXPECT_EQ(layouts.q.elements(), 2 * 6 * 5 * 16);
  EXPECT_EQ(layouts.k.elements(), 2 * 3 * 9 * 16);
  EXPECT_EQ(layouts.v.elements(), 2 * 3 * 9 * 8);
  EXPECT_EQ(layouts.o.elements(), 2 * 6 * 5 * 8);
  EXPECT_EQ(layouts.lse_elements, 2 * 6 * 5);
}

TEST(TensorTest, HostTensorStoresRoundedValues) {
  HostTensor tensor(DType::kBF16, make_layout(Layout::kBshd, 1, 2, 3, 4));
  EXPECT_EQ(tensor.data.size(), 48u);
  tensor.set(0, 1, 2, 3, 0.1f);
  EXPECT_EQ(tensor.at(0, 1, 2, 3), round_to(DType::kBF16, 0.1f));
  EXPECT_EQ(tensor.at(0, 0, 0, 0), 0.0f);
}

}  // namespace
}  // namespace flashcore
