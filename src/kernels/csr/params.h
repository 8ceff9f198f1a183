#pragma once
// The pages of each sequence as a list (CSR: FlashInfer's indptr, indices, last_page_len) become a block table and
// lengths. Read by g++ and by NVRTC; the CPU's loops take the same decisions from here.

namespace flashcore::csr {

inline constexpr int kThreads = 128;  // a column of the table each

struct CsrParams {
  const int* indptr;         // [batch + 1]: sequence s has the pages indices[indptr[s]] .. indices[indptr[s + 1] - 1]
  const int* indices;        // [entries]
  const int* last_page_len;  // [batch]: keys in a sequence's last page
  int* block_table;          // [batch, max_pages], rows table_stride apart; written
  int* seqused_kv;           // [batch], written
  long long table_stride;
  int batch, entries, page_size, max_pages;
  int row_ctas;  // CTAs that share a row of the table
};

// `load` reads an int of the device's memory.
template <class Load>
inline int page_of(const CsrParams& params, int sequence, int column, Load load) {
  const long long begin = load(params.indptr + sequence), end = load(params.indptr + sequence + 1), at = begin + column;
  return begin >= 0 && at < end && at < params.entries ? load(params.indices + at) : -1;
}

// -1, which attention answers with NaN, for a sequence that there cannot be.
template <class Load>
inline int keys_of(const CsrParams& params, int sequence, Load load) {
  constexpr long long kMostKeys = 0x7fffffff;
  const long long begin = load(params.indptr + sequence), end = load(params.indptr + sequence + 1);
  if (begin == end) return 0;
  const int last = load(params.last_page_len + sequence);
  if (begin < 0 || end < begin || end > params.entries || end - begin > params.max_pages || last < 1 ||
      last > params.page_size)
    return -1;
  const long long keys = (end - begin - 1) * params.page_size + last;
  return keys > kMostKeys ? -1 : static_cast<int>(keys);
}

}  // namespace flashcore::csr
