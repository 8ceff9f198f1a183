#pragma once
// Writes new rows of K and V to their places, turned by rotary embedding where asked, and turns Q. A CTA has a row of
// all heads; the CTAs behind the last row have the new lengths. It moves each byte once and is bound by memory and by
// its launch: what matters is 16 bytes to an access, and that every thread has one.

#include "kernels/append/params.h"
#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/memory_bytes.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/vote.cuh"
#include "kernels/tile/element.cuh"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/saturation.cuh"
#include "kernels/tile/values.cuh"

namespace flashcore::append {

struct DeviceInts {
  FC_DEVICE int operator()(const int* address) const {
    return static_cast<int>(ptx::bits_of_float(ptx::ld_global_f32(reinterpret_cast<const float*>(address))));
  }
};

// Elements that a thread moves at once: 16 bytes, or one; of int4 two, which share a byte.
template <Kind K, bool kVector>
inline constexpr int kWidth = kVector                          ? 16 / tile::bytes_of_element(K.element)
                              : K.cache == CacheElement::kInt4 ? 2
                                                               : 1;

template <Kind K>
FC_DEVICE const char* at(const void* base, long long element) {
  return static_cast<const char*>(base) + element * tile::bytes_of_element(K.element);
}
template <Kind K>
FC_DEVICE char* at(void* base, long long element) {
  return static_cast<char*>(base) + element * tile::bytes_of_element(K.element);
}

// Element `element` of a cache.
template <Kind K>
FC_DEVICE char* at_cache(void* base, long long element) {
  if constexpr (K.cache == CacheElement::kInt4) return static_cast<char*>(base) + element / 2;
  else return static_cast<char*>(base) + element * tile::bytes_of_element(element_of_cache(K));
}

// As they are, NaN and all.
template <Kind K, bool kVector>
FC_DEVICE void copy(const void* from, void* to) {
  if constexpr (kVector) {
    ptx::st_global_v4(to, ptx::ld_global_v4(from));
  } else if constexpr (kWidth<K, false> == 2) {
    constexpr Kind kOne = {K.element};
    copy<kOne, false>(from, to);
    copy<kOne, false>(at<K>(from, 1), at<K>(to, 1));
  } else if constexpr (is_8bit(K.element)) {
    ptx::st_global_u8(static_cast<unsigned char*>(to), ptx::ld_global_u8(static_cast<const unsigned char*>(from)));
  } else if constexpr (K.element == Element::kF32) {
    const float bits = ptx::ld_global_f32(static_cast<const float*>(from));
    ptx::st_global_u32(static_cast<unsigned*>(to), ptx::bits_of_float(bits));
  } else {
    ptx::st_global_u16(static_cast<unsigned short*>(to), ptx::ld_global_u16(static_cast<const unsigned short*>(from)));
  }
}

template <Kind K, bool kVector>
FC_DEVICE void load_values(const void* from, float (&values)[kWidth<K, kVector>]) {
  if constexpr (!kVector) {
    for (int i = 0; i < kWidth<K, false>; ++i) values[i] = tile::load<K.element>(from, i);
  } else {
    tile::load_16_bytes<K.element>(from, values);
  }
}

template <Kind K, bool kVector>
FC_DEVICE void store_values(void* to, const float (&values)[kWidth<K, kVector>]) {
  if constexpr (!kVector) {
    for (int i = 0; i < kWidth<K, false>; ++i) tile::store<K.element>(to, i, values[i]);
  } else {
    unsigned all[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (K.element == Element::kF32) all[i] = ptx::bits_of_float(values[i]);
      else all[i] = tile::pack<K.element>(values[2 * i], values[2 * i + 1]);
    }
    ptx::st_global_v4(to, {all[0], all[1], all[2], all[3]});
  }
}

constexpr bool quantises(const Kind& kind) { return kind.cache != CacheElement::kAsQ; }

// int4: of 16 bytes of elements a word or half of one, else a byte.
template <int kCount>
FC_DEVICE void store_nibbles(void* to, const float (&values)[kCount], float factor) {
  unsigned codes = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) codes |= tile::int4_of_float(values[i] / factor) << 4 * i;
  if constexpr (kCount == 8) ptx::st_global_u32(static_cast<unsigned*>(to), codes);
  else if constexpr (kCount == 4)
    ptx::st_global_u16(static_cast<unsigned short*>(to), static_cast<unsigned short>(codes));
  else ptx::st_global_u8(static_cast<unsigned char*>(to), codes);
}

