#pragma once
// Products by AVX512-BF16 (bf16.cpp): one instruction adds two products to each of 16 fp32 sums.

#include "kernels/cpu_fwd/bf16_block-inl.h"

namespace flashcore::cpu_fwd {
namespace {

class Dots {
 public:
  template <bool kAdds>
  FC_BF16_TARGET static void multiply(const Product& of, int rows) {
    for (int row = 0; row < rows; row += kRows) multiply_rows<kAdds>(of, row);
  }

 private:
  // 16 sums hide the latency of the instruction, and each vector of B is used for eight of them. Of the last rows some
  // may be nobody's.
  static constexpr int kRows = 8;

  template <bool kAdds>
  FC_BF16_INLINE static void multiply_rows(const Product& of, int row) {
    const std::uint16_t* a = of.a + row * of.a_stride;
    float* c = of.c + row * of.c_stride;
    __m512 left[kRows], right[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      left[r] = kAdds ? _mm512_loadu_ps(c + r * of.c_stride) : _mm512_setzero_ps();
      right[r] = kAdds ? _mm512_loadu_ps(c + r * of.c_stride + kTile) : _mm512_setzero_ps();
    }
    for (int tile = 0; tile < of.tiles; ++tile, a += kDepth) {
      const std::uint16_t *b_left = of.left + tile * of.b_step, *b_right = of.right + tile * of.b_step;
      for (int pair = 0; pair < kTile; ++pair) {
        const __m512bh b0 = pairs_at(b_left + pair * kDepth), b1 = pairs_at(b_right + pair * kDepth);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512bh both = same_pair(a + r * of.a_stride + 2 * pair);
          left[r] = _mm512_dpbf16_ps(left[r], both, b0);
          right[r] = _mm512_dpbf16_ps(right[r], both, b1);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(c + r * of.c_stride, left[r]);
      _mm512_storeu_ps(c + r * of.c_stride + kTile, right[r]);
    }
  }

  FC_BF16_INLINE static __m512bh pairs_at(const std::uint16_t* from) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
  }
  FC_BF16_INLINE static __m512bh same_pair(const std::uint16_t* from) {
    std::int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  }
};

}  // namespace
}  // namespace flashcore::cpu_fwd
