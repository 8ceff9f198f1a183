// Overlap of strided tensors against every byte written down.
#include "api/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace flashcore::api {
namespace {

const void* at(std::int64_t offset) { return reinterpret_cast<const void*>(0x100000 + offset); }

std::vector<bool> bytes_of(const TensorLayout& t, std::int64_t element, std::int64_t start) {
  std::vector<bool> touched(1 << 14, false);
  for (std::int64_t b = 0; b < t.batch; ++b)
    for (std::int64_t h = 0; h < t.heads; ++h)
      for (std::int64_t row = 0; row < t.rows; ++row)
        for (std::int64_t byte = 0; byte < t.columns * element; ++byte)
          touched.at(static_cast<std::size_t>(start + t.offset(b, h, row) * element + byte)) = true;
  return touched;
}

TEST(Overlap, IsWhatTheBytesSay) {
  std::mt19937 random(7);
  const auto draw = [&](int from, int to) {
    return from + static_cast<std::int64_t>(random() % static_cast<unsigned>(to - from + 1));
  };
  int overlapping = 0, interleaved = 0;
  for (int i = 0; i < 20000; ++i) {
    TensorLayout t[2];
    std::int64_t start[2], element[2];
    for (int n = 0; n < 2; ++n) {
      t[n] = {draw(0, 3) == 0 ? draw(0, 3) : draw(1, 3), draw(1, 3), draw(1, 4), draw(1, 5), 0, 0, 0};
      std::int64_t* strides[] = {&t[n].stride_batch, &t[n].stride_head, &t[n].stride_row};
      for (std::int64_t* stride : strides) *stride = draw(0, 5) == 0 ? draw(-40, 40) : draw(0, 3) * draw(0, 30);
      element[n] = draw(0, 1) ? 4 : 2;
      start[n] = 4096 + element[n] * draw(0, 200);
    }
    // Half of them as one buffer is cut: the same strides, so that views interleave.
    if (draw(0, 1)) {
      const TensorLayout first = t[0];
      t[1].stride_batch = first.stride_batch, t[1].stride_head = first.stride_head, t[1].stride_row = first.stride_row;
      element[1] = element[0];
      start[1] = start[0] + element[0] * draw(-12, 12);
    }
    const auto a = bytes_of(t[0], element[0], start[0]), b = bytes_of(t[1], element[1], start[1]);
    bool shared = false;
    for (std::size_t byte = 0; byte < a.size(); ++byte) shared = shared || (a[byte] && b[byte]);
    const Footprint fa(t[0], element[0]), fb(t[1], element[1]);
    ASSERT_EQ(overlap(fa, at(start[0]), fb, at(start[1])), shared) << "draw " << i;
    ASSERT_EQ(overlap(fb, at(start[1]), fa, at(start[0])), shared) << "draw " << i;
    overlapping += shared;
    interleaved += !shared && !fa.empty() && !fb.empty() && start[0] + fa.low < start[1] + fb.high &&
                   start[1] + fb.low < start[0] + fa.high;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(interleaved, 1000);
}

TEST(Overlap, PackedHeadsOfOneBufferDoNot) {
  // [batch 16, row 4096, (q and o), head 32, 128]: large, as models have them, and cheap to tell.
  const TensorLayout t{16, 32, 4096, 128, 4096LL * 2 * 32 * 128, 128, 2 * 32 * 128};
  const Footprint f(t, 2);
  EXPECT_FALSE(overlap(f, at(0), f, at(32 * 128 * 2)));
  EXPECT_TRUE(overlap(f, at(0), f, at(32 * 128 * 2 - 2)));
  EXPECT_TRUE(overlap(f, at(0), f, at(0)));
  EXPECT_FALSE(overlap(f, at(0), Footprint(), at(0)));
}

// Addresses from anywhere at all overflow nothing.
TEST(Overlap, TakesAnyAddress) {
  const TensorLayout t{2, 2, 2, 8, -(std::int64_t{1} << 40), std::int64_t{1} << 40, 8};
  const Footprint f(t, 4);
  for (const std::uintptr_t x : {std::uintptr_t{1}, ~std::uintptr_t{0}, std::uintptr_t{1} << 63})
    EXPECT_FALSE(overlap(f, at(0), f, reinterpret_cast<const void*>(x)));
}

}  // namespace
}  // namespace flashcore::api
