#include "kernels/quantise/quantise.h"

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "core/error.h"

namespace flashcore::quantise {
namespace {

// Rows that a thread takes one after the other, at least: what is merged is little beside what is read.
constexpr int kRowsOfThread = 4, kKeysOfThread = 16;
// CTAs that share a group, or the keys of a head, at most: one CTA merges what they found. And CTAs of means in all,
// each of which leaves eight bytes for a column.
constexpr std::int64_t kMostChunks = 2048, kMostMeanChunks = 64, kMostMeanCtas = 4096;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }
tile::FastDivide divide_by(int divisor) { return tile::FastDivide::by(std::max(divisor, 1)); }

enum class Factors { kOne, kOfHeads, kOfRows };

// `block`: rows that have a factor with Factors::kOfRows.
void cut(Operand& x, int batch, int heads, int heads_kv, int seqlen, int dim, Factors factors, int block = 1) {
  const bool by_head = factors == Factors::kOfHeads;
  x.by_block = factors == Factors::kOfRows && block > 1 ? 1 : 0;
  x.by_row = factors == Factors::kOfRows && block == 1 ? 1 : 0;
  x.heads = heads, x.seqlen = seqlen, x.dim = dim;
  x.by_seqlen = divide_by(seqlen), x.by_heads = divide_by(heads);
  x.rows = batch * heads * seqlen;
  if (x.by_block) {
    x.run_rows = seqlen, x.group_rows = std::min(block, seqlen), x.blocks = ceil_div(seqlen, block);
    x.groups = batch * heads * x.blocks;
  } else {
    x.groups = by_head ? batch * heads_kv : 1, x.blocks = 1;
    x.run_rows = x.group_rows = by_head ? heads / heads_kv * seqlen : x.rows;
  }
  x.by_blocks = divide_by(x.blocks);
  const int at_once = rows_at_once(dim);
  const int least = at_once * kRowsOfThread;
  x.chunk_rows = std::max(least, ceil_div(ceil_div(x.group_rows, kMostChunks), at_once) * at_once);
  // A group without rows still has a factor.
  x.chunks = std::max(1, ceil_div(x.group_rows, x.chunk_rows));
  x.by_chunks = divide_by(x.chunks);
}

// ±1 of each column, by SplitMix64: the same in every framework.
void draw_signs(QuantiseParams& params, int dim, std::uint64_t seed) {
  std::uint64_t state = seed;
  for (int column = 0; column < dim; ++column) {
    state += 0x9E3779B97F4A7C15u;
    std::uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    if (((z ^ (z >> 31)) & 1) == 0) params.signs[column / 32] |= 1u << column % 32;
  }
}

bool is_aligned(const void* address, const Strides& s, std::int64_t of_vector) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && s.batch % of_vector == 0 && s.head % of_vector == 0 &&
         s.row % of_vector == 0;
}

std::size_t largest_bytes(const QuantiseParams& params) {
  return (static_cast<std::size_t>(params.tiles) * sizeof(float) + 15) / 16 * 16;
}

}  // namespace

KernelSource source_of(const Kind& kind) {
  const auto name = [&](const char* entry, bool is_vector) {
    return fmt::format(
        "flashcore::quantise::{}<flashcore::quantise::Kind{{flashcore::Element({}), flashcore::Element({}){}}}, {}>",
        entry, static_cast<int>(kind.element), static_cast<int>(kind.code), kind.counts ? ", true" : "", is_vector);
  };
  KernelSource source;
  source.file = "quantise/kernel.cuh";
  source.name_expression = name("codes", true);
  source.threads_per_block = kThreads;
  source.dynamic_shared_bytes = kTransposeShared;
  source.more_kernels = {{name("codes", false), kTransposeShared, kThreads},
                         {name("largest", true), kLargestShared, kThreads},
                         {name("largest", false), kLargestShared, kThreads},
                         {name("means", true), kMeansShared, kThreads},
                         {name("means", false), kMeansShared, kThreads}};
  return source;
}

