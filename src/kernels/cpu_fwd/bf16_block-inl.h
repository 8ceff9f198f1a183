#pragma once
// One task in bf16, whatever multiplies: Q, K and V packed in tiles, and the softmax of rows of scores to P in bf16.
// Included by bf16.cpp alone, which has the intrinsics.

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu_fwd/plan.h"

// Not of the file: the library runs on machines without any of these, and a unity build joins files.
#define FC_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define FC_BF16_INLINE FC_BF16_TARGET __attribute__((always_inline)) inline

namespace flashcore::cpu_fwd {
namespace {

// A tile of K or V is 16 pairs of the depth by 16 columns: 64 bytes a pair, one vector or one row of an AMX tile. A
// tile of Q or P is 16 rows of 32 of the depth.
constexpr int kTile = 16, kDepth = 32, kKeys = 32;
constexpr int kTileElements = kTile * kDepth;

// One task's memory, within the same scratch as the fp32 path's (scratch_layout in config.h).
struct Bf16Block {
  const Plan& plan;
  const Task& task;
  int depth;         // head_dim in whole tiles
  int columns;       // head_dim_v in whole tiles of V
  std::uint16_t* q;  // [block_m][depth]
  std::uint16_t* k;  // tiles [keys / 16][depth / 32]: 16 rows of 16 keys' pairs of elements
  std::uint16_t* v;  // tiles [keys / 32][columns / 16]: 16 pairs of keys of 16 columns
  float* o;
  float* row_max;
  float* row_sum;
  float* scores;     // [32][score_stride]
  std::uint16_t* p;  // [32][p_stride]

