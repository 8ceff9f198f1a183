#pragma once
// How Q, K and V reach shared memory in sm80_decode_fwd: the pages of a block's keys and the keys' own factors, which
// are on their way a step ahead, and the copies, which all threads make.

#include "kernels/ptx/cp_async.cuh"
#include "kernels/sm80_decode_fwd/context.cuh"
#include "kernels/sm80_decode_fwd/pieces.cuh"

namespace flashcore::sm80_decode_fwd {

template <Traits T, Config C>
struct Loader {
  using Context = sm80_decode_fwd::Context<T, C>;
  using Activity = tile::Activity;
  using TileQ = typename Context::TileQ;
  using TileK = typename Context::TileK;
  using TileV = typename Context::TileV;

  // Of keys of the step that is loaded next: the page, on its way, and where the key lies in it.
  int pages[Context::kLookUps];
  unsigned k_in_page[Context::kLookUps], v_in_page[Context::kLookUps];
  // The same of factors: where they lie in a page and in their arrays, and what was read there.
  unsigned factor_in_page[Context::kLookUps], factor_at[Context::kLookUps];
  float of_keys[Context::kLookUps], of_values[Context::kLookUps];

  // The table is read a step before the pages.
  FC_DEVICE void look_up(const Context& context, int number) {
    if constexpr (T.paged) {
      if (Context::kThreads > C.block_n && ptx::tid_x() >= C.block_n) return;
      const Step step = context.read_step(number);
      const ptx::Vector4 a = ptx::ld_shared_v4(context.address_run(step.run));
      const int batch = int_of_bits(ptx::ld_shared_u32(context.address_run(step.run) + 16));
#pragma unroll
      for (int i = 0; i < Context::kLookUps; ++i) {
        const int of_block = ptx::tid_x() + i * Context::kThreads, key = step.block * C.block_n + of_block;
        v_in_page[i] = Context::kUnseen;
        if (step.block < 0 || of_block >= C.block_n || key < int_of_bits(a.z) || key >= int_of_bits(a.w)) continue;
        const int entry = context.params.by_page_size.quotient(key), in_page = key - entry * context.paged->page_size;
        k_in_page[i] = a.x + in_page * context.params.k_units.row;
        v_in_page[i] = a.y + in_page * context.params.v_units.row;
        if constexpr (T.token_factors) {
          const int head = int_of_bits(ptx::ld_shared_u32(context.address_run(step.run) + 20));
          factor_in_page[i] = static_cast<unsigned>(head) * context.descales->descale_k.head_stride + in_page;
        }
        pages[i] = tile::load_length(context.paged->block_table + batch * context.paged->table_stride + entry);
      }
    }
  }
  FC_DEVICE void store_pages(const Context& context, int number) {
    if constexpr (T.paged) {
#pragma unroll
      for (int i = 0; i < Context::kLookUps; ++i) {
        const int key = ptx::tid_x() + i * Context::kThreads;
        if (C.block_n % Context::kThreads != 0 && key >= C.block_n) continue;
        const ptx::SharedAddress at = context.address_units(number) + 4 * key;
        unsigned k = Context::kUnseen, v = Context::kUnseen;
        if (v_in_page[i] != Context::kUnseen) {
          const bool exists = static_cast<unsigned>(pages[i]) < static_cast<unsigned>(context.paged->pages);
          k = exists ? pages[i] * context.params.k_units.batch + k_in_page[i] : Context::kMissing;
          v = exists ? pages[i] * context.params.v_units.batch + v_in_page[i] : Context::kUnseen;
        }
        if constexpr (T.token_factors)
          factor_at[i] =
              v == Context::kUnseen
                  ? Context::kUnseen
                  : static_cast<unsigned>(pages[i]) * context.descales->descale_k.batch_stride + factor_in_page[i];
        ptx::st_shared_u32(at, k);
        ptx::st_shared_u32(at + 4 * C.block_n, v);
      }
    }
  }

  // Factors of a step's keys, on their way until the next step; 0 of keys that are not there.
  FC_DEVICE void read_factors(const Context& context, const Step& step) {
    if (Context::kThreads > C.block_n && ptx::tid_x() >= C.block_n) return;
    ptx::Vector4 a{}, b{};
    if constexpr (!T.paged) {
      a = ptx::ld_shared_v4(context.address_run(step.run)), b = ptx::ld_shared_v4(context.address_run(step.run) + 16);
    }
#pragma unroll
    for (int i = 0; i < Context::kLookUps; ++i) {
      const int of_block = ptx::tid_x() + i * Context::kThreads, key = step.block * C.block_n + of_block;
      of_keys[i] = of_values[i] = 0.0f;
      if (C.block_n % Context::kThreads != 0 && of_block >= C.block_n) continue;
      if constexpr (!T.paged) {
        const bool is_there = key >= int_of_bits(a.z) && key < int_of_bits(a.w);
        const Descale& by = context.descales->descale_k;
        factor_at[i] = is_there ? b.x * by.batch_stride + b.y * by.head_stride + key : Context::kUnseen;
      }
      if (factor_at[i] == Context::kUnseen) continue;
      of_keys[i] = ptx::ld_global_f32(context.descales->descale_k.values + factor_at[i]);
      of_values[i] = ptx::ld_global_f32(context.descales->descale_v.values + factor_at[i]);
    }
  }
  FC_DEVICE void store_factors(const Context& context, int number) {
    if (context.read_step(number).block < 0) return;
#pragma unroll
    for (int i = 0; i < Context::kLookUps; ++i) {
      const int key = ptx::tid_x() + i * Context::kThreads;
      if (C.block_n % Context::kThreads != 0 && key >= C.block_n) continue;
      ptx::st_shared_u32(context.address_factors(number) + 4 * key, ptx::bits_of_float(of_keys[i]));
      ptx::st_shared_u32(context.address_factors(number) + 4 * (C.block_n + key), ptx::bits_of_float(of_values[i]));
    }
  }