QuantiseParams params_of(const Sizes& sizes) {
  QuantiseParams params{};
  const Factors of_v = sizes.by_head || sizes.by_row ? Factors::kOfHeads : Factors::kOne;
  const Factors of_qk = sizes.by_row ? Factors::kOfRows : of_v;
  cut(params.q, sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seqlen_q, sizes.head_dim, of_qk, sizes.rows_of_q);
  cut(params.k, sizes.batch, sizes.heads_kv, sizes.heads_kv, sizes.seqlen_kv, sizes.head_dim, of_qk, sizes.rows_of_k);
  cut(params.v, sizes.batch, sizes.heads_kv, sizes.heads_kv, sizes.seqlen_kv, sizes.head_dim_v, of_v);
  for (Operand* x : {&params.q, &params.k, &params.v}) {
    x->first_tile = params.tiles;
    params.tiles += x->groups * x->chunks;
  }
  params.k.number = 1, params.v.number = 2;
  params.k.first_group = params.q.groups, params.v.first_group = params.q.groups + params.k.groups;
  params.heads = sizes.batch * sizes.heads_kv;
  const int at_once = rows_at_once(sizes.head_dim);
  const std::int64_t most = std::clamp<std::int64_t>(kMostMeanCtas / std::max(params.heads, 1), 1, kMostMeanChunks);
  params.mean_rows = std::max(at_once * kKeysOfThread, ceil_div(ceil_div(sizes.seqlen_kv, most), at_once) * at_once);
  params.mean_chunks = std::max(1, ceil_div(sizes.seqlen_kv, params.mean_rows));
  params.by_mean_chunks = divide_by(params.mean_chunks);
  params.key_tiles = ceil_div(sizes.seqlen_kv, kTileKeys);
  params.column_tiles = ceil_div(sizes.head_dim_v, kTileColumns);
  params.by_key_tiles = divide_by(params.key_tiles), params.by_column_tiles = divide_by(params.column_tiles);
  if (sizes.rotates) {
    params.q.is_rotated = params.k.is_rotated = 1;
    draw_signs(params, sizes.head_dim, sizes.seed);
    params.rotation_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes.head_dim)));
  }
  return params;
}

bool fits_vectors(const Kind& kind, const QuantiseParams& params) {
  const auto of_vector = static_cast<std::int64_t>(16 / size_of(static_cast<DType>(kind.element)));
  const auto fits = [&](const Operand& x) {
    return x.dim % kColumns == 0 && is_aligned(x.from, x.from_stride, of_vector) && is_aligned(x.to, x.to_stride, 16);
  };
  return fits(params.q) && fits(params.k) && fits(params.v) &&
         reinterpret_cast<std::uintptr_t>(params.k_mean) % 16 == 0;
}

Launches launches_of(const Kind& kind, const QuantiseParams& params) {
  const bool is_vector = fits_vectors(kind, params);
  Launches launches;
  const auto add = [&](Entry with_vectors, std::int64_t blocks, int shared) {
    if (blocks == 0) return;
    LaunchSpec& launch = launches.all[launches.count++];
    launch.grid.x = static_cast<unsigned>(blocks);
    launch.block.x = kThreads;
    launch.shared_bytes = static_cast<unsigned>(shared);
    launch.kernel = static_cast<unsigned>(with_vectors) + (is_vector ? 0 : 1);
  };
  if (params.k_mean && params.k.seqlen > 0)
    add(Entry::kMeansVector, std::int64_t{params.heads} * params.mean_chunks, kMeansShared);
  if (!params.has_factors) add(Entry::kLargestVector, params.tiles - first_searched_tile(params), kLargestShared);
  const std::int64_t of_v = params.is_transposed ? std::int64_t{params.heads} * params.key_tiles * params.column_tiles
                                                 : params.tiles - params.v.first_tile;
  const int of_rows = params.q.by_row || params.k.by_row ? kRowsShared : 0;
  add(Entry::kCodesVector, params.v.first_tile + of_v, params.is_transposed ? kTransposeShared : of_rows);
  return launches;
}

std::array<Workspace, 2> workspaces_of(const QuantiseParams& params) {
  std::size_t scratch = largest_bytes(params);
  std::size_t counters = static_cast<std::size_t>(params.q.groups + params.k.groups + params.v.groups);
  counters += static_cast<std::size_t>(params.heads);
  if (params.k_mean)
    scratch += static_cast<std::size_t>(params.heads) * static_cast<std::size_t>(params.mean_chunks) *
               static_cast<std::size_t>(params.k.dim) * sizeof(double);
  return {{{scratch, Workspace::Contents::kScratch}, {counters * sizeof(unsigned), Workspace::Contents::kLeftZero}}};
}

void set_workspaces(QuantiseParams& params, void* scratch, void* counters) {
  params.largest = static_cast<float*>(scratch);
  params.sums = reinterpret_cast<unsigned*>(static_cast<std::byte*>(scratch) + largest_bytes(params));
  params.counters = static_cast<unsigned*>(counters);
}

}  // namespace flashcore::quantise
