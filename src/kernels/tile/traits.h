#pragma once
// What a kernel knows of its problem at compile time, and what it is handed at run time. Read by g++ and by NVRTC, so
// it includes nothing.

namespace flashcore {

// The values are those of core/dtype.h's DType. kInt4 is of caches alone, and has two elements a byte.
enum class Element : int { kF32, kF16, kBF16, kE4M3, kE5M2, kInt8, kInt4 };

constexpr bool is_8bit(Element element) {
  return element == Element::kE4M3 || element == Element::kE5M2 || element == Element::kInt8;
}

// What k and v store: q's type, or what a quantised cache has.
enum class CacheElement : int { kAsQ, kE4M3, kE5M2, kInt8, kInt4 };

// Compile-time problem facts: template argument of every kernel, next to its Config. The table of a problem's fields
// (core/problem_fields.h) gives each its value, by its name here.
struct Traits {
  Element element = Element::kF16;  // of q, and of k and v unless `cache` says otherwise
  Element output = Element::kF16;   // of o: another one where those have 8 bits
  int head_dim = 64;                // of q and k
  int head_dim_v = 64;              // of v and o
  // The mask (core/band.h): which sides of the band are bounded.
  bool bounded_left = false;
  bool bounded_right = false;
  // What becomes of scores (tile/score.cuh).
  bool softcap = false;
  int alibi = 0;  // slopes: 0 none, 1 for each query head, 2 for each batch entry and query head
  bool sink = false;
  // The lengths of a problem are upper bounds of each sequence's, which RaggedParams have (tile/sequence.cuh).
  bool ragged = false;
  // Functions of the user's own, in a header that is made for the problem (core/expression_code.h).
  bool score_expression = false;
  bool mask_expression = false;
  // k and v lie in a pool of pages, which a block table names (PagedParams).
  bool paged = false;
  CacheElement cache = CacheElement::kAsQ;
  // The cache has a factor for each key and kv head; of 8-bit q, each row of q and each key has one, and v none.
  bool token_factors = false;
  // Largest magnitudes leave with o and lse (tile/amax.cuh).
  bool amax = false;

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("element", &Traits::element);
    visit("output", &Traits::output);
    visit("head_dim", &Traits::head_dim);
    visit("head_dim_v", &Traits::head_dim_v);
    visit("bounded_left", &Traits::bounded_left);
    visit("bounded_right", &Traits::bounded_right);
    visit("softcap", &Traits::softcap);
    visit("alibi", &Traits::alibi);
    visit("sink", &Traits::sink);
    visit("ragged", &Traits::ragged);
    visit("score_expression", &Traits::score_expression);
    visit("mask_expression", &Traits::mask_expression);
    visit("paged", &Traits::paged);
    visit("cache", &Traits::cache);
    visit("token_factors", &Traits::token_factors);
    visit("amax", &Traits::amax);
  }
};

// Whether scores become others before the mask. A function, because a static member of a kernel's class would be a
// constant of every kernel, with them or without.
constexpr bool transforms_scores(const Traits& t) { return t.softcap || t.alibi != 0; }
constexpr bool has_score(const Traits& t) { return transforms_scores(t) || t.sink; }
constexpr bool has_expression(const Traits& t) { return t.score_expression || t.mask_expression; }
// Whether scores become others between Q·K and the softmax: whatever makes them takes what q and k stand for, their
// factors in it.
constexpr bool changes_scores(const Traits& t) { return transforms_scores(t) || t.score_expression; }
constexpr bool has_quantised_cache(const Traits& t) { return t.cache != CacheElement::kAsQ; }
constexpr bool has_nibbles(const Traits& t) { return t.cache == CacheElement::kInt4; }
// Of an element of K and V, where q has 16 bits or K and V are a quantised cache.
constexpr int cache_bits(const Traits& t) { return has_nibbles(t) ? 4 : has_quantised_cache(t) ? 8 : 16; }
constexpr Element element_of_cache(const Traits& t) {
  switch (t.cache) {
    case CacheElement::kE4M3: return Element::kE4M3;
    case CacheElement::kE5M2: return Element::kE5M2;
    case CacheElement::kInt8: return Element::kInt8;
    case CacheElement::kInt4: return Element::kInt4;
    default: return t.element;
  }
}

// What a family's why_invalid may depend on besides its Config and Traits. A freestanding copy of DeviceLimits.
struct Limits {
  int arch = 80;
  int multiprocessors = 1;
  int shared_bytes_per_block = 0;
  int shared_bytes_per_multiprocessor = 0;
  int registers_per_multiprocessor = 0;
  int max_threads_per_block = 0;
};

// Strides in elements; the column stride is 1.
struct Strides {
  long long batch, head, row;
};

