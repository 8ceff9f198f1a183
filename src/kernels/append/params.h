#pragma once
// Appending: new rows of K and V go to their places in a cache. What the kernel is compiled for, what it is handed, and
// where each row goes. Read by g++ and by NVRTC; the CPU's loops take the same decisions from here.

#include "kernels/tile/code_range.h"
#include "kernels/tile/traits.h"

namespace flashcore::append {

// Which two elements of a row an angle turns: c and c + rotary_dim / 2 (GPT-NeoX, Llama), or 2 c and 2 c + 1 (GPT-J).
enum class Rotary : int { kNone, kHalf, kInterleaved };

struct Kind {
  Element element = Element::kF16;  // of k, v and q, and of the caches unless `cache` says otherwise
  Rotary rotary = Rotary::kNone;
  Element table = Element::kF32;  // of cos and sin: 32 or 16 bits
  // Of a quantised cache: rows are divided by its factors, rounded to the nearest and saturated.
  CacheElement cache = CacheElement::kAsQ;
  bool counts = false;  // elements that saturate there, in AppendParams::saturated
};

constexpr Element element_of_cache(const Kind& kind) {
  Traits traits;
  traits.element = kind.element, traits.cache = kind.cache;
  return flashcore::element_of_cache(traits);
}

inline constexpr int kThreads = 128;

// Where the factor of a key lies among new_descale_k and new_descale_v.
inline long long factor_index(int heads, int page_size, int page, int head, int row) {
  return (static_cast<long long>(page) * heads + head) * page_size + row;
}

// Rows of k and v, or of q: whose each is, and where it lies.
struct NewRows {
  int count;              // all rows of all sequences
  int each;               // rows of a sequence, where boundaries and sequences are null
  const int* boundaries;  // [batch + 1]: sequence s has the rows boundaries[s] .. boundaries[s + 1] - 1; or null
  const int* sequences;   // [count]: whose each row is, -1: nobody's; or null
  const int* positions;   // [count] with `sequences`: its key's number
};

struct Operand {
  const void* from;
  void* to;
  Strides from_stride, to_stride;  // `to` of k and v: batch is from page to page, row from key to key within one
  int heads, dim;
};

struct AppendParams {
  Operand k, v, q;  // q.heads is 0 where no q is turned
  NewRows rows, rows_q;
  const int* lengths;       // [batch]: keys before the new ones; null with rows.sequences
  const int* block_table;   // [batch, max_pages]; null: sequence s has page s alone, of a dense cache
  const int* table_starts;  // [batch + 1] or null: then sequence s has the entries table_starts[s] .. of block_table
  int* new_lengths;         // [batch] or null
  // One word, counted up by every row that has no place; or null. A GPU looks for pages that are written twice only
  // with it: each row reads the lengths and the table of all sequences then.
  unsigned* refused;
  const void *cos, *sin;         // [angle_rows, rotary_dim / 2]
  Descale descale_k, descale_v;  // of a quantised cache; null: 1
  // [pages, heads, page_size] of a quantised cache with a factor for each key, whose new ones are written; else null.
  float *new_descale_k, *new_descale_v;
  unsigned* saturated;  // [2] of 64 bits, of k and v, to which is added; with Kind::counts
  long long table_stride, angle_stride;
  int batch, page_size, pages;
  int max_pages;  // of a row of the table; with table_starts the entries of the table
  int rotary_dim, angle_rows;
  int q_moves;  // 1: row i of a sequence's q is at its length + i; 0: all are at its length
};

enum class State : int { kGood, kNobodys, kRefused };

// A row's sequence, and its number within it.
struct Owner {
  State state;
  int sequence;
  long long row;
};

// Which sequence has row `index`. `load` reads an int of the device's memory.
template <class Load>
inline Owner owner_of(const NewRows& rows, int batch, int index, Load load) {
  if (rows.sequences) {
    const int sequence = load(rows.sequences + index);
    if (sequence == -1) return {State::kNobodys, 0, 0};
    return {sequence >= 0 && sequence < batch ? State::kGood : State::kRefused, sequence, 0};
  }
  if (!rows.boundaries) return {State::kGood, index / rows.each, index % rows.each};
  // Whatever the boundaries hold, what this ends with has first <= index < end. Padding behind the last is nobody's.
  int low = 0, high = batch;
  if (load(rows.boundaries) > index || load(rows.boundaries + batch) <= index) return {State::kNobodys, 0, 0};
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (load(rows.boundaries + middle) <= index) low = middle;
    else high = middle;
  }
  const int first = load(rows.boundaries + low), end = load(rows.boundaries + low + 1);
  const bool good = first >= 0 && end <= rows.count;
  return {good ? State::kGood : State::kRefused, low, static_cast<long long>(index) - first};
}

// The number of the key that the owner's row becomes; -1 where it can have none.
template <class Load>
inline long long position_of(const AppendParams& params, const NewRows& rows, const Owner& owner, int index, bool moves,
                             Load load) {
  if (owner.state != State::kGood) return -1;
  const int start = rows.sequences ? load(rows.positions + index) : load(params.lengths + owner.sequence);
  return start < 0 ? -1 : start + (moves ? owner.row : 0);
}

