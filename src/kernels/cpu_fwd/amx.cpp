#include "kernels/cpu_fwd/amx.h"

#if defined(__x86_64__) && defined(__linux__)

// GCC 12 takes the undefined vectors in its own intrinsics for an error of the caller (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include <cstring>
#include <limits>

// Not of the file: the library runs on machines without any of these, and a unity build joins files.
#define FC_AMX_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))
#define FC_AMX_INLINE FC_AMX_TARGET __attribute__((always_inline)) inline

namespace flashcore::cpu_fwd {
namespace {

// A tile has 16 rows of 64 bytes: 16 fp32 sums, or 32 bf16 of the depth. Four sums of two tiles of A and two of B each
// load two tiles for two products, as many as the load ports sustain.
constexpr int kAmxTile = 16, kAmxDepth = 32, kAmxKeys = 32;
constexpr int kTileElements = kAmxTile * kAmxDepth;

struct TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Of the calling thread, and only while it computes: tiles that stay configured are saved at each change of threads.
class TilesInUse {
 public:
  FC_AMX_TARGET TilesInUse() {
    alignas(64) TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.bytes_per_row[tile] = 64, config.rows[tile] = kAmxTile;
    // GCC 12 takes the intrinsic to read 8 of the 64 bytes, and may leave out writing the others.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  FC_AMX_TARGET ~TilesInUse() { _tile_release(); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

// One task's memory, within the same scratch as the fp32 path's (scratch_layout in config.h).
struct AmxBlock {
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

  AmxBlock(const Plan& plan_in, const Task& task_in, float* scratch)
      : plan(plan_in),
        task(task_in),
        depth(round_up(plan.traits.head_dim, kAmxDepth)),
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

FC_AMX_INLINE __m512i load_row(const std::uint16_t* from, int count) {
  if (count >= kAmxDepth) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
}

FC_AMX_TARGET void load_q16(const AmxBlock& block) {
  const Plan& plan = block.plan;
  const int rows = round_up(block.task.row_count, 2 * kAmxTile), dim = plan.traits.head_dim;
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
    for (int d = 0; d < block.depth; d += kAmxDepth) _mm512_storeu_si512(out + d, load_row(from + d, dim - d));
  }
}

FC_AMX_INLINE __m512i pairs_of_blocks(__m512i a, __m512i b, bool upper) {
  return upper ? _mm512_shuffle_i32x4(a, b, 0xdd) : _mm512_shuffle_i32x4(a, b, 0x88);
}

// 16 rows of 16 dwords, transposed: first within 128-bit blocks, then the blocks.
FC_AMX_INLINE void transpose_16x16(__m512i (&r)[16], __m512i* out) {
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
FC_AMX_TARGET void pack_k16(const AmxBlock& block, const std::uint16_t* k, int keys) {
  const std::int64_t stride = block.plan.params.k_stride.row;
  const int dim = block.plan.traits.head_dim;
  std::uint16_t* out = block.k;
  for (int key = 0; key < round_up(keys, kAmxKeys); key += kAmxTile) {
    for (int d = 0; d < block.depth; d += kAmxDepth, out += kTileElements) {
      __m512i rows[kAmxTile];
#pragma GCC unroll 16
      for (int i = 0; i < kAmxTile; ++i)
        rows[i] = key + i < keys ? load_row(k + (key + i) * stride + d, dim - d) : _mm512_setzero_si512();
      transpose_16x16(rows, reinterpret_cast<__m512i*>(out));
    }
  }
}

// False if V holds what the tiles cannot take (attend_amx). Keys and columns past the last are zeros.
FC_AMX_TARGET bool pack_v16(const AmxBlock& block, const std::uint16_t* v, int keys) {
  constexpr int kLeast = 27 << 7, kInfinity = 0x7F80;  // 2^-100
  const std::int64_t stride = block.plan.params.v_stride.row;
  const int dim = block.plan.traits.head_dim_v;
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF), one = _mm512_set1_epi16(1);
  __m512i largest = _mm512_setzero_si512(), least = _mm512_set1_epi16(-1);
  std::uint16_t* out = block.v;
  for (int key = 0; key < keys; key += kAmxKeys) {
    for (int c = 0; c < block.columns; c += kAmxTile, out += kTileElements) {
      const int left = dim - c;
      const __mmask16 inside = static_cast<__mmask16>(left >= kAmxTile ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1);
      for (int pair = 0; pair < kAmxTile; ++pair) {
        const int at = key + 2 * pair;
        const std::uint16_t* from = v + at * stride + c;
        const __m256i zero = _mm256_setzero_si256();
        const __m256i even = at < keys ? _mm256_maskz_loadu_epi16(inside, from) : zero;
        const __m256i odd = at + 1 < keys ? _mm256_maskz_loadu_epi16(inside, from + stride) : zero;
        const __m512i both =
            _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
        _mm512_storeu_si512(out + pair * kAmxDepth, both);
        const __m512i value = _mm512_and_si512(both, magnitude);
        largest = _mm512_max_epu16(largest, value);
        least = _mm512_min_epu16(least, _mm512_sub_epi16(value, one));  // zero is none of the least
      }
    }
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(kInfinity)) == 0 &&
         _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(kLeast - 1)) == 0;
}

// S = Q · Kᵀ: 32 rows (16 if not kBoth) by the keys begin .. end, multiples of 32.
template <bool kBoth>
FC_AMX_TARGET void tile_scores(const AmxBlock& block, const std::uint16_t* q, int begin, int end) {
  const long q_bytes = block.depth * 2L, s_bytes = block.plan.scratch.score_stride * 4L;
  const std::int64_t k_tile = std::int64_t{block.depth} * kAmxTile;
  for (int key = begin; key < end; key += kAmxKeys) {
    const std::uint16_t* k = block.k + key / kAmxTile * k_tile;
    _tile_zero(0);
    _tile_zero(1);
    if (kBoth) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int d = 0; d < block.depth; d += kAmxDepth, k += kTileElements) {
      _tile_loadd(4, q + d, q_bytes);
      _tile_loadd(6, k, 64);
      _tile_loadd(7, k + k_tile, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (kBoth) {
        _tile_loadd(5, q + std::int64_t{kAmxTile} * block.depth + d, q_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* s = block.scores + key;
    _tile_stored(0, s, s_bytes);
    _tile_stored(1, s + kAmxTile, s_bytes);
    if (kBoth) {
      float* lower = s + std::int64_t{kAmxTile} * block.plan.scratch.score_stride;
      _tile_stored(2, lower, s_bytes);
      _tile_stored(3, lower + kAmxTile, s_bytes);
    }
  }
}

// O += P · V over the keys begin .. end, multiples of 32.
template <bool kBoth>
FC_AMX_TARGET void tile_output(const AmxBlock& block, float* o, int begin, int end) {
  const ScratchLayout& scratch = block.plan.scratch;
  const long p_bytes = scratch.p16_stride * 2L, o_bytes = scratch.o_stride * 4L;
  const std::int64_t v_step = std::int64_t{block.columns} * kAmxDepth;
  for (int c = 0; c < block.columns; c += 2 * kAmxTile) {
    float* lower = o + std::int64_t{kAmxTile} * scratch.o_stride + c;
    _tile_loadd(0, o + c, o_bytes);
    _tile_loadd(1, o + c + kAmxTile, o_bytes);
    if (kBoth) {
      _tile_loadd(2, lower, o_bytes);
      _tile_loadd(3, lower + kAmxTile, o_bytes);
    }
    const std::uint16_t* v = block.v + begin / kAmxKeys * v_step + c / kAmxTile * kTileElements;
    for (int key = begin; key < end; key += kAmxKeys, v += v_step) {
      _tile_loadd(4, block.p + key, p_bytes);
      _tile_loadd(6, v, 64);
      _tile_loadd(7, v + kTileElements, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (kBoth) {
        _tile_loadd(5, block.p + std::int64_t{kAmxTile} * scratch.p16_stride + key, p_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, o + c, o_bytes);
    _tile_stored(1, o + c + kAmxTile, o_bytes);
    if (kBoth) {
      _tile_stored(2, lower, o_bytes);
      _tile_stored(3, lower + kAmxTile, o_bytes);
    }
  }
}

// As exp2_scaled of softmax-inl.h, of one degree less: within 2^-22.6, below what ex2.approx of a GPU is off by.
FC_AMX_INLINE __m512 exp2_of(__m512 difference, __m512 scale) {
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

FC_AMX_INLINE __mmask16 lanes_within(int from, const KeyRange<int>& keys) {
  const auto below = [](int count) { return count >= 16 ? 0xFFFFu : count <= 0 ? 0u : (1u << count) - 1; };
  return static_cast<__mmask16>(below(keys.end - from) & ~below(keys.begin - from));
}

FC_AMX_INLINE float largest_of(const float* scores, const KeyRange<int>& keys) {
  const __m512 nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 even = nothing, odd = nothing;
  int key = keys.begin / kAmxTile * kAmxTile;
  // The second operand is the result where either is NaN: the sum will show it.
  if (key < keys.begin) {
    even = _mm512_mask_max_ps(even, lanes_within(key, keys), _mm512_loadu_ps(scores + key), even);
    key += kAmxTile;
  }
  for (; key + 2 * kAmxTile <= keys.end; key += 2 * kAmxTile) {
    even = _mm512_max_ps(_mm512_loadu_ps(scores + key), even);
    odd = _mm512_max_ps(_mm512_loadu_ps(scores + key + kAmxTile), odd);
  }
  for (; key < keys.end; key += kAmxTile)
    even = _mm512_mask_max_ps(even, lanes_within(key, keys), _mm512_loadu_ps(scores + key), even);
  return _mm512_reduce_max_ps(_mm512_max_ps(even, odd));
}

FC_AMX_INLINE void store_p(std::uint16_t* p, __m512 low, __m512 high) {
  const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
  std::memcpy(p, &rounded, sizeof rounded);
}

// P of one row over begin .. end, 0 where it does not see the key; returns its sum before rounding.
FC_AMX_INLINE float weigh(const float* scores, std::uint16_t* p, const KeyRange<int>& keys, int begin, int end,
                          float row_max, float scale) {
  const __m512 base = _mm512_set1_ps(row_max == -std::numeric_limits<float>::infinity() ? 0.0f : row_max);
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 even = _mm512_setzero_ps(), odd = even;
  for (int key = begin; key < end; key += kAmxKeys) {
    __m512 low = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(scores + key), base), factor);
    __m512 high = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(scores + key + kAmxTile), base), factor);
    if (key < keys.begin || key + kAmxKeys > keys.end) {
      low = _mm512_maskz_mov_ps(lanes_within(key, keys), low);
      high = _mm512_maskz_mov_ps(lanes_within(key + kAmxTile, keys), high);
    }
    even = _mm512_add_ps(even, low);
    odd = _mm512_add_ps(odd, high);
    store_p(p + key, low, high);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
}

FC_AMX_INLINE float exp2_of_one(float difference, float scale) {
  return _mm512_cvtss_f32(exp2_of(_mm512_set1_ps(difference), _mm512_set1_ps(scale)));
}

FC_AMX_INLINE void rescale_row(float* o, int columns, float factor) {
  const __m512 by = _mm512_set1_ps(factor);
  for (int c = 0; c < columns; c += kAmxTile) _mm512_storeu_ps(o + c, _mm512_mul_ps(_mm512_loadu_ps(o + c), by));
}

// The packed keys key_begin .. key_begin + keys - 1 for the rows row .. row + rows - 1, at most 32.
template <bool kBoth>
FC_AMX_TARGET void attend_tile(const AmxBlock& block, int row, int rows, int key_begin, int keys) {
  const Plan& plan = block.plan;
  const ScratchLayout& scratch = plan.scratch;
  const auto within_block = [&](int first, int last) -> KeyRange<int> {
    const KeyRange<int> seen = plan.visible_keys(block.task.row_begin + first, block.task.row_begin + last);
    return {std::clamp(seen.begin - key_begin, 0, keys), std::clamp(seen.end - key_begin, 0, keys)};
  };
  const KeyRange<int> any = within_block(row, row + rows - 1);
  if (any.begin >= any.end) return;
  const int begin = any.begin / kAmxKeys * kAmxKeys, end = round_up(any.end, kAmxKeys);
  tile_scores<kBoth>(block, block.q + std::int64_t{row} * block.depth, begin, end);
  float* o = block.o + std::int64_t{row} * scratch.o_stride;
  for (int r = 0; r < rows; ++r) {
    const float* scores = block.scores + r * scratch.score_stride;
    KeyRange<int> seen = within_block(row + r, row + r);
    if (seen.begin >= seen.end) seen = {end, end};
    float& row_max = block.row_max[row + r];
    const float new_max = std::max(row_max, largest_of(scores, seen));
    const float sum =
        weigh(scores, block.p + r * scratch.p16_stride, seen, begin, end, new_max, plan.params.scale_log2);
    if (new_max != row_max) {
      const float factor = exp2_of_one(row_max - new_max, plan.params.scale_log2);
      rescale_row(o + r * scratch.o_stride, block.columns, factor);
      block.row_sum[row + r] *= factor;
      row_max = new_max;
    }
    block.row_sum[row + r] += sum;
  }
  tile_output<kBoth>(block, o, begin, end);
}

FC_AMX_TARGET bool attend_blocks(const AmxBlock& block) {
  const Plan& plan = block.plan;
  const Task& task = block.task;
  const ForwardParams& params = plan.params;
  const TilesInUse tiles;
  load_q16(block);
  const int padded_rows = round_up(task.row_count, 2 * kAmxTile);
  std::fill_n(block.o, std::int64_t{padded_rows} * plan.scratch.o_stride, 0.0f);
  std::fill_n(block.row_max, task.row_count, -std::numeric_limits<float>::infinity());
  std::fill_n(block.row_sum, task.row_count, 0.0f);
  const auto* k = static_cast<const std::uint16_t*>(params.k) + task.batch * params.k_stride.batch +
                  task.head_kv * params.k_stride.head;
  const auto* v = static_cast<const std::uint16_t*>(params.v) + task.batch * params.v_stride.batch +
                  task.head_kv * params.v_stride.head;
  const KeyRange<int> visible = plan.visible_keys(task.row_begin, task.row_begin + task.row_count - 1);
  const int last_key = std::min(task.key_end, visible.end);
  for (int key = std::max(task.key_begin, visible.begin); key < last_key; key += plan.config.block_n) {
    const int keys = std::min(plan.config.block_n, last_key - key);
    pack_k16(block, k + key * params.k_stride.row, keys);
    if (!pack_v16(block, v + key * params.v_stride.row, keys)) return false;
    for (int row = 0; row < task.row_count; row += 2 * kAmxTile) {
      const int rows = std::min(2 * kAmxTile, task.row_count - row);
      if (rows > kAmxTile) {
        attend_tile<true>(block, row, rows, key, keys);
      } else {
        attend_tile<false>(block, row, rows, key, keys);
      }
    }
  }
  return true;
}

}  // namespace

bool attend_amx(const Plan& plan, const Task& task, float* scratch) {
  if (!attend_blocks(AmxBlock(plan, task, scratch))) return false;
  finish(plan, task, scratch);
  return true;
}

}  // namespace flashcore::cpu_fwd

#pragma GCC diagnostic pop

#else

namespace flashcore::cpu_fwd {

bool attend_amx(const Plan&, const Task&, float*) { return false; }

}  // namespace flashcore::cpu_fwd

#endif
