#pragma once
// Forward attention for few query rows on many keys, where time is what reading K and V takes: a wave of CTAs each of
// which reads an equal share of all keys, through a ring of blocks that goes on from tile to tile. Rows are queries of
// all heads of a key head. CTAs that share a tile leave parts in global memory, and the last one merges them.

#include "kernels/sm80_decode_fwd/deal.cuh"
#include "kernels/sm80_decode_fwd/expressed.cuh"
#include "kernels/sm80_decode_fwd/keys_first.cuh"
#include "kernels/sm80_decode_fwd/merge.cuh"
#include "kernels/sm80_decode_fwd/pieces.cuh"
#include "kernels/sm80_decode_fwd/quantised.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/shared_tile.cuh"
#include "kernels/tile/softmax.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm80_decode_fwd {

template <Traits T, Config C>
struct SharedStorage {
  unsigned char stages[C.num_stages][stage_bytes(C, T)];
  unsigned char steps[step_slots(C)][kStepBytes];
  unsigned char runs[step_slots(C)][kRunBytes];
  unsigned char flags[kFlagBytes];  // whether lengths are bad, whether this CTA merges
  unsigned char table[table_bytes(T)];
  unsigned char pages[pages_bytes(C, T)];
  unsigned char own_q[own_q_bytes(C, T)];
};

template <Traits T, Config C>
struct Kernel : tile::KernelExpressions<has_expression(T)>, tile::Marks {
  using Activity = tile::Activity;
  using Storage = SharedStorage<T, C>;
  static constexpr int kDim = padded_dim(T, T.head_dim);
  static constexpr int kDimV = padded_dim(T, T.head_dim_v);
  static constexpr int kThreads = threads_per_block(C);
  static constexpr int kKeys = keys_per_warp(C);
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kStages = C.num_stages;
  static constexpr int kLookUps = (C.block_n + kThreads - 1) / kThreads;
  using TileQ = tile::SharedTile<kDim, tile::SharedLayout::kXor>;
  using TileK = CacheTile<T, kDim>;
  using TileV = CacheTile<T, kDimV>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params& params;
  const ScoreParams* score_params;
  const PagedParams* paged;
  const Quantised<Params>* descales;  // null where the traits have no such thing
  const Dealer<T, C> dealer;
  const int lane, row_warp, key_warp;

  int end;  // of this CTA's units
  // Of keys of the step that is loaded next: the page, on its way, and where the key lies in it.
  int pages[kLookUps];
  unsigned k_in_page[kLookUps], v_in_page[kLookUps];
  // The same of factors: where they lie in a page and in their arrays, and what was read there.
  unsigned factor_in_page[kLookUps], factor_at[kLookUps];
  float of_keys[kLookUps], of_values[kLookUps];

  // State of this warp's rows.
  static constexpr int kWords = keys_first(C) ? 2 : 4;  // of a lane in eight keys, or columns of O, or 16 of Q
  using Scores = float[kKeyTiles][kWords];
  unsigned q[q_steps(T)][kWords];
  float acc_o[kDimV / 8][kWords];
  typename Choice<keys_first(C), SoftmaxOfEight, tile::OnlineSoftmax>::Type softmax;
  float slopes[2];
  float factor_k;    // of a quantised cache
  ValueUnit unit;    // where each value has a factor of its own
  float factors[2];  // of the rows' scores, where Q is scaled: K's among them

  FC_DEVICE Kernel(const Params& p, const ScoreParams* of_scores, const RaggedParams* of_lengths,
                   const PagedParams* of_pages, const Quantised<Params>* of_cache = nullptr,
                   const ExpressionParams* of_expressions = nullptr)
      : tile::KernelExpressions<has_expression(T)>(of_expressions),
        params(p),
        score_params(of_scores),
        paged(of_pages),
        descales(of_cache),
        dealer{p, of_lengths, of_pages, address_table(), address_flags()},
        lane(ptx::tid_x() % 32),
        row_warp(ptx::shfl_idx(ptx::tid_x() / 32, 0) / C.key_warps),
        key_warp(ptx::shfl_idx(ptx::tid_x() / 32, 0) % C.key_warps) {}

  FC_DEVICE const ForwardParams& problem() const { return params.problem; }