// The page that holds a key of a sequence; -1 where there is none.
template <class Load>
inline int page_of(const AppendParams& params, int sequence, long long position, Load load) {
  const long long column = position / params.page_size;
  int page = sequence;
  if (params.table_starts) {
    const long long entry = load(params.table_starts + sequence) + column;
    if (entry < column || entry >= load(params.table_starts + sequence + 1) || entry >= params.max_pages) return -1;
    page = load(params.block_table + entry);
  } else {
    if (column >= params.max_pages) return -1;
    if (params.block_table) page = load(params.block_table + sequence * params.table_stride + column);
  }
  return page >= 0 && page < params.pages ? page : -1;
}

// Where a row of k and v goes.
struct Place {
  State state;
  Owner owner;
  long long position;
  int page, row;
};

template <class Load>
inline Place place_of(const AppendParams& params, bool is_rotary, int index, Load load) {
  Place place = {State::kRefused, owner_of(params.rows, params.batch, index, load), -1, -1, 0};
  if (place.owner.state != State::kGood) {
    place.state = place.owner.state;
    return place;
  }
  place.position = position_of(params, params.rows, place.owner, index, true, load);
  if (place.position < 0 || (is_rotary && place.position >= params.angle_rows)) return place;
  place.page = page_of(params, place.owner.sequence, place.position, load);
  if (place.page < 0) return place;
  place.row = static_cast<int>(place.position % params.page_size);
  place.state = State::kGood;
  return place;
}

// Where a launch writes to: a column of a sequence's row of the table.
struct Written {
  int sequence;
  long long column;
};

// The first and the last of the new keys of a sequence by number; first > last: it has none.
struct NewKeys {
  long long first, last;
};
template <class Load>
inline NewKeys new_keys_of(const AppendParams& params, int sequence, Load load) {
  int first = 0, end = params.rows.each;
  if (params.rows.boundaries) {
    first = load(params.rows.boundaries + sequence), end = load(params.rows.boundaries + sequence + 1);
    if (first < 0 || end > params.rows.count) return {0, -1};
  }
  const int length = load(params.lengths + sequence);
  return length < 0 ? NewKeys{0, -1} : NewKeys{length, static_cast<long long>(length) + end - first - 1};
}

// Whether the launch writes to `page` in another place than `mine`: two sequences, or two columns of one, would then
// overwrite each other's keys. Looks at every lanes-th place, from `lane` on. Reads no cache, so that all rows of such
// a page find the same.
template <class Load>
inline bool is_written_elsewhere(const AppendParams& params, const Written& mine, int page, int lane, int lanes,
                                 Load load) {
  if (params.rows.sequences) {
    for (int index = lane; index < params.rows.count; index += lanes) {
      const Owner owner = owner_of(params.rows, params.batch, index, load);
      const long long position = position_of(params, params.rows, owner, index, true, load);
      if (position < 0 || (owner.sequence == mine.sequence && position / params.page_size == mine.column)) continue;
      if (page_of(params, owner.sequence, position, load) == page) return true;
    }
    return false;
  }
  // Of a decoding step each lane has sequences of its own; of chunks the lanes share a sequence's columns.
  const long long columns = params.rows.count / params.batch / params.page_size + 1;
  int together = 1;
  while (together < lanes && together < columns) together *= 2;
  for (int sequence = lane / together; sequence < params.batch; sequence += lanes / together) {
    const NewKeys keys = new_keys_of(params, sequence, load);
    if (keys.first > keys.last) continue;
    const long long last = keys.last / params.page_size;
    for (long long column = keys.first / params.page_size + lane % together; column <= last; column += together) {
      if (sequence == mine.sequence && column == mine.column) continue;
      if (page_of(params, sequence, column * params.page_size, load) == page) return true;
    }
  }
  return false;
}

// How many keys a sequence has afterwards. Attention answers a length below 0, or past the table, with NaN: so does it
// for a sequence that had no such length before, whose rows leave the tensor, or of which rows were refused for want of
// room.
template <class Load>
inline int new_length_of(const AppendParams& params, int sequence, Load load) {
  const int length = load(params.lengths + sequence);
  int first = 0, end = params.rows.each;
  if (params.rows.boundaries) {
    first = load(params.rows.boundaries + sequence);
    end = load(params.rows.boundaries + sequence + 1);
    if (first < 0 || end < first || end > params.rows.count) return -1;
  }
  constexpr int kMostKeys = 0x7fffffff;
  if (length < 0) return -1;
  return length > kMostKeys - (end - first) ? kMostKeys : length + (end - first);
}

// Rows that lie one after another have their number in the tensor, those of a padded batch one for each sequence.
inline long long offset_in(const NewRows& rows, const Strides& stride, const Owner& owner, int index) {
  if (rows.boundaries || rows.sequences) return index * stride.row;
  return owner.sequence * stride.batch + owner.row * stride.row;
}

}  // namespace flashcore::append