// The parameters of a forward kernel on operands of 16 or 32 bits.
struct ForwardParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;  // [batch, heads_q, seqlen_q] or null
  Strides q_stride, k_stride, v_stride, o_stride;
  int batch, heads_q, heads_kv;
  int seqlen_q, seqlen_kv;
  int right_offset;  // bounded_right: row i sees keys j <= i + right_offset
  int left_offset;   // bounded_left: and keys j >= i + left_offset
  float scale_log2;  // softmax scale * log2(e), folded into exp2; with a softcap, that in the place of the scale; with
                     // a score function of the user's own log2(e)
};

// What the functions of scores take, where a problem has one. Between them and exp2 a score is in units of the softmax
// scale, or of the softcap: scale_log2 takes it from there.
struct ScoreParams {
  float tanh_scale;    // softmax scale / softcap: from q·k to what tanh takes
  float slope_scale;   // 1 / unit
  const float* alibi;  // slopes: [heads_q], or [batch, heads_q]
  const float* sink;   // logits: [heads_q]
  // tanh(tanh_scale * s) = s * (series[0] + series[1] s^2 + ...) for |s| up to series_until.
  float tanh_series[4];
  float tanh_series_until;
};

// The parameters of a kernel for problems with a function of scores or a sink: those of the plain one first.
template <class Plain>
struct Scored {
  Plain plain;
  ScoreParams score;
};

// Where the sequences of a ragged batch lie: sequence s has the rows cu_seqlens_q[s] .. cu_seqlens_q[s + 1] - 1 of q, o
// and lse, and the rows cu_seqlens_kv[s] .. cu_seqlens_kv[s + 1] - 1 of k and v, of which the first seqused_q[s]
// and seqused_kv[s] count. All of it is in device memory and read at each launch; tile/sequence.cuh does, and says what
// becomes of bad values.
struct RaggedParams {
  const int* cu_seqlens_q;   // [batch + 1]
  const int* cu_seqlens_kv;  // [batch + 1]
  const int* seqused_kv;     // [batch] or null
  const int* seqused_q;      // [batch] or null
  int total_q, total_kv;     // rows of q and o, of k and v
  int is_bottom_right;       // the mask's alignment; 1 where nothing is bounded
};

// The parameters of a kernel for ragged batches, `forward_ragged`, with functions of scores or without. In `plain` the
// strides of batch entries are 0, lse is [heads_q, total_q], the lengths are upper bounds, and the offsets of the mask
// are those of sequences whose rows and keys are equally many: tile::Sequence has what is added for others.
template <class Plain>
struct Ragged {
  Plain plain;
  ScoreParams score;
  RaggedParams ragged;
};

// Where the keys of a sequence lie whose cache is in pages: entry p of its row of the block table is the page, a batch
// entry of k and v, that holds its keys p * page_size .. p * page_size + page_size - 1. Its first
// RaggedParams::seqused_kv keys count; there is no cu_seqlens_kv. A page that the pool does not have holds keys of NaN.
struct PagedParams {
  const int* block_table;
  long long table_stride;  // from one sequence's row to the next
  int page_size, pages;    // of the pool
  long long table_keys;    // that a row of the table has room for
};

// The parameters of a kernel for paged caches, `forward_paged`: those of a ragged batch, but for the strides of batch
// entries of k and v, which are those of pages.
template <class Plain>
struct Paged {
  Plain plain;
  ScoreParams score;
  RaggedParams ragged;
  PagedParams paged;
};

// The factors of one operand, x = factor * stored: one for all, one for each batch entry and kv head, or with
// Traits::token_factors one for each row of each head, and neighbours have neighbours'; batch entries of a paged cache
// are pages then, and heads of q query heads.
struct Descale {
  const float* values;            // on the device; null: 1
  int batch_stride, head_stride;  // 0 and 0: one for all
};

// The parameters of a forward kernel on 8-bit operands:
//   S = scale * descale_q * descale_k * (q · k)    o = descale_v * (softmax(S) · v)    of what q, k and v store
// tile::descale of tile/element_fp8.cuh reads a factor. Each is positive and finite.
struct Fp8ForwardParams {
  ForwardParams problem;
  Descale descale_q, descale_k, descale_v;
};

// The same, of a problem that asks for largest magnitudes: [2, heads_q], scores first, which a step before the kernel
// has cleared (tile/amax.cuh).
struct AmaxFp8ForwardParams {
  Fp8ForwardParams plain;
  float* amax;
};

// The parameters of a kernel on a quantised cache, `forward_quantised`: those of the plain one first. Its factors are
// as above, without one of q.
template <class Plain>
struct Quantised {
  Plain plain;
  Descale descale_k, descale_v;
};

}  // namespace flashcore