  // --- shared memory ----------------------------------------------------------------------------------------------
  FC_DEVICE static ptx::SharedAddress address_q(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, stages) +
           static_cast<unsigned>(number) % kStages * stage_bytes(C, T);
  }
  FC_DEVICE static ptx::SharedAddress address_k(int number) { return address_q(number) + q_bytes(C, T); }
  FC_DEVICE static ptx::SharedAddress address_v(int number) { return address_k(number) + k_bytes(C, T); }
  static constexpr int kSlots = step_slots(C);
  FC_DEVICE static ptx::SharedAddress address_step(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, steps) + (number & (kSlots - 1)) * kStepBytes;
  }
  FC_DEVICE static ptx::SharedAddress address_run(int slot) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, runs) + slot * kRunBytes;
  }
  FC_DEVICE static ptx::SharedAddress address_next_unit(int slot) { return address_run(slot) + 60; }
  FC_DEVICE static ptx::SharedAddress address_flags() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, flags); }
  FC_DEVICE static ptx::SharedAddress address_table() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, table); }
  FC_DEVICE static ptx::SharedAddress address_own_q() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, own_q); }
  FC_DEVICE static ptx::SharedAddress address_missing(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, pages) + places_bytes(C) +
           static_cast<unsigned>(number) % kStages * (4 * C.block_n);
  }
  // Of the keys of a block, and behind them of its values.
  FC_DEVICE static ptx::SharedAddress address_factors(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, pages) + factors_offset(C, T) +
           static_cast<unsigned>(number) % kStages * (8 * C.block_n);
  }
  // Where the keys of a block lie in K and in V.
  FC_DEVICE static ptx::SharedAddress address_units(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, pages) + (number & 1) * (8 * C.block_n);
  }

  // Where rows begin at multiples of their pitch, a power of two, one exclusive or is all of lane.at().
  template <class Tile>
  FC_DEVICE static unsigned fragment(const typename Tile::Lane& lane, int n, int d) {
    constexpr int kPitch = Tile::kPitch;
    constexpr bool kAligned = (kPitch & (kPitch - 1)) == 0 && kPitch <= 1024 && stage_bytes(C, T) % kPitch == 0 &&
                              q_bytes(C, T) % kPitch == 0 && k_bytes(C, T) % kPitch == 0;
    if constexpr (kAligned) return ((lane.row_address + lane.chunk_address) ^ (32 * d)) + n * (16 * kPitch);
    else return lane.at(n, d);
  }

  // --- what to do -------------------------------------------------------------------------------------------------
  template <class... Words>
  FC_DEVICE static void store_words(ptx::SharedAddress at, Words... words) {
    ptx::st_shared_v4(at, ptx::float_of_bits(words)...);
  }
  FC_DEVICE static void write_step(int number, const Step& step) {
    store_words(address_step(number), step.block, step.flags, step.run, step.run_end);
  }
  FC_DEVICE static void write_run(int slot, const Run& run) {
    const ptx::SharedAddress at = address_run(slot);
    store_words(at, run.k_units, run.v_units, run.keys_begin, run.keys_end);
    store_words(at + 16, run.batch, run.head_kv, run.first_row, run.len_kv);
    store_words(at + 32, run.first_q, run.len_q, run.whole_begin, run.whole_end);
    store_words(at + 48, run.begin, run.end, run.unit, run.next_unit);
    store_words(at + 64, run.tile_unit, run.tile_units, 0, 0);
  }
  FC_DEVICE static int word(unsigned bits) { return static_cast<int>(bits); }
  FC_DEVICE static Step read_step(int number) {
    const ptx::Vector4 a = ptx::ld_shared_v4(address_step(number));
    return {word(a.x), word(a.y), word(a.z), word(a.w)};
  }
  FC_DEVICE static Run read_run(const Step& step) {
    const ptx::SharedAddress at = address_run(step.run);
    const ptx::Vector4 a = ptx::ld_shared_v4(at), b = ptx::ld_shared_v4(at + 16), c = ptx::ld_shared_v4(at + 32),
                       d = ptx::ld_shared_v4(at + 48), e = ptx::ld_shared_v4(at + 64);
    return {a.x,       a.y,       word(a.z), word(a.w), word(b.x), word(b.y), word(b.z), word(b.w), word(c.x),
            word(c.y), word(c.z), word(c.w), word(d.x), word(d.y), word(d.z), word(d.w), word(e.x), word(e.y)};
  }
  FC_DEVICE static int flag_of_whole(int block, int begin, int end) {
    return begin <= block && block < end ? Step::kWhole : 0;
  }
  // Of one thread, of the warp that has the fewest pages to look up.
  FC_DEVICE static bool makes_steps() { return ptx::tid_x() == kThreads - 32; }
  FC_DEVICE void begin_run_at(int number, int slot, int unit) {
    const Run run = dealer.find(unit, end);
    write_run(slot, run);
    write_step(number,
               {run.begin, Step::kFirst | flag_of_whole(run.begin, run.whole_begin, run.whole_end), slot, run.end});
  }
  // The step after step `number - 1`.
  FC_DEVICE void make_step(int number) {
    Step step = read_step(number - 1);
    if (step.block >= 0) {
      if (++step.block >= step.run_end)
        return begin_run_at(number, (step.run + 1) & (kSlots - 1),
                            word(ptx::ld_shared_u32(address_next_unit(step.run))));
      const ptx::Vector4 words = ptx::ld_shared_v4(address_run(step.run) + 32);
      step.flags = flag_of_whole(step.block, word(words.z), word(words.w));
    }
    write_step(number, step);
  }

  // --- load -------------------------------------------------------------------------------------------------------
  // In the place of an offset in units of 16 bytes, which are less: of keys of a page that does not exist, and of keys
  // that nobody sees.
  static constexpr unsigned kMissing = 0xfffffffeu, kUnseen = 0xffffffffu;
  static constexpr unsigned kNan = marks_missing(T) ? 0u : has_quantised_cache(T) ? 0x7f7f7f7fu : 0x7fff7fffu;

  // The table is read a step before the pages.
  FC_DEVICE void look_up(int number) {
    if constexpr (T.paged) {
      if (kThreads > C.block_n && ptx::tid_x() >= C.block_n) return;
      const Step step = read_step(number);
      const ptx::Vector4 a = ptx::ld_shared_v4(address_run(step.run));
      const int batch = word(ptx::ld_shared_u32(address_run(step.run) + 16));
#pragma unroll
      for (int i = 0; i < kLookUps; ++i) {
        const int of_block = ptx::tid_x() + i * kThreads, key = step.block * C.block_n + of_block;
        v_in_page[i] = kUnseen;
        if (step.block < 0 || of_block >= C.block_n || key < word(a.z) || key >= word(a.w)) continue;
        const int entry = params.by_page_size.quotient(key), in_page = key - entry * paged->page_size;
        k_in_page[i] = a.x + in_page * params.k_units.row, v_in_page[i] = a.y + in_page * params.v_units.row;
        if constexpr (T.token_factors) {
          const int head = word(ptx::ld_shared_u32(address_run(step.run) + 20));
          factor_in_page[i] = static_cast<unsigned>(head) * descales->descale_k.head_stride + in_page;
        }
        pages[i] = tile::load_length(paged->block_table + batch * paged->table_stride + entry);
      }
    }
  }
  FC_DEVICE void store_pages(int number) {
    if constexpr (T.paged) {
#pragma unroll
      for (int i = 0; i < kLookUps; ++i) {
        const int key = ptx::tid_x() + i * kThreads;
        if (C.block_n % kThreads != 0 && key >= C.block_n) continue;
        const ptx::SharedAddress at = address_units(number) + 4 * key;
        unsigned k = kUnseen, v = kUnseen;
        if (v_in_page[i] != kUnseen) {
          const bool exists = static_cast<unsigned>(pages[i]) < static_cast<unsigned>(paged->pages);
          k = exists ? pages[i] * params.k_units.batch + k_in_page[i] : kMissing;
          v = exists ? pages[i] * params.v_units.batch + v_in_page[i] : kUnseen;
        }
        if constexpr (T.token_factors)
          factor_at[i] = v == kUnseen
                             ? kUnseen
                             : static_cast<unsigned>(pages[i]) * descales->descale_k.batch_stride + factor_in_page[i];
        ptx::st_shared_u32(at, k);
        ptx::st_shared_u32(at + 4 * C.block_n, v);
      }
    }
  }

  // Factors of a step's keys, on their way until the next step; 0 of keys that are not there.
  FC_DEVICE void read_factors(const Step& step) {
    if (kThreads > C.block_n && ptx::tid_x() >= C.block_n) return;
    ptx::Vector4 a{}, b{};
    if constexpr (!T.paged) {
      a = ptx::ld_shared_v4(address_run(step.run)), b = ptx::ld_shared_v4(address_run(step.run) + 16);
    }
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      const int of_block = ptx::tid_x() + i * kThreads, key = step.block * C.block_n + of_block;
      of_keys[i] = of_values[i] = 0.0f;
      if (C.block_n % kThreads != 0 && of_block >= C.block_n) continue;
      if constexpr (!T.paged) {
        const bool is_there = key >= word(a.z) && key < word(a.w);
        const Descale& by = descales->descale_k;
        factor_at[i] = is_there ? b.x * by.batch_stride + b.y * by.head_stride + key : kUnseen;
      }
      if (factor_at[i] == kUnseen) continue;
      of_keys[i] = ptx::ld_global_f32(descales->descale_k.values + factor_at[i]);
      of_values[i] = ptx::ld_global_f32(descales->descale_v.values + factor_at[i]);
    }
  }
  FC_DEVICE void store_factors(int number) {
    if (read_step(number).block < 0) return;
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      const int key = ptx::tid_x() + i * kThreads;
      if (C.block_n % kThreads != 0 && key >= C.block_n) continue;
      ptx::st_shared_u32(address_factors(number) + 4 * key, ptx::bits_of_float(of_keys[i]));
      ptx::st_shared_u32(address_factors(number) + 4 * (C.block_n + key), ptx::bits_of_float(of_values[i]));
    }
  }

  FC_DEVICE static const unsigned short* row_of(const void* tensor, const Strides& stride, int batch, int head,
                                                int row) {
    return static_cast<const unsigned short*>(tensor) + batch * stride.batch + head * stride.head + row * stride.row;
  }
  FC_DEVICE void load_q(int number, const Run& run) {
    mark(Activity::kLoadQ);
    constexpr int kChunks = kDim / 8, kCopies = tile_rows(C) * kChunks;
#pragma unroll 1
    for (int index = ptx::tid_x(); index < kCopies; index += kThreads) {
      const int row = index / kChunks, chunk = index % kChunks;
      const int position = params.by_group_size.quotient(run.first_row + row);
      const int head = run.head_kv * params.group_size + run.first_row + row - position * params.group_size;
      const bool exists = position < run.len_q && chunk * 8 < T.head_dim;
      const unsigned short* from =
          row_of(problem().q, problem().q_stride, run.batch, head, run.first_q + position) + chunk * 8;
      ptx::cp_async_16(address_q(number) + TileQ::offset(row, chunk), from, exists ? 16 : 0);
    }
  }
  FC_DEVICE static void fill(ptx::SharedAddress at, unsigned bits) {
    const float word = ptx::float_of_bits(bits);
    ptx::st_shared_v4(at, word, word, word, word);
  }
  // Copies what is there. Paged: `of_keys` has where keys lie, and the result is the largest of the thread's words.
  // Else keys follow `first_unit`, and the first `keys` are there.
  template <class Tile, int kValidColumns>
  FC_DEVICE unsigned load_rows(ptx::SharedAddress to, const void* tensor, ptx::SharedAddress of_keys,
                               unsigned first_unit, unsigned row_units, int keys) const {
    using Own = Pieces<T, C, Tile>;
    const auto from = ptx::opaque(reinterpret_cast<unsigned long long>(tensor) +
                                  (Own::kOneChunk ? 16u * static_cast<unsigned>(Own::chunk(0)) : 0u));
    unsigned largest = 0;
    unsigned own_unit = first_unit + Own::key(0) * row_units;
#pragma unroll 1
    for (int first = 0; first < Own::kCount; first += Own::kAtOnce) {
      unsigned units[Own::kAtOnce];
      if constexpr (T.paged) {
#pragma unroll
        for (int i = 0; i < Own::kAtOnce; ++i) {
          if (Own::exists(first + i)) units[i] = ptx::ld_shared_u32(of_keys + 4 * Own::key(first + i));
        }
      }
#pragma unroll
      for (int i = 0; i < Own::kAtOnce; ++i) {
        if (!Own::exists(first + i)) continue;
        const int key = Own::key(first + i);
        if constexpr (T.paged) {
          largest = units[i] > largest ? units[i] : largest;
        } else {
          units[i] = Own::kOneChunk ? own_unit : first_unit + key * row_units;
          own_unit += kThreads / Own::kChunks * row_units;
        }
        const bool is_there = T.paged ? units[i] < kMissing : key < keys;
        const ptx::SharedAddress at = to + Own::offset(first + i);
        const auto source = from + 16ull * units[i] + (Own::kOneChunk ? 0 : Own::chunk(first + i) * 16);
        if (kValidColumns < Own::kChunks * chunk_columns(T) &&
            Own::chunk(first + i) * chunk_columns(T) >= kValidColumns)
          fill(at, 0);
        else if (is_there) ptx::cp_async_16(at, reinterpret_cast<const void*>(source), 16);
      }
    }
    return largest;
  }
  // The thread's pieces that no copy fills. Keys that no row sees become zeros: a weight of 0 does not make NaN one.
  // Keys of a page that does not exist become NaN, and their V zeros.
  template <class Tile>
  FC_DEVICE void fill_rows(ptx::SharedAddress to, ptx::SharedAddress of_keys, int keys) const {
    using Own = Pieces<T, C, Tile>;
#pragma unroll 1
    for (int i = 0; i < Own::kCount; ++i) {
      if (!Own::exists(i)) continue;
      unsigned units = kUnseen;
      if constexpr (T.paged) units = ptx::ld_shared_u32(of_keys + 4 * Own::key(i));
      if (T.paged ? units >= kMissing : Own::key(i) >= keys) fill(to + Own::offset(i), units == kMissing ? kNan : 0);
    }
  }
  FC_DEVICE void load(int number) {
    const Step step = read_step(number);
    if (step.block >= 0) {
      if (step.flags & Step::kFirst) load_q(number, read_run(step));
      if constexpr (T.token_factors) read_factors(step);
      unsigned k_unit = 0, v_unit = 0;
      int keys = C.block_n;
      if constexpr (!T.paged) {
        const ptx::Vector4 words = ptx::ld_shared_v4(address_run(step.run));
        const int first_key = step.block * C.block_n;
        k_unit = words.x + first_key * params.k_units.row, v_unit = words.y + first_key * params.v_units.row;
        keys = word(words.w) - first_key;
      }
      const ptx::SharedAddress of_k = address_units(number), of_v = of_k + 4 * C.block_n;
      mark(Activity::kLoadK, step.block);
      unsigned largest =
          load_rows<TileK, T.head_dim>(address_k(number), problem().k, of_k, k_unit, params.k_units.row, keys);
      mark(Activity::kLoadV, step.block);
      const unsigned of_values =
          load_rows<TileV, T.head_dim_v>(address_v(number), problem().v, of_v, v_unit, params.v_units.row, keys);
      // Of tiles of one width a thread has the same keys.
      if (kDim != kDimV) largest = of_values > largest ? of_values : largest;
      if constexpr (marks_missing(T)) {
        for (int key = ptx::tid_x(); key < C.block_n; key += kThreads)
          ptx::st_shared_u32(address_missing(number) + 4 * key, ptx::ld_shared_u32(of_k + 4 * key) == kMissing);
      }
      if (T.paged ? largest >= kMissing : keys < C.block_n) {
        fill_rows<TileK>(address_k(number), of_k, keys);
        fill_rows<TileV>(address_v(number), of_v, keys);
      }
    }
    ptx::cp_async_commit();
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE void begin_run(int number, const Run& run) {
    if constexpr (T.token_factors) factor_k = 1.0f;
    else if constexpr (has_quantised_cache(T)) factor_k = tile::descale(descales->descale_k, run.batch, run.head_kv);
    if constexpr (keys_first(C)) {
      begin_eight_rows(own_q_rows(address_q(number)));
    } else if constexpr (keeps_q(T)) {
      const typename TileQ::Lane lane_q = lane_of_q(address_q(number));
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        if constexpr (has_quantised_cache(T)) load_q_of_codes<T, TileQ>(q[d], own_q_rows(address_q(number)), lane, d);
        else ptx::ldmatrix_x4(q[d], fragment<TileQ>(lane_q, 0, d));
      }
      if constexpr (scales_q(T)) {
        factors[0] = factors[1] = factor_k;
        scale_rows_to_f16(q, factors);
      }
    } else {
      for (int at = 16 * ptx::tid_x(); at < q_bytes(C, T); at += 16 * kThreads) {
        const ptx::Vector4 words = ptx::ld_shared_v4(address_q(number) + at);
        ptx::st_shared_v4(address_own_q() + at, ptx::float_of_bits(words.x), ptx::float_of_bits(words.y),
                          ptx::float_of_bits(words.z), ptx::float_of_bits(words.w));
      }
      ptx::bar_sync();
    }
    if constexpr (T.alibi != 0) {
      const Extent extent = dealer.extent(run.len_q, run.len_kv);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = own_row(run, r), position = params.by_group_size.quotient(row);
        slopes[r] = tile::Score<T, Extent>{extent, score_params}.slope(
            run.batch, run.head_kv * params.group_size + row - position * params.group_size);
      }
    }
  }
  // Before a run and after its end, when the compiler need not keep what was there.
  FC_DEVICE void clear() {
#pragma unroll
    for (int d = 0; d < q_steps(T); ++d)
#pragma unroll
      for (int i = 0; i < kWords; ++i) q[d][i] = 0;
    softmax.reset();
    if constexpr (T.token_factors) unit.reset();
    tile::set_zero(acc_o);
  }
  FC_DEVICE void begin_eight_rows(ptx::SharedAddress rows) {
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      if constexpr (has_quantised_cache(T)) load_q_of_codes<T, TileQ>(q[d], rows, lane, d);
      else load_q_of_eight<TileQ>(q[d], rows, lane, d);
    }
    if constexpr (scales_q(T)) {
      float own[1] = {factor_k};
      scale_rows_to_f16(q, own);
      spread_rows(factors, own[0], lane);
    }
  }
  // The lane's rows, among all of the sequence and key head.
  FC_DEVICE int own_row(const Run& run, int r) const {
    if constexpr (keys_first(C)) return run.first_row + tile::column_of_lane(lane) + r;
    return run.first_row + 16 * row_warp + tile::row_of_lane(lane, r);
  }
  FC_DEVICE ptx::SharedAddress own_q_rows(ptx::SharedAddress tile) const {
    return tile + 16 * row_warp * TileQ::kPitch;
  }
  // The lane's first key in its warp's part of a block.
  FC_DEVICE int own_key() const { return keys_first(C) ? lane / 4 : tile::column_of_lane(lane); }
  FC_DEVICE typename TileQ::Lane lane_of_q(ptx::SharedAddress tile) const {
    return TileQ::lane_rows_first(own_q_rows(tile), lane);
  }
  // Of the lane's first key in a block.
  FC_DEVICE ptx::SharedAddress own_factors(int number) const {
    return address_factors(number) + 4 * (key_warp * kKeys + own_key());
  }
  FC_DEVICE void scores_of_codes(Scores& acc_s, int number) {
    const typename TileK::Lane lane_k =
        TileK::lane_columns_first(address_k(number) + key_warp * kKeys * TileK::kPitch, lane);
    tile::set_zero(acc_s);
    constexpr int kSteps = code_steps(T);
#pragma unroll
    for (int d = 0; d < kDim / 16; d += kSteps) {
      const int at = keeps_q(T) ? d : 0;
      if constexpr (!keeps_q(T)) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) load_q_of_codes<T, TileQ>(q[i], own_q_rows(address_own_q()), lane, d + i);
      }
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        unsigned codes[4];
        ptx::ldmatrix_x4(codes, fragment<TileK>(lane_k, n, d / kSteps));
        multiply_keys<T>(acc_s[2 * n], q, at, codes[0], codes[1]);
        multiply_keys<T>(acc_s[2 * n + 1], q, at, codes[2], codes[3]);
      }
    }
    if constexpr (scales_q(T)) tile::scale_rows(acc_s, factors);
    if constexpr (T.token_factors) {
      float own[kKeyTiles][2];
      load_factors(own, own_factors(number));
      multiply_columns(acc_s, own);
    }
    if constexpr (marks_missing(T)) spoil_missing(acc_s, address_missing(number) + 4 * (key_warp * kKeys + own_key()));
  }
  FC_DEVICE void scores_of_eight(Scores& acc_s, int number) {
    const typename TileK::Lane lane_k =
        TileK::lane_columns_first(address_k(number) + key_warp * kKeys * TileK::kPitch, lane);
    tile::set_zero(acc_s);
    constexpr int kSteps = code_steps(T);
#pragma unroll
    for (int d = 0; d < kDim / 16; d += kSteps) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        unsigned codes[4];
        ptx::ldmatrix_x4(codes, fragment<TileK>(lane_k, n, d / kSteps));
        multiply_sixteen_keys<T>(acc_s[2 * n], acc_s[2 * n + 1], q, d, codes);
      }
    }
    if constexpr (scales_q(T)) scale_eight_rows(acc_s, factors);
    if constexpr (marks_missing(T))
      spoil_missing_keys(acc_s, address_missing(number) + 4 * (key_warp * kKeys + own_key()));
  }
  FC_DEVICE void scores(Scores& acc_s, int number) {
    if constexpr (keys_first(C)) return scores_of_eight(acc_s, number);
    else if constexpr (has_quantised_cache(T)) return scores_of_codes(acc_s, number);
    else return scores_of_sixteen(acc_s, number);
  }
  FC_DEVICE void scores_of_sixteen(Scores& acc_s, int number) {
    const typename TileQ::Lane lane_q = lane_of_q(address_own_q());
    const typename TileK::Lane lane_k =
        TileK::lane_columns_first(address_k(number) + key_warp * kKeys * TileK::kPitch, lane);
    tile::set_zero(acc_s);
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      const int at = keeps_q(T) ? d : 0;
      if constexpr (!keeps_q(T)) ptx::ldmatrix_x4(q[0], lane_q.at(0, d));
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, fragment<TileK>(lane_k, n, d));
        tile::mma<T.element>(acc_s[2 * n], q[at], b[0], b[1]);
        tile::mma<T.element>(acc_s[2 * n + 1], q[at], b[2], b[3]);
      }
    }
  }
  // Functions of scores, and the mask.
  FC_DEVICE void transform(Scores& acc_s, const Run& run, int of_block) const {
    const Extent extent = dealer.extent(run.len_q, run.len_kv);
    const tile::Mask<T, Extent> mask{extent};
    const int block = of_block * C.key_warps + key_warp;  // of the warp's keys
    const int first_key = block * kKeys + own_key();
    const int first_row = run.first_row + C.warp_rows * row_warp;
    const int first = params.by_group_size.quotient(first_row);
    const int last = tile::min_int(params.by_group_size.quotient(first_row + C.warp_rows - 1), run.len_q - 1);
    const auto position = [&](int r) { return params.by_group_size.quotient(own_row(run, r)); };
    // Functions of scores take what k stands for.
    if constexpr (changes_scores(T) && has_quantised_cache(T) && !scales_q(T) && !T.token_factors) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_s[n][i] *= factor_k;
    }
    if constexpr (transforms_scores(T)) {
      const tile::Score<T, Extent> score{extent, score_params};
      score.apply(acc_s, slopes, score.template side<kKeys>(block, first, last), first_key, {position(0), position(1)});
    }
    if constexpr (T.score_expression)
      express<false>(acc_s, params, this->expression_params, extent, run, {own_row(run, 0), own_row(run, 1)},
                     first_key);
    if (const tile::Cut cut = mask.template cut<kKeys>(block, first, last); cut.any()) {
      if constexpr (keys_first(C)) mask_eight_rows(mask, acc_s, first_key, {position(0), position(1)});
      else mask.apply(acc_s, cut, first_key, {position(0), position(1)});
    }
    if constexpr (T.mask_expression)
      express<true>(acc_s, params, this->expression_params, extent, run, {own_row(run, 0), own_row(run, 1)}, first_key);
  }
  FC_DEVICE void add_pv_of_eight(const Scores& acc_s, int number) {
    const typename TileV::Lane lane_v =
        TileV::lane_rows_first(address_v(number) + key_warp * kKeys * TileV::kPitch, lane);
    constexpr int kSteps = code_steps(T);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      unsigned p[2];
      pack_weights<operand_element(T)>(p, acc_s[2 * n], acc_s[2 * n + 1], weight_scale(T));
#pragma unroll
      for (int d = 0; d < kDimV / 16; d += kSteps) {
        unsigned codes[4];
        ptx::ldmatrix_x4_trans(codes, fragment<TileV>(lane_v, n, d / kSteps));
        multiply_sixteen_values<T>(acc_o, 2 * d, p[0], p[1], codes);
      }
    }
  }
  FC_DEVICE void add_pv(const Scores& acc_s, int number) {
    if constexpr (keys_first(C)) return add_pv_of_eight(acc_s, number);
    else return add_pv_of_sixteen(acc_s, number);
  }
  FC_DEVICE void add_pv_of_sixteen(const Scores& acc_s, int number) {
    const typename TileV::Lane lane_v =
        TileV::lane_rows_first(address_v(number) + key_warp * kKeys * TileV::kPitch, lane);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      unsigned p[4];
      if constexpr (has_quantised_cache(T)) {
        constexpr float kScale = T.token_factors ? 1.0f : weight_scale(T);  // else weights are scaled already
        const float scale[2] = {kScale, kScale};
        tile::pack_operand<operand_element(T)>(p, acc_s, n, scale);
        constexpr int kSteps = code_steps(T);
#pragma unroll
        for (int d = 0; d < kDimV / 16; d += kSteps) {
          unsigned codes[4];
          ptx::ldmatrix_x4_trans(codes, fragment<TileV>(lane_v, n, d / kSteps));
          multiply_values<T>(acc_o, 2 * d, p, codes[0], codes[1]);
          multiply_values<T>(acc_o, 2 * d + kSteps, p, codes[2], codes[3]);
        }
      } else {
        tile::pack_operand<T.element>(p, acc_s, n);
#pragma unroll
        for (int d = 0; d < kDimV / 16; ++d) {
          unsigned b[4];
          ptx::ldmatrix_x4_trans(b, fragment<TileV>(lane_v, n, d));
          tile::mma<T.element>(acc_o[2 * d], p, b[0], b[1]);
          tile::mma<T.element>(acc_o[2 * d + 1], p, b[2], b[3]);
        }
      }
    }
  }
  // Whether a row of the warp sees a key of its part of the block.
  FC_DEVICE bool sees(const Run& run, int block) const {
    const Extent extent = dealer.extent(run.len_q, run.len_kv);
    const tile::Mask<T, Extent> mask{extent};
    const int first_row = run.first_row + C.warp_rows * row_warp, first_key = block * C.block_n + key_warp * kKeys;
    const int first = params.by_group_size.quotient(first_row);
    const int last = tile::min_int(params.by_group_size.quotient(first_row + C.warp_rows - 1), run.len_q - 1);
    return first_key < mask.end_of(last) && first_key + kKeys > mask.begin_of(first);
  }
  // Weights become those of what V stores.
  FC_DEVICE void weigh_by_factors(Scores& acc_s, int number, float (&rescale)[2]) {
    float own[kKeyTiles][2];
    load_factors(own, own_factors(number) + 4 * C.block_n);
    multiply_columns(acc_s, own);
    if constexpr (weight_scale(T) != 1.0f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rescale[r] *= unit.raise(acc_s, r);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
          acc_s[n][2 * r] *= unit.to_weight(r), acc_s[n][2 * r + 1] *= unit.to_weight(r);
      }
    }
  }
  FC_DEVICE void compute(int number, const Step& step) {
    if (step.flags & Step::kFirst) begin_run(number, read_run(step));
    const bool is_whole = step.flags & Step::kWhole;
    if (!is_whole && !sees(read_run(step), step.block)) return;
    Scores acc_s;
    mark(Activity::kQk, step.block);
    scores(acc_s, number);
    mark(Activity::kMask, step.block);
    if (transforms_scores(T) || has_expression(T) || !is_whole) transform(acc_s, read_run(step), step.block);
    mark(Activity::kSoftmax, step.block);
    float rescale[2];
    float scale_log2 = problem().scale_log2;
    if constexpr (has_quantised_cache(T) && !changes_scores(T) && !scales_q(T) && !T.token_factors)
      scale_log2 *= factor_k;
    softmax.update(acc_s, scale_log2, rescale);
    if constexpr (T.token_factors) weigh_by_factors(acc_s, number, rescale);
    // The maxima of most blocks are those of blocks before.
    if (ptx::vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) {
      if constexpr (keys_first(C)) scale_eight_rows(acc_o, rescale);
      else tile::scale_rows(acc_o, rescale);
    }
    mark(Activity::kPv, step.block);
    add_pv(acc_s, number);
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  FC_DEVICE void finish(int number, const Step& step) {
    mark(Activity::kMerge, step.block);
    const Run run = read_run(step);
    if constexpr (keys_first(C)) finish_eight(number, run);
    else finish_sixteen(number, run);
  }
  FC_DEVICE Finish<T, C> rest_of(const Run& run) const {
    return {params, score_params, run, lane, row_warp, key_warp, descales};
  }
  FC_DEVICE OverKeyWarps<T, C> over_key_warps(int number) const {
    return {address_q(number) + row_warp * exchange_bytes(C, T), key_warp};
  }
  FC_DEVICE void finish_sixteen(int number, const Run& run) {
    tile::RowState state = tile::RowState::of(softmax);
    if constexpr (T.token_factors && weight_scale(T) != 1.0f) sort_columns<T>(acc_o, unit.undone(0), unit.undone(1));
    else if constexpr (has_quantised_cache(T)) sort_columns<T>(acc_o);
    if constexpr (C.key_warps == 1) {
      end_of_run(rest_of(run), state, acc_o);
    } else {
      ptx::bar_sync();  // all warps have read this stage
      float o[warp_chunks(C, T)][4];
      tile::exchange<C.key_warps, warp_chunks(C, T), all_chunks(T), false>(
          over_key_warps(number), key_warp, lane, [&](int c, int i) { return acc_o[c][i]; }, state, o);
      end_of_run(rest_of(run), state, o);
    }
  }
  FC_DEVICE void finish_eight(int number, const Run& run) {
    constexpr int kOwn = warp_chunks(C, T);
    tile::RowState state = softmax.state();
    float own[kOwn][2], o[kOwn][4];
    if constexpr (C.key_warps == 1) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) own[c][0] = acc_o[c][0], own[c][1] = acc_o[c][1];
    } else {
      ptx::bar_sync();  // as above
      float pairs[kOwn / 2][4];
      tile::exchange<C.key_warps, kOwn / 2, all_chunks(T) / 2, false>(
          over_key_warps(number), key_warp, LaneOfEight{lane},
          [&](int c, int i) { return acc_o[2 * c + i % 2][i / 2]; }, state, pairs);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) own[c][0] = pairs[c / 2][c % 2], own[c][1] = pairs[c / 2][2 + c % 2];
    }
    transpose_eight_rows(o, own, lane);
    if constexpr (has_quantised_cache(T)) sort_columns<T>(o);
    end_of_run(rest_of(run), transpose_state(state, lane), o);
  }
  template <class Chunks>
  FC_DEVICE void end_of_run(const Finish<T, C>& rest, const tile::RowState& state, const Chunks& o) {
    const Run& run = rest.run;
    if (run.unit == run.tile_unit && run.next_unit == run.tile_unit + run.tile_units) {
      mark(Activity::kEpilogue);
      return rest.store(state, o);
    }
    const Parts parts = Parts::of<C>(run, dealer.shares());
    rest.write_part(parts, state, o);
    mark(Activity::kWaitPartner);
    if (!rest.arrive(parts, address_flags() + 4)) return;
    mark(Activity::kEpilogue);
    rest.merge(parts);
  }

  FC_DEVICE void run() {
    begin_role(tile::Role::kWarp);
    dealer.make();
    ptx::bar_sync();
    dealer.write_bad();
    const Shares shares = dealer.shares();
    if (ptx::ctaid_x() >= shares.ctas) return end_role();
    end = shares.begin_of(ptx::ctaid_x() + 1);
    if (makes_steps()) {
      // As if a run had ended before.
      write_step(-1, {0, 0, kSlots - 1, 0});
      ptx::st_shared_u32(address_next_unit(kSlots - 1), shares.begin_of(ptx::ctaid_x()));
    }
    clear();
    // The code that makes a step is long: once, it is in the instruction cache sooner.
#pragma unroll 1
    for (int number = -1 - kStages;; ++number) {
      const int ahead = number + kStages - 1;  // what is loaded now
      mark(Activity::kWaitK, number);
      ptx::cp_async_wait<kStages - 2>();
      if (ahead >= 0) store_pages(ahead);
      if constexpr (T.token_factors) {
        if (ahead >= 1) store_factors(ahead - 1);
      }
      // Everybody's copies are visible, and the pages and steps; everybody has left the stage that is loaded next.
      ptx::bar_sync();
      if (ahead >= 0) load(ahead);
      if (ahead >= -1) look_up(ahead + 1);
      if (makes_steps()) make_step(ahead + 2);
      if (number < 0) continue;
      const Step step = read_step(number);
      if (step.block < 0) break;
      compute(number, step);
      if (step.block + 1 < step.run_end) continue;
      finish(number, step);
      clear();
    }
    end_role();
  }
};

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward(const __grid_constant__ Params params) {
  Kernel<T, C>(params, nullptr, nullptr, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_scored(const __grid_constant__ Scored<Params> params) {
  Kernel<T, C>(params.plain, &params.score, nullptr, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged(const __grid_constant__ Ragged<Params> params) {
  Kernel<T, C>(params.plain, &params.score, &params.ragged, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged(const __grid_constant__ Paged<Params> params) {
  Kernel<T, C>(params.plain, &params.score, &params.ragged, &params.paged).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised(const __grid_constant__ Quantised<Params> params) {
  Kernel<T, C>(params.plain, nullptr, nullptr, nullptr, &params).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_scored(const __grid_constant__ Scored<Quantised<Params>> params) {
  Kernel<T, C>(params.plain.plain, &params.score, nullptr, nullptr, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_ragged(const __grid_constant__ Ragged<Quantised<Params>> params) {
  Kernel<T, C>(params.plain.plain, &params.score, &params.ragged, nullptr, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_paged(const __grid_constant__ Paged<Quantised<Params>> params) {
  Kernel<T, C>(params.plain.plain, &params.score, &params.ragged, &params.paged, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_expressed(const __grid_constant__ Expressed<Params> params) {
  Kernel<T, C>(params.plain, &params.score, nullptr, nullptr, nullptr, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Params>> params) {
  const Ragged<Params>& all = params.all;
  Kernel<T, C>(all.plain, &all.score, &all.ragged, nullptr, nullptr, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Params>> params) {
  const Paged<Params>& all = params.all;
  Kernel<T, C>(all.plain, &all.score, &all.ragged, &all.paged, nullptr, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_expressed(const __grid_constant__ Expressed<Quantised<Params>> params) {
  const Quantised<Params>& own = params.plain;
  Kernel<T, C>(own.plain, &params.score, nullptr, nullptr, &own, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Quantised<Params>>> params) {
  const Ragged<Quantised<Params>>& all = params.all;
  Kernel<T, C>(all.plain.plain, &all.score, &all.ragged, nullptr, &all.plain, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Quantised<Params>>> params) {
  const Paged<Quantised<Params>>& all = params.all;
  Kernel<T, C>(all.plain.plain, &all.score, &all.ragged, &all.paged, &all.plain, &params.expression).run();
}

}  // namespace flashcore::sm80_decode_fwd