// Codes of a quantised cache: of 16 bytes of elements, four or two words. `saturated`: of this thread.
template <Kind K, bool kVector>
FC_DEVICE void store_codes(void* to, const float (&values)[kWidth<K, kVector>], float factor, unsigned& saturated) {
  constexpr Element kCache = element_of_cache(K);
  if constexpr (K.counts) saturated += tile::count_saturating<kCache>(values, factor);
  if constexpr (kCache == Element::kInt4) {
    store_nibbles(to, values, factor);
  } else if constexpr (!kVector) {
    ptx::st_global_u8(static_cast<unsigned char*>(to), tile::code_of_float<kCache>(values[0] / factor));
  } else {
#pragma unroll
    for (int i = 0; i < kWidth<K, kVector>; i += 4) {
      unsigned word = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) word |= tile::code_of_float<kCache>(values[i + j] / factor) << 8 * j;
      ptx::st_global_u32(reinterpret_cast<unsigned*>(static_cast<char*>(to) + i), word);
    }
  }
}

// Where rows of K and V go, or turned ones of Q, which keep their type.
enum class Target { kCache, kQ };

template <Kind K, bool kVector, Target T>
FC_DEVICE void store_row_part(void* base, long long element, const float (&values)[kWidth<K, kVector>], float factor,
                              unsigned& saturated) {
  if constexpr (T == Target::kCache && quantises(K))
    store_codes<K, kVector>(at_cache<K>(base, element), values, factor, saturated);
  else store_values<K, kVector>(at<K>(base, element), values);
}

// (a, b) turned by an angle. Three roundings of fp32.
template <Kind K>
FC_DEVICE void turn(const AppendParams& params, long long angle, float& a, float& b) {
  const float cos = tile::load<K.table>(params.cos, angle), sin = tile::load<K.table>(params.sin, angle);
  const float turned = ptx::fma(a, cos, -(b * sin));
  b = ptx::fma(a, sin, b * cos);
  a = turned;
}

template <Kind K, bool kVector>
constexpr bool moves_whole_pairs() {
  return K.rotary == Rotary::kInterleaved && kWidth<K, kVector> % 2 == 0;
}

// Parts of a row that threads take one by one: turned ones come first. Both elements of a pair are one thread's, so
// that a row may be turned where it lies.
template <Kind K, bool kVector>
FC_DEVICE int turned_parts(const AppendParams& params) {
  return params.rotary_dim / (moves_whole_pairs<K, kVector>() ? 1 : 2) / kWidth<K, kVector>;
}

// Calls body(first column, values) for the one or two pieces of a part.
template <Kind K, bool kVector, class Body>
FC_DEVICE void turn_part(const AppendParams& params, const void* from, long long position, int part, const Body& body) {
  constexpr int kW = kWidth<K, kVector>;
  const long long angles = position * params.angle_stride;
  float a[kW];
  if constexpr (moves_whole_pairs<K, kVector>()) {
    load_values<K, kVector>(at<K>(from, part * kW), a);
#pragma unroll
    for (int i = 0; i < kW; i += 2) turn<K>(params, angles + (part * kW + i) / 2, a[i], a[i + 1]);
    body(part * kW, a);
  } else {
    const bool is_half = K.rotary == Rotary::kHalf;
    const int first = is_half ? part * kW : 2 * part, second = is_half ? params.rotary_dim / 2 + first : first + 1;
    float b[kW];
    load_values<K, kVector>(at<K>(from, first), a);
    load_values<K, kVector>(at<K>(from, second), b);
#pragma unroll
    for (int i = 0; i < kW; ++i) turn<K>(params, angles + part * kW + i, a[i], b[i]);
    body(first, a);
    body(second, b);
  }
}