  using QueryElement = typename Choice<has_8bit_q(T), unsigned char, unsigned short>::Type;
  FC_DEVICE static const QueryElement* row_of(const void* tensor, const Strides& stride, int batch, int head, int row) {
    return static_cast<const QueryElement*>(tensor) + batch * stride.batch + head * stride.head + row * stride.row;
  }
  FC_DEVICE void load_q(Context& context, int number, const Run& run) {
    context.mark(Activity::kLoadQ);
    constexpr int kColumns = 128 / q_bits(T), kChunks = Context::kDim / kColumns, kCopies = tile_rows(C) * kChunks;
#pragma unroll 1
    for (int index = ptx::tid_x(); index < kCopies; index += Context::kThreads) {
      const int row = index / kChunks, chunk = index % kChunks;
      const int position = context.params.by_group_size.quotient(run.first_row + row);
      const int head =
          run.head_kv * context.params.group_size + run.first_row + row - position * context.params.group_size;
      const bool exists = position < run.len_q && chunk * kColumns < T.head_dim;
      const QueryElement* from =
          row_of(context.problem().q, context.problem().q_stride, run.batch, head, run.first_q + position) +
          chunk * kColumns;
      ptx::cp_async_16(context.address_q(number) + TileQ::offset(row, chunk), from, exists ? 16 : 0);
    }
  }
  FC_DEVICE static void fill(ptx::SharedAddress at, unsigned bits) {
    const float word = ptx::float_of_bits(bits);
    ptx::st_shared_v4(at, word, word, word, word);
  }
  // Copies what is there. Paged: `of_keys` has where keys lie, and the result is the largest of the thread's words.
  // Else keys follow `first_unit`, and the first `keys` are there.
  template <class Tile, int kValidColumns>
  FC_DEVICE static unsigned load_rows(ptx::SharedAddress to, const void* tensor, ptx::SharedAddress of_keys,
                                      unsigned first_unit, unsigned row_units, int keys) {
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
          own_unit += Context::kThreads / Own::kChunks * row_units;
        }
        const bool is_there = T.paged ? units[i] < Context::kMissing : key < keys;
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
  FC_DEVICE static void fill_rows(ptx::SharedAddress to, ptx::SharedAddress of_keys, int keys) {
    using Own = Pieces<T, C, Tile>;
#pragma unroll 1
    for (int i = 0; i < Own::kCount; ++i) {
      if (!Own::exists(i)) continue;
      unsigned units = Context::kUnseen;
      if constexpr (T.paged) units = ptx::ld_shared_u32(of_keys + 4 * Own::key(i));
      if (T.paged ? units >= Context::kMissing : Own::key(i) >= keys)
        fill(to + Own::offset(i), units == Context::kMissing ? Context::kNan : 0);
    }
  }
  FC_DEVICE void load(Context& context, int number) {
    const Step step = context.read_step(number);
    if (step.block >= 0) {
      if (step.flags & Step::kFirst) load_q(context, number, context.read_run(step));
      if constexpr (T.token_factors) read_factors(context, step);
      unsigned k_unit = 0, v_unit = 0;
      int keys = C.block_n;
      if constexpr (!T.paged) {
        const ptx::Vector4 words = ptx::ld_shared_v4(context.address_run(step.run));
        const int first_key = step.block * C.block_n;
        k_unit = words.x + first_key * context.params.k_units.row;
        v_unit = words.y + first_key * context.params.v_units.row;
        keys = int_of_bits(words.w) - first_key;
      }
      const ptx::SharedAddress of_k = context.address_units(number), of_v = of_k + 4 * C.block_n;
      context.mark(Activity::kLoadK, step.block);
      unsigned largest = load_rows<TileK, T.head_dim>(context.address_k(number), context.problem().k, of_k, k_unit,
                                                      context.params.k_units.row, keys);
      context.mark(Activity::kLoadV, step.block);
      const unsigned of_values = load_rows<TileV, T.head_dim_v>(context.address_v(number), context.problem().v, of_v,
                                                                v_unit, context.params.v_units.row, keys);
      // Of tiles of one width a thread has the same keys.
      if (Context::kDim != Context::kDimV) largest = of_values > largest ? of_values : largest;
      if constexpr (marks_missing(T)) {
        for (int key = ptx::tid_x(); key < C.block_n; key += Context::kThreads)
          ptx::st_shared_u32(context.address_missing(number) + 4 * key,
                             ptx::ld_shared_u32(of_k + 4 * key) == Context::kMissing);
      }
      if (T.paged ? largest >= Context::kMissing : keys < C.block_n) {
        fill_rows<TileK>(context.address_k(number), of_k, keys);
        fill_rows<TileV>(context.address_v(number), of_v, keys);
      }
    }
    ptx::cp_async_commit();
  }
};

}  // namespace flashcore::sm80_decode_fwd