  Bf16Block(const Plan& plan_in, const Task& task_in, float* scratch)
      : plan(plan_in),
        task(task_in),
        depth(round_up(plan.traits.head_dim, kDepth)),
        columns(round_up(plan.traits.head_dim_v, ScratchLayout::kPad)),
        q(reinterpret_cast<std::uint16_t*>(scratch + plan.scratch.q)),
        k(reinterpret_cast<std::uint16_t*>(scratch + plan.scratch.k)),
        v(reinterpret_cast<std::uint16_t*>(scratch + plan.scratch.v)),
        o(scratch + plan.scratch.o),
        row_max(scratch + plan.scratch.row_max),
        row_sum(scratch + plan.scratch.row_sum),
        scores(scratch + plan.scratch.scores),
        p(reinterpret_cast<std::uint16_t*>(scratch + plan.scratch.p16)) {}
};

FC_BF16_INLINE __m512i load_row(const std::uint16_t* from, int count) {
  if (count >= kDepth) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
}

FC_BF16_TARGET void load_q16(const Bf16Block& block) {
  const Plan& plan = block.plan;
  const int rows = round_up(block.task.row_count, 2 * kTile), dim = plan.traits.head_dim;
  for (int row = 0; row < rows; ++row) {
    std::uint16_t* out = block.q + std::int64_t{row} * block.depth;
    if (row >= block.task.row_count) {
      std::memset(out, 0, static_cast<std::size_t>(block.depth) * sizeof *out);
      continue;
    }
    const std::int64_t at = block.task.row_begin + row;
    const auto* from =
        static_cast<const std::uint16_t*>(plan.params.q) + block.task.batch * plan.params.q_stride.batch +
        plan.head_of(block.task.head_kv, at) * plan.params.q_stride.head + plan.query_of(at) * plan.params.q_stride.row;
    for (int d = 0; d < block.depth; d += kDepth) _mm512_storeu_si512(out + d, load_row(from + d, dim - d));
  }
}

FC_BF16_INLINE __m512i pairs_of_blocks(__m512i a, __m512i b, bool upper) {
  return upper ? _mm512_shuffle_i32x4(a, b, 0xdd) : _mm512_shuffle_i32x4(a, b, 0x88);
}

// 16 rows of 16 dwords, transposed: first within 128-bit blocks, then the blocks.
FC_BF16_INLINE void transpose_16x16(__m512i (&r)[16], __m512i* out) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(r[i], r[i + 1]), high01 = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(low01, low23);
    t[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    t[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    t[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  // t[4 g + c], block b: column 4 b + c of rows 4 g .. 4 g + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even0 = pairs_of_blocks(t[c], t[4 + c], false), even1 = pairs_of_blocks(t[8 + c], t[12 + c], false);
    const __m512i odd0 = pairs_of_blocks(t[c], t[4 + c], true), odd1 = pairs_of_blocks(t[8 + c], t[12 + c], true);
    _mm512_storeu_si512(out + c, pairs_of_blocks(even0, even1, false));
    _mm512_storeu_si512(out + 8 + c, pairs_of_blocks(even0, even1, true));
    _mm512_storeu_si512(out + 4 + c, pairs_of_blocks(odd0, odd1, false));
    _mm512_storeu_si512(out + 12 + c, pairs_of_blocks(odd0, odd1, true));
  }
}

// Keys past the last are zeros.
FC_BF16_TARGET void pack_k16(const Bf16Block& block, const std::uint16_t* k, int keys) {
  const std::int64_t stride = block.plan.params.k_stride.row;
  const int dim = block.plan.traits.head_dim;
  std::uint16_t* out = block.k;
  for (int key = 0; key < round_up(keys, kKeys); key += kTile) {
    for (int d = 0; d < block.depth; d += kDepth, out += kTileElements) {
      __m512i rows[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i)
        rows[i] = key + i < keys ? load_row(k + (key + i) * stride + d, dim - d) : _mm512_setzero_si512();
      transpose_16x16(rows, reinterpret_cast<__m512i*>(out));
    }
  }
}

// False if V holds what the instructions cannot take (attend_bf16). Keys and columns past the last are zeros.
FC_BF16_TARGET bool pack_v16(const Bf16Block& block, const std::uint16_t* v, int keys) {
  constexpr int kLeast = 27 << 7, kInfinity = 0x7F80;  // 2^-100
  const std::int64_t stride = block.plan.params.v_stride.row;
  const int dim = block.plan.traits.head_dim_v;
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF), one = _mm512_set1_epi16(1);
  __m512i largest = _mm512_setzero_si512(), least = _mm512_set1_epi16(-1);
  std::uint16_t* out = block.v;
  for (int key = 0; key < keys; key += kKeys) {
    for (int c = 0; c < block.columns; c += kTile, out += kTileElements) {
      const int left = dim - c;
      const __mmask16 inside = static_cast<__mmask16>(left >= kTile ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1);
      for (int pair = 0; pair < kTile; ++pair) {
        const int at = key + 2 * pair;
        const std::uint16_t* from = v + at * stride + c;
        const __m256i zero = _mm256_setzero_si256();
        const __m256i even = at < keys ? _mm256_maskz_loadu_epi16(inside, from) : zero;
        const __m256i odd = at + 1 < keys ? _mm256_maskz_loadu_epi16(inside, from + stride) : zero;
        const __m512i both =
            _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
        _mm512_storeu_si512(out + pair * kDepth, both);
        const __m512i value = _mm512_and_si512(both, magnitude);
        largest = _mm512_max_epu16(largest, value);
        least = _mm512_min_epu16(least, _mm512_sub_epi16(value, one));  // zero is none of the least
      }
    }
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(kInfinity)) == 0 &&
         _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(kLeast - 1)) == 0;
}

// As exp2_scaled of softmax-inl.h, of one degree less: within 2^-22.6, below what ex2.approx of a GPU is off by.
FC_BF16_INLINE __m512 exp2_of(__m512 difference, __m512 scale) {
  constexpr float kRound = 12582912.0f + 127.0f;
  const __m512 round = _mm512_set1_ps(kRound);
  const __m512 shifted = _mm512_fmadd_ps(difference, scale, round);
  const __m512 f = _mm512_fmsub_ps(difference, scale, _mm512_sub_ps(shifted, round));
  __m512 p = _mm512_set1_ps(0.00132647273f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00967151299f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0555073358f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240222424f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693147004f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
  const __mmask16 kept = _mm512_cmp_ps_mask(shifted, _mm512_set1_ps(kRound - 126.0f), _CMP_NLT_UQ);  // and NaN
  return _mm512_maskz_mul_ps(kept, p, power);
}

FC_BF16_INLINE __mmask16 lanes_within(int from, const KeyRange<int>& keys) {
  const auto below = [](int count) { return count >= 16 ? 0xFFFFu : count <= 0 ? 0u : (1u << count) - 1; };
  return static_cast<__mmask16>(below(keys.end - from) & ~below(keys.begin - from));
}

FC_BF16_INLINE float largest_of(const float* scores, const KeyRange<int>& keys) {
  const __m512 nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 even = nothing, odd = nothing;
  int key = keys.begin / kTile * kTile;
  // The second operand is the result where either is NaN: the sum will show it.
  if (key < keys.begin) {
    even = _mm512_mask_max_ps(even, lanes_within(key, keys), _mm512_loadu_ps(scores + key), even);
    key += kTile;
  }
  for (; key + 2 * kTile <= keys.end; key += 2 * kTile) {
    even = _mm512_max_ps(_mm512_loadu_ps(scores + key), even);
    odd = _mm512_max_ps(_mm512_loadu_ps(scores + key + kTile), odd);
  }
  for (; key < keys.end; key += kTile)
    even = _mm512_mask_max_ps(even, lanes_within(key, keys), _mm512_loadu_ps(scores + key), even);
  return _mm512_reduce_max_ps(_mm512_max_ps(even, odd));
}

FC_BF16_INLINE void store_p(std::uint16_t* p, __m512 low, __m512 high) {
  const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
  std::memcpy(p, &rounded, sizeof rounded);
}

// P of one row over begin .. end, 0 where it does not see the key; returns its sum before rounding.
FC_BF16_INLINE float weigh(const float* scores, std::uint16_t* p, const KeyRange<int>& keys, int begin, int end,
                           float row_max, float scale) {
  const __m512 base = _mm512_set1_ps(row_max == -std::numeric_limits<float>::infinity() ? 0.0f : row_max);
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 even = _mm512_setzero_ps(), odd = even;
  for (int key = begin; key < end; key += kKeys) {
    __m512 low = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(scores + key), base), factor);
    __m512 high = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(scores + key + kTile), base), factor);
    if (key < keys.begin || key + kKeys > keys.end) {
      low = _mm512_maskz_mov_ps(lanes_within(key, keys), low);
      high = _mm512_maskz_mov_ps(lanes_within(key + kTile, keys), high);
    }
    even = _mm512_add_ps(even, low);
    odd = _mm512_add_ps(odd, high);
    store_p(p + key, low, high);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
}

FC_BF16_INLINE float exp2_of_one(float difference, float scale) {
  return _mm512_cvtss_f32(exp2_of(_mm512_set1_ps(difference), _mm512_set1_ps(scale)));
}

FC_BF16_INLINE void rescale_row(float* o, int columns, float factor) {
  const __m512 by = _mm512_set1_ps(factor);
  for (int c = 0; c < columns; c += kTile) _mm512_storeu_ps(o + c, _mm512_mul_ps(_mm512_loadu_ps(o + c), by));
}

// C = A · B, or C += A · B, of up to 32 rows by 32 columns: what a unit multiplies at a time.
struct Product {
  const std::uint16_t* a;
  std::int64_t a_stride;       // of rows of A
  const std::uint16_t* left;   // tiles of B for columns 0 .. 15, each 32 of the depth
  const std::uint16_t* right;  // and for columns 16 .. 31
  std::int64_t b_step;         // from a tile of B to the next of the depth
  int tiles;                   // of the depth
  float* c;
  std::int64_t c_stride;
};

}  // namespace
}  // namespace flashcore::cpu_fwd