// All heads of a row, by the CTA's threads. `from` and `to` are offsets of its head 0. `descale`: of a quantised cache,
// for the sequence. Returns how many elements saturated among those that this thread wrote.
template <Kind K, bool kVector, bool kTurned, Target T>
FC_DEVICE unsigned write_row(const AppendParams& params, const Operand& operand, long long from, long long to,
                             long long position, const Descale& descale = {}, int sequence = 0) {
  constexpr bool kToCodes = T == Target::kCache && quantises(K);
  constexpr int kW = kWidth<K, kVector>;
  const int turned = kTurned ? turned_parts<K, kVector>(params) : 0;
  const int kept_from = kTurned ? params.rotary_dim : 0;
  const int parts = turned + (operand.dim - kept_from) / kW;
  unsigned saturated = 0;
  for (int i = ptx::tid_x(); i < operand.heads * parts; i += kThreads) {
    const int head = i / parts, part = i % parts;
    const void* source = at<K>(operand.from, from + head * operand.from_stride.head);
    void* target;
    float factor = 1.0f;
    if constexpr (kToCodes) {
      target = at_cache<K>(operand.to, to + head * operand.to_stride.head);
      factor = tile::descale(descale, sequence, head);
    } else {
      target = at<K>(operand.to, to + head * operand.to_stride.head);
    }
    if constexpr (kTurned) {
      if (part < turned) {
        turn_part<K, kVector>(params, source, position, part, [&](int column, const float(&values)[kW]) {
          store_row_part<K, kVector, T>(target, column, values, factor, saturated);
        });
        continue;
      }
    }
    const int column = kept_from + (part - turned) * kW;
    if constexpr (kToCodes) {
      float values[kW];
      load_values<K, kVector>(at<K>(source, column), values);
      store_codes<K, kVector>(at_cache<K>(target, column), values, factor, saturated);
    } else {
      copy<K, kVector>(at<K>(source, column), at<K>(target, column));
    }
  }
  return saturated;
}

// All heads of a row of a cache with a factor for each key, by the CTA's warps: a first pass finds the head's factor.
// Returns what write_row does.
template <Kind K, bool kVector, bool kTurned>
FC_DEVICE unsigned write_row_and_factors(const AppendParams& params, const Operand& operand, float* factors,
                                         long long from, long long to, const Place& place) {
  constexpr int kW = kWidth<K, kVector>;
  const int turned = kTurned ? turned_parts<K, kVector>(params) : 0;
  const int kept_from = kTurned ? params.rotary_dim : 0;
  const int parts = turned + (operand.dim - kept_from) / kW, lane = ptx::tid_x() % 32;
  unsigned saturated = 0;
  for (int head = ptx::tid_x() / 32; head < operand.heads; head += kThreads / 32) {
    const void* source = at<K>(operand.from, from + head * operand.from_stride.head);
    void* target = at_cache<K>(operand.to, to + head * operand.to_stride.head);
    const auto for_each_piece = [&](const auto& body) {
      for (int part = lane; part < parts; part += 32) {
        if constexpr (kTurned) {
          if (part < turned) {
            turn_part<K, kVector>(params, source, place.position, part, body);
            continue;
          }
        }
        const int column = kept_from + (part - turned) * kW;
        float values[kW];
        load_values<K, kVector>(at<K>(source, column), values);
        body(column, values);
      }
    };
    float largest = -1.0f;  // a row without a finite number
    for_each_piece([&](int, const float(&values)[kW]) { largest = tile::largest_finite(values, largest); });
    largest = tile::largest_of_warp(largest);
    // Of zeros it is the least: kernels keep weights times factors in few bits, and rows with numbers need those.
    const float factor = factor_of(largest, largest >= 0.0f, largest_of(element_of_cache(K)));
    if (lane == 0)
      ptx::st_global_f32(factors + factor_index(operand.heads, params.page_size, place.page, head, place.row), factor);
    for_each_piece([&](int column, const float(&values)[kW]) {
      store_codes<K, kVector>(at_cache<K>(target, column), values, factor, saturated);
    });
  }
  return saturated;
}

