#pragma once
// The tunables of cpu_fwd and what may be combined.

#include "kernels/tile/traits.h"

namespace flashcore::cpu_fwd {

inline constexpr int kMaxHeadDim = 256;
// A task of so few query rows reads K and V where they lie (direct-inl.h): packing a key would cost more than using it.
// Fewer on machines of 16 vector registers, whose tiles have 6 rows.
inline constexpr int kMostRowsInPlace = 8;

struct Config {
  int block_m = 384;  // query rows of one task; rows of all heads that share a kv head count
  int block_n =
      256;  // keys packed at a time: block_n · (head_dim + head_dim_v) floats, to stay in the second-level cache
  int threads = 0;   // 0: every core
  int kv_split = 1;  // parts of the keys that different tasks work on, for problems of few query rows

  bool operator==(const Config&) const = default;

  // block_m in multiples of 24, which the register tile's rows (12 with 32 vector registers, 6 with 16) divide.
  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("block_m", &Config::block_m, 24, 48, 96, 192, 384);
    visit("block_n", &Config::block_n, 32, 64, 128, 256, 512);
    visit("threads", &Config::threads, 0, 1, 2, 4, 8, 16, 32, 64, 128);
    visit("kv_split", &Config::kv_split, 1, 2, 4, 8, 16, 32);
  }
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// How one thread's scratch memory is laid out, in floats from its start. Widths are padded to kPad, the widest panel of
// any instruction set, so that the plan does not depend on which one runs.
struct ScratchLayout {
  static constexpr int kPad = 32;
  static constexpr int kMaxTileRows = 12;
  // Rows that bf16.cpp takes at a time, two tiles of AMX. Its memory is set aside for bf16 on every machine.
  static constexpr int kBf16Rows = 32;
  // A vector beyond the padding: rows a power of two apart would fall into the same few sets of the first-level cache.
  static constexpr int kSkew = 16;

  int q_stride = 0, o_stride = 0, score_stride = 0;
  int q = 0;           // [block_m][q_stride]
  int o = 0;           // [block_m][o_stride], not yet divided by row_sum
  int row_max = 0;     // [block_m]
  int row_sum = 0;     // [block_m]
  int k = 0;           // panels: [block_n / panel][head_dim][panel]
  int v = 0;           // panels: [head_dim_v / panel][block_n][panel]
  int scores = 0;      // [kMaxTileRows][score_stride]; bf16: [kBf16Rows][score_stride]
  int p16_stride = 0;  // of bf16 elements
  int p16 = 0;         // bf16: [kBf16Rows][p16_stride], P rounded (bf16.cpp)
  int floats = 0;      // all of it
};

constexpr ScratchLayout scratch_layout(const Config& config, const Traits& traits) {
  constexpr int kPad = ScratchLayout::kPad;
  ScratchLayout layout;
  layout.q_stride = round_up(traits.head_dim, kPad) + ScratchLayout::kSkew;
  layout.o_stride = round_up(traits.head_dim_v, kPad);
  layout.score_stride = round_up(config.block_n, kPad) + ScratchLayout::kSkew;
  const auto take = [&layout](int floats) {
    const int at = layout.floats;
    layout.floats += round_up(floats, kPad);
    return at;
  };
  layout.q = take(round_up(config.block_m, ScratchLayout::kBf16Rows) * layout.q_stride);
  layout.o = take(round_up(config.block_m, ScratchLayout::kBf16Rows) * layout.o_stride);
  layout.row_max = take(config.block_m + kPad);  // a tile's rows are read as whole vectors
  layout.row_sum = take(config.block_m);
  layout.k = take(round_up(config.block_n, kPad) * round_up(traits.head_dim, kPad));
  layout.v = take(round_up(config.block_n, kPad) * round_up(traits.head_dim_v, kPad));
  const bool is_bf16 = traits.element == Element::kBF16;
  layout.scores = take((is_bf16 ? ScratchLayout::kBf16Rows : ScratchLayout::kMaxTileRows) * layout.score_stride);
  if (is_bf16) {
    layout.p16_stride = round_up(config.block_n, kPad) + kPad;  // whole cache lines
    layout.p16 = take(ScratchLayout::kBf16Rows * layout.p16_stride / 2);
  }
  return layout;
}

// Why the kernel cannot run so, or null if it runs and is correct.
constexpr const char* why_invalid(const Config& config, const Traits& traits, const Limits& limits) {
  if (traits.head_dim < 1 || traits.head_dim > kMaxHeadDim || traits.head_dim_v < 1 ||
      traits.head_dim_v > kMaxHeadDim) {
    return "head dims go from 1 to 256";
  }
  if (config.block_m < 1 || config.block_n < 1 || config.kv_split < 1)
    return "block_m, block_n and kv_split start at 1";
  if (config.threads < 0 || config.threads > limits.multiprocessors)
    return "more threads than cores would only take turns";
  return nullptr;
}

}  // namespace flashcore::cpu_fwd