// Each warp looks by itself: a barrier of the CTA would take as long as the reads of a decoding step.
FC_DEVICE bool is_aliased(const AppendParams& params, const Place& place) {
  if (!params.refused || !params.block_table || place.state != State::kGood) return false;
  const Written mine = {place.owner.sequence, place.position / params.page_size};
  return ptx::vote_ballot(is_written_elsewhere(params, mine, place.page, ptx::tid_x() % 32, 32, DeviceInts{})) != 0;
}

template <Kind K, bool kVector>
FC_DEVICE void append_row(const AppendParams& params, int index) {
  constexpr bool kTurns = K.rotary != Rotary::kNone;
  Place place = place_of(params, kTurns, index, DeviceInts{});
  if (is_aliased(params, place)) place.state = State::kRefused;
  if (place.state == State::kRefused && params.refused && ptx::tid_x() == 0) ptx::atomic_add_global(params.refused, 1);
  if (place.state != State::kGood) return;
  const auto from = [&](const Operand& x) { return offset_in(params.rows, x.from_stride, place.owner, index); };
  const auto to = [&](const Operand& x) { return place.page * x.to_stride.batch + place.row * x.to_stride.row; };
  const auto note = [&](int number, unsigned saturated) {
    if constexpr (K.counts) tile::add_count_of_warp(params.saturated + 2 * number, saturated);
  };
  if constexpr (quantises(K)) {
    if (params.new_descale_k) {
      note(0, write_row_and_factors<K, kVector, kTurns>(params, params.k, params.new_descale_k, from(params.k),
                                                        to(params.k), place));
      return note(1, write_row_and_factors<K, kVector, false>(params, params.v, params.new_descale_v, from(params.v),
                                                              to(params.v), place));
    }
  }
  note(0, write_row<K, kVector, kTurns, Target::kCache>(params, params.k, from(params.k), to(params.k), place.position,
                                                        params.descale_k, place.owner.sequence));
  note(1, write_row<K, kVector, false, Target::kCache>(params, params.v, from(params.v), to(params.v), place.position,
                                                       params.descale_v, place.owner.sequence));
}

// A row of Q without a position, or beyond the angles, becomes NaN: nobody must take it for a turned one.
template <Kind K, bool kVector>
FC_DEVICE void turn_row(const AppendParams& params, int index) {
  const Owner owner = owner_of(params.rows_q, params.batch, index, DeviceInts{});
  if (owner.state == State::kNobodys) return;
  const long long position = position_of(params, params.rows_q, owner, index, params.q_moves != 0, DeviceInts{});
  const long long from = offset_in(params.rows_q, params.q.from_stride, owner, index);
  const long long to = offset_in(params.rows_q, params.q.to_stride, owner, index);
  if (position >= 0 && position < params.angle_rows) {
    write_row<K, kVector, true, Target::kQ>(params, params.q, from, to, position);
    return;
  }
  for (int i = ptx::tid_x(); i < params.q.heads * params.q.dim; i += kThreads) {
    const long long head = i / params.q.dim, column = i % params.q.dim;
    tile::store<K.element>(params.q.to, to + head * params.q.to_stride.head + column, ptx::float_of_bits(0x7fffffffu));
  }
}

FC_DEVICE void write_lengths(const AppendParams& params, int first) {
  const int sequence = first + ptx::tid_x();
  if (sequence >= params.batch) return;
  ptx::st_global_u32(reinterpret_cast<unsigned*>(params.new_lengths + sequence),
                     static_cast<unsigned>(new_length_of(params, sequence, DeviceInts{})));
}

template <Kind K, bool kVector>
FC_KERNEL(kThreads, 1)
append(const __grid_constant__ AppendParams params) {
  const int index = ptx::ctaid_x();
  if (index < params.rows.count) return append_row<K, kVector>(params, index);
  const int behind = index - params.rows.count;
  if constexpr (K.rotary != Rotary::kNone) {
    if (behind < params.rows_q.count) return turn_row<K, kVector>(params, behind);
  }
  write_lengths(params, (behind - params.rows_q.count) * kThreads);
}

// A launch of its own where the new lengths take the place of the old ones, which every row still reads.
template <Kind K>
FC_KERNEL(kThreads, 1)
update_lengths(const __grid_constant__ AppendParams params) {
  write_lengths(params, ptx::ctaid_x() * kThreads);
}

}  // namespace flashcore::append
