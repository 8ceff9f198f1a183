/* flashcore: attention kernels for NVIDIA GPUs and CPUs, behind a C interface.
 *
 *   fc_context context;  fc_plan plan;
 *   fc_attention problem = FC_ATTENTION_INIT;
 *   problem.batch = 1; problem.heads_q = problem.heads_kv = 8; problem.seqlen_q = problem.seqlen_kv = 512;
 *   fc_context_create("cuda:0", &context);
 *   fc_plan_create(context, &problem, &plan);             once: chooses, compiles and loads a kernel
 *   fc_plan_launch(plan, q, k, v, o, lse, stream);        often: allocates nothing, waits for nothing
 *
 * Every function that can fail returns an fc_status; fc_last_error() then says in a sentence what was given, what is
 * allowed and what to do. Nothing is printed, nothing is thrown. Every function may be called from any thread. A
 * process may fork at any time, also during other threads' calls: the child may use CPU contexts and plans of its
 * parent (CUDA cannot be used in a forked child, whoever opened the context).
 */
#ifndef FLASHCORE_FLASHCORE_H
#define FLASHCORE_FLASHCORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FC_API __attribute__((visibility("default")))
#else
#define FC_API
#endif

/* The version of this interface, which grows when a function or a field is added. fc_abi_version() returns that of the
 * library. A library serves every caller whose FC_ABI_VERSION is not above its own. */
#define FC_ABI_VERSION 15

typedef enum fc_status {
  FC_OK = 0,
  FC_ERROR_BAD_INPUT = 1,   /* the caller: a value that is not allowed, a handle that is closed */
  FC_ERROR_ENVIRONMENT = 2, /* the machine: no driver, no NVRTC, no memory, a driver too old */
  FC_ERROR_DEVICE_LOST = 3, /* the GPU reported a fault: this process cannot use it any more */
  FC_ERROR_INTERNAL = 4     /* flashcore: please report it with the message */
} fc_status;

/* Element type of q, k and v, and of o unless o_dtype says otherwise. The 8-bit ones are OCP's: e4m3 (float8_e4m3fn:
 * largest 448, no infinity) and e5m2. Since ABI version 4 */
typedef enum fc_dtype {
  FC_FP32 = 0,
  FC_FP16 = 1,
  FC_BF16 = 2,
  FC_E4M3 = 3,
  FC_E5M2 = 4,
  FC_INT8 = 5, /* of a quantised cache alone: -127 to 127 are written, -128 to 127 read. Since ABI version 9 */
  /* Of a quantised cache alone: two elements a byte, the even column in the lower half, each a two's complement of 4
   * bits; -8 to 7 are read. head_dim, head_dim_v and the strides of k and v, which count elements, are even; for the
   * fastest kernel multiples of 32. Since ABI version 12 */
  FC_INT4 = 6
} fc_dtype;

/* How many factors (descales) bring 8-bit q, k and v, or a quantised cache's k and v, back to their values, x = descale
 * * stored. Since ABI version 4 */
typedef enum fc_scaling {
  FC_SCALING_USUAL = 0,  /* one a tensor for 8 bits and quantised caches, none for others */
  FC_SCALING_NONE = 1,   /* none: they are what is stored */
  FC_SCALING_TENSOR = 2, /* one for each of q, k and v */
  FC_SCALING_HEAD = 3,   /* [batch, heads_kv] for each: query head h has that of key head h / (heads_q / heads_kv) */
  FC_SCALING_TOKEN = 4   /* of a quantised cache, one for each key and key head: [batch, heads_kv, seqlen_kv], or of a
                          * paged one [pages, heads_kv, page_size]. Since ABI version 10. Of dense 8-bit q, k and v one
                          * for each row of q [batch, heads_q, seqlen_q] and each key of k [batch, heads_kv, seqlen_kv],
                          * and for v [batch, heads_kv]. Since ABI version 12 */
} fc_scaling;

/* How v lies, of dense 8-bit q, k and v. Since ABI version 11 */
typedef enum fc_v_layout {
  FC_V_ND = 0, /* [batch, heads_kv, seqlen_kv, head_dim_v] */
  FC_V_DN = 1  /* [batch, heads_kv, head_dim_v, seqlen_kv]: the keys of a column are adjacent */
} fc_v_layout;

/* Which keys a query row sees. Bottom-right: the last row sees every key (FlashAttention, decoding); top-left: row i
 * sees keys 0..i (PyTorch's is_causal). The same where both lengths are equal. */
typedef enum fc_causal { FC_CAUSAL_NONE = 0, FC_CAUSAL_BOTTOM_RIGHT = 1, FC_CAUSAL_TOP_LEFT = 2 } fc_causal;

/* Which key is a row's own one where both lengths differ: bottom-right: the last row's is the last key; top-left: row
 * i's is key i. Since ABI version 3 */
typedef enum fc_alignment { FC_ALIGN_BOTTOM_RIGHT = 0, FC_ALIGN_TOP_LEFT = 1 } fc_alignment;

/* ALiBi: a slope for each query head, or for each batch entry and query head. Since ABI version 5 */
typedef enum fc_alibi { FC_ALIBI_NONE = 0, FC_ALIBI_HEAD = 1, FC_ALIBI_BATCH = 2 } fc_alibi;

/* Attention sink: a logit for each query head. Since ABI version 5 */
typedef enum fc_sink { FC_SINK_NONE = 0, FC_SINK_HEAD = 1 } fc_sink;

/* Largest magnitudes, of which callers of 8 bits choose their factors: of each query head. Since ABI version 13 */
typedef enum fc_amax { FC_AMAX_NONE = 0, FC_AMAX_HEAD = 1 } fc_amax;

/* Ragged batches: every value but FC_LENGTHS_FIXED is one. Seqlen_q and seqlen_kv are upper bounds then, and the real
 * lengths are read from device memory at each launch (fc_operands.cu_seqlens_q). The values differ in which lengths a
 * kernel is chosen for, and those of ids are made of: the bounds (what to use), the bounds and halves of them, or any.
 * Since ABI version 6 */
typedef enum fc_lengths {
  FC_LENGTHS_FIXED = 0,
  FC_LENGTHS_FULL = 1,
  FC_LENGTHS_HALVING = 2,
  FC_LENGTHS_RANDOM = 3
} fc_lengths;

/* What a tensor of a score or mask function holds: fp32, int32, or bytes of which 0 is false. Since ABI version 7 */
typedef enum fc_element { FC_ELEMENT_FLOAT = 0, FC_ELEMENT_INT = 1, FC_ELEMENT_BOOL = 2 } fc_element;

/* Handles are numbers, not addresses: a closed one is refused, never dereferenced. */
typedef struct fc_context_handle* fc_context;
typedef struct fc_plan_handle* fc_plan;
typedef struct fc_timer_handle* fc_timer;           /* since ABI version 4 */
typedef struct fc_append_handle* fc_append;         /* since ABI version 9 */
typedef struct fc_quantize_handle* fc_quantize;     /* since ABI version 12 */
typedef struct fc_csr_handle* fc_csr;               /* since ABI version 14 */
typedef struct fc_block_mask_handle* fc_block_mask; /* since ABI version 15 */

/* Distances in elements between neighbours along batch, head and row; the elements of a row are adjacent. An input's
 * stride may be 0 (the same elements again: a broadcast) and, on the CPU, negative; an address is always that of
 * element [0, 0, 0, 0]. No two elements of an output may lie at one place. */
typedef struct fc_strides {
  int64_t batch, head, row;
} fc_strides;

/* Which fields of fc_attention are taken as they are, zeros included. Without its bit, a tensor whose strides are all 0
 * is contiguous, a scale of 0 is 1/sqrt(head_dim), and a side of the window that is 0 has no bound. */
typedef enum fc_given {
  FC_GIVEN_Q_STRIDES = 1,
  FC_GIVEN_K_STRIDES = 2,
  FC_GIVEN_V_STRIDES = 4,
  FC_GIVEN_O_STRIDES = 8,
  FC_GIVEN_STRIDES = 15,  /* all four */
  FC_GIVEN_SCALE = 16,    /* a scale of 0 is then refused, as any other outside its range */
  FC_GIVEN_WINDOW = 32,   /* both sides: 0 is no key beside the row's own one. Since ABI version 3 */
  FC_GIVEN_O_DTYPE = 64,  /* o_dtype; without it o is of dtype, or bf16 where that has 8 bits. Since ABI version 4 */
  FC_GIVEN_SOFTCAP = 128, /* a softcap of 0 is then refused, as any other outside its range. Since ABI version 5 */
  FC_GIVEN_TENSOR_STRIDES = 256, /* of all fc_tensor: 0 repeats an element. Since ABI version 7 */
  FC_GIVEN_KV_DTYPE = 512        /* kv_dtype; without it k and v are of dtype. Since ABI version 9 */
} fc_given;

/* A tensor that a score or mask function names. It may be larger than what the function reads, not smaller. Since ABI
 * version 7 */
typedef struct fc_tensor {
  const char* name; /* at most 32 letters, digits and '_' */
  int32_t element;  /* fc_element */
  int32_t rank;     /* how many indices it takes, from 1 to 4 */
  int64_t sizes[4];
  int64_t strides[4]; /* elements, 0 or more, with FC_GIVEN_TENSOR_STRIDES; without it the tensor is contiguous */
} fc_tensor;

/* What to compute: o = softmax(score(scale * q k^T) + mask) v, over
 *   q   [batch, heads_q,  seqlen_q,  head_dim]       k  [batch, heads_kv, seqlen_kv, head_dim]
 *   o   [batch, heads_q,  seqlen_q,  head_dim_v]     v  [batch, heads_kv, seqlen_kv, head_dim_v]
 *   lse [batch, heads_q,  seqlen_q], fp32, contiguous: the natural logarithm of each row's sum of exponentials.
 * Query head h reads key head h / (heads_q / heads_kv). A row that sees no key gets o = 0 and lse = -infinity. The
 * score of row i and key j, s = scale * q k^T, is changed where the fields below ask for it, in this order: to softcap
 * * tanh(s / softcap), by -slope * |i + seqlen_kv - seqlen_q - j|, and to what the function `score` makes of it. Of the
 * pairs that the causal mask and the window leave, those are visible that the function `mask` shows. A sink joins each
 * row's sum of exponentials, lse included, and has no value: a row that sees no key has lse = sink.
 *
 * Of a ragged batch (lengths), whose sequences lie one after another, these are
 *   q   [total_q, heads_q, head_dim]       k  [total_kv, heads_kv, head_dim]
 *   o   [total_q, heads_q, head_dim_v]     v  [total_kv, heads_kv, head_dim_v]
 *   lse [heads_q, total_q]
 * with any strides of heads and rows (contiguous means [heads, total, head_dim], as above). Masks and ALiBi go by each
 * sequence's own lengths.
 *
 * Of a ragged batch with a paged cache (page_size) k and v are pools of pages:
 *   k   [pages, heads_kv, page_size, head_dim]     v  [pages, heads_kv, page_size, head_dim_v]
 * with any strides: `batch` is the distance from page to page, `row` that from key to key within one. So both
 * [pages, page_size, heads_kv, head_dim] and the order above are views, and so are K and V in one tensor. Which pages a
 * sequence has is in fc_operands.block_table, and how many keys in fc_operands.seqused_kv. */
typedef struct fc_attention {
  uint32_t struct_size; /* sizeof(fc_attention); FC_ATTENTION_INIT sets it, dtype to FC_FP16, batch, heads and lengths
                           to 1, and head dims to 64 */
  int32_t dtype;        /* fc_dtype */
  int64_t batch, heads_q;
  int64_t heads_kv;            /* divides heads_q */
  int64_t seqlen_q, seqlen_kv; /* 0 is allowed */
  int64_t head_dim, head_dim_v;
  int32_t causal;        /* fc_causal */
  int32_t alignment;     /* bytes: the pointers of every launch are multiples of it; 0 means 16. What is not 16 bytes
                            aligned, or has strides that are no multiples of 16 bytes, runs on fewer kernels */
  double scale;          /* from 1e-6 to 1e6; 0 without FC_GIVEN_SCALE means 1/sqrt(head_dim) */
  fc_strides q, k, v, o; /* all three 0 without the bit of FC_GIVEN_STRIDES: contiguous in the order above */
  const char* candidate; /* null: flashcore chooses. "sm90_fwd" or "sm90_fwd:block_n=128" pins a kernel */
  uint32_t given;        /* fc_given, or-ed: which zeros are meant. Since ABI version 2 */
  /* A sliding window, as FlashAttention's window_size: a row sees that many keys to the left and to the right of its
   * own one. -1, and 0 without FC_GIVEN_WINDOW: no bound on that side. Causal is right = 0, and both together may bound
   * the left. Rows whose window holds no key get o = 0 and lse = -infinity. Since ABI version 3, like the next field */
  int64_t window_left, window_right;
  int32_t window_alignment; /* fc_alignment, of a window that is not causal; a causal mask has its own */
  int32_t unused;           /* padding of ABI version 3 */
  /* Of 8-bit q, k and v: o is fp16, bf16, e4m3 or e5m2 (which saturate). Since ABI version 4, like the next field */
  int32_t o_dtype; /* fc_dtype, with FC_GIVEN_O_DTYPE */
  int32_t scaling; /* fc_scaling: which factors fc_plan_launch_scaled is given */
  /* Since ABI version 5, like the next two fields. Slopes and sinks are operands of fc_plan_launch_operands */
  double softcap; /* from 1e-6 to 1e6; 0 without FC_GIVEN_SOFTCAP: none */
  int32_t alibi;  /* fc_alibi */
  int32_t sink;   /* fc_sink */
  /* Since ABI version 6, like the next three fields */
  int32_t lengths; /* fc_lengths; other than FC_LENGTHS_FIXED: fc_plan_launch_operands is given cu_seqlens_q, ... */
  /* 1: the bits of a row of o and lse depend on its own sequence alone, not on what else is in the batch, the bounds of
   * lengths, or the size and order of pages: among dense, among packed and among paged batches, each with seqlen_q up
   * to 16 or above. It chooses the kernel, without regard to speed, and goes with neither candidate nor score nor
   * mask. Decoding's workspace grows with batch and seqlen_kv. 0: no matter. Since ABI version 10 */
  int32_t deterministic_batch;
  int64_t total_q;  /* of a ragged batch: rows of q and o. Rows that no sequence has are neither read nor written */
  int64_t total_kv; /* rows of k and v */
  /* Functions of the caller's own, as docs/expressions.md has them: "s + bias[h, i, j]", "j <= i"; null or empty: none.
   * Since ABI version 7, like the next four fields; with a quantised cache since 12, with q of 8 bits since 13 */
  const char* score;
  const char* mask;
  const fc_tensor* tensors; /* that the two name, tensor_count of them, each of which is named */
  int32_t tensor_count;     /* at most 8 */
  /* A quantised cache: FC_E4M3, FC_E5M2, FC_INT8 or FC_INT4 of k and v beside q of 16 or 32 bits. They become q's type
   * on the way to the multiplication, which is exact; `scaling` says which factors they have. Since ABI version 9 */
  int32_t kv_dtype; /* fc_dtype, with FC_GIVEN_KV_DTYPE */
  /* Since ABI version 8, like the next three fields */
  int64_t page_size;    /* keys in a page of a paged cache, 1 to 65536; 0: k and v are no pages. With lengths other than
                           FC_LENGTHS_FIXED; seqlen_kv bounds the keys of a sequence, and total_kv is 0 */
  int64_t pages;        /* of the pool */
  int64_t max_pages;    /* columns of the block table */
  int64_t table_stride; /* elements from one row of the block table to the next; 0: max_pages */
  /* With FC_V_DN `row` of v's strides is the distance from one column of values to the next. The fast kernels want a
   * multiple of 16: pad the columns, with anything. Without strides it is seqlen_kv, rounded up to 16. Since ABI
   * version 11 */
  int32_t v_layout; /* fc_v_layout */
  /* FC_AMAX_HEAD: of 8-bit q, k and v the largest magnitudes are written to fc_operands.amax. Since ABI version 13;
   * padding, 0, before */
  int32_t amax; /* fc_amax */
} fc_attention;

#define FC_ATTENTION_INIT                                                                                             \
  {                                                                                                                   \
    (uint32_t)sizeof(fc_attention), FC_FP16, 1, 1, 1, 1, 1, 64, 64, FC_CAUSAL_NONE, 0, 0.0, {0, 0, 0}, {0, 0, 0},     \
        {0, 0, 0}, {0, 0, 0}, NULL, 0, 0, 0, FC_ALIGN_BOTTOM_RIGHT, 0, FC_FP32, FC_SCALING_USUAL, 0.0, FC_ALIBI_NONE, \
        FC_SINK_NONE, FC_LENGTHS_FIXED, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, FC_V_ND, FC_AMAX_NONE            \
  }

/* --- the library ------------------------------------------------------------------------------------------------ */

FC_API uint32_t fc_abi_version(void);
/* "0.1.0". A static string. */
FC_API const char* fc_version(void);
/* Why this thread's last failed call failed. Valid until the thread's next call; "" if none failed. */
FC_API const char* fc_last_error(void);

/* How many threads a launch on the CPU uses at most, for the whole process and from the next launch on. An application
 * passes on what its user set elsewhere, as by torch.set_num_threads(). 0: the default, which is the environment's
 * FLASHCORE_THREADS, else OMP_NUM_THREADS, else as many as there are cores, within affinity and the container's quota
 * of CPU time; more than that are never used. Launches that a second thread would not make faster use one. */
FC_API fc_status fc_set_cpu_threads(int32_t threads);
/* The limit in force. */
FC_API int32_t fc_cpu_threads(void);

/* --- context: one device ---------------------------------------------------------------------------------------- */

/* `device`: "cpu", "cuda", "cuda:1", "emulator" (a GPU run by the CPU, to look for faults), or null for the best there
 * is. On a GPU it is the primary context, which PyTorch, JAX and the CUDA runtime use too. */
FC_API fc_status fc_context_create(const char* device, fc_context* context);
/* Its plans stay valid. What is left of the memory of fc_memory_allocate is freed with the last of them. */
FC_API fc_status fc_context_destroy(fc_context context);
/* JSON: {"id": "cuda:0", "name": ..., "key": "h200", "kind": "cuda", "arch": 90, "driver": ..., "memory_bytes": ...,
 * "source_hash": ...}. As snprintf: `needed` (may be null) gets the length with the final zero, `buffer` as much of it
 * as fits in `size` bytes, ended with a zero; a null buffer of size 0 only asks. */
FC_API fc_status fc_context_describe(fc_context context, char* buffer, size_t size, size_t* needed);
/* Waits for `stream` (a CUstream; null: the default stream). Refused for a stream that is being captured. */
FC_API fc_status fc_context_synchronize(fc_context context, void* stream);

/* Device memory, for callers without a framework. Copies wait until they are done. A copy or a launch that would leave
 * an allocation is refused; other memory is not checked. */
FC_API fc_status fc_memory_allocate(fc_context context, size_t bytes, void** address);
FC_API fc_status fc_memory_free(fc_context context, void* address);
FC_API fc_status fc_memory_upload(fc_context context, void* destination, const void* host, size_t bytes);
FC_API fc_status fc_memory_download(fc_context context, void* host, const void* source, size_t bytes);

/* --- plan: one problem made ready on one device ------------------------------------------------------------------ */

/* Chooses a kernel (tuned table of the library and of the user, then defaults), compiles it or finds it in the disk
 * cache, and loads it. Takes milliseconds, up to a second the first time; do it once per problem. It may be done while
 * a CUDA graph is captured, by this thread or another: what it compiles, loads and allocates is no part of the graph.
 * Of a mask function that names no tensor, and fixed lengths, it lists the blocks of keys to be read, on a stream of
 * flashcore's, and waits for that; other lists of blocks are made in each launch, unless it is given an fc_block_mask.
 * The plan never changes afterwards. */
FC_API fc_status fc_plan_create(fc_context context, const fc_attention* problem, fc_plan* plan);
/* Does not wait for launches under way, which stay valid. Captured graphs stay valid as long as the context. */
FC_API fc_status fc_plan_destroy(fc_plan plan);
/* JSON: {"problem": ID, "expressions": {"score": ..., "mask": ..., "tensors": ...} of a problem with functions, whose
 * id has but their hashes, "device": ..., "family": ..., "config": {...}, "candidate": ..., "reason": why this kernel,
 * "notes": [what a user should know: a slow kernel and why, ...], "alignment": bytes that every pointer must be a
 * multiple of, "workspace_bytes": of a launch without a block mask, "block_mask_bytes": of the lists of blocks that
 * each launch makes and an fc_block_mask spares it, 0 if there are none, "compile_ms", "from_cache", "code_hash": of
 * the machine code, "registers", "shared_bytes"}. Buffer as in fc_context_describe. */
FC_API fc_status fc_plan_describe(fc_plan plan, char* buffer, size_t size, size_t* needed);
/* Enqueues one call on `stream` (a CUstream; null: the default stream. On the CPU null only, and the call returns when
 * it is done). `lse` may be null. Neither `o` nor `lse` may overlap another tensor; views of one buffer that interleave
 * without a common element are allowed. On a GPU it does not synchronise, and it may be captured into
 * a CUDA graph. It allocates nothing there, unless the plan has "workspace_bytes": then 256 KiB at times, which serve
 * about a thousand streams, or as many captured launches. Any number of launches may be under way or captured, also of
 * one plan. On the CPU launches of several threads run at the same time, also those of one plan. A launch there
 * allocates working memory unless its addresses are among those of the plan's last few launches. */
FC_API fc_status fc_plan_launch(fc_plan plan, const void* q, const void* k, const void* v, void* o, float* lse,
                                void* stream);

/* The same of 8-bit q, k and v, with their factors: fp32, each positive and finite, in memory of the plan's device. One
 * of each, or with FC_SCALING_HEAD [batch, heads_kv], contiguous; with FC_SCALING_TOKEN as fc_scaling says: descale_q
 * scales rows of S, descale_k its columns, and of a quantised cache descale_v each key's row of v; of keys that no
 * sequence of it has they may be anything. Of 8-bit k a product q * k times its key's factor has to be within fp32, as
 * it is for factors up to 1e25. S = scale * descale_q * descale_k * (q k^T), and o = descale_v * (softmax(S) v). Of a
 * quantised cache descale_q is null. They are read when the launch runs. On the CPU a factor that is zero, negative,
 * NaN or infinite is refused, but for those of a cache's keys; on a GPU nobody looks. Null for a plan without factors.
 * Since ABI version 4 */
FC_API fc_status fc_plan_launch_scaled(fc_plan plan, const void* q, const void* k, const void* v, void* o, float* lse,
                                       const float* descale_q, const float* descale_k, const float* descale_v,
                                       void* stream);

/* The tensors of one launch, by name. Start from FC_OPERANDS_INIT; null is an operand that the problem has not, or an
 * lse that nobody wants. Since ABI version 5 */
typedef struct fc_operands {
  uint32_t struct_size; /* sizeof(fc_operands); FC_OPERANDS_INIT sets it */
  uint32_t unused;
  const void *q, *k, *v;
  void* o;
  float* lse;
  const float *descale_q, *descale_k, *descale_v; /* as of fc_plan_launch_scaled */
  const float* alibi; /* slopes, fp32, contiguous: [heads_q] with FC_ALIBI_HEAD, [batch, heads_q] with FC_ALIBI_BATCH */
  const float* sink;  /* logits, fp32 [heads_q], contiguous, with FC_SINK_HEAD: neither scaled nor capped */
  /* Of ragged batches. Sequence s has the rows cu_seqlens_q[s] .. cu_seqlens_q[s + 1] - 1 of q, o and lse, and the rows
   * cu_seqlens_kv[s] .. cu_seqlens_kv[s + 1] - 1 of k and v, of which the first seqused_kv[s] are keys (null: all).
   * And the first seqused_q[s] are rows: what lies between sequences, as in a padded batch, is neither read nor
   * written. They are read when the launch runs, so that one captured graph serves any lengths up to the bounds. A
   * sequence whose boundaries leave the tensors, end before they begin or pass a bound gets NaN in its rows of o and
   * lse, and fc_plan_status names it. Where such boundaries give a row to two sequences, it holds what one of them
   * makes of it. Since ABI version 6
   */
  const int32_t *cu_seqlens_q, *cu_seqlens_kv; /* [batch + 1] */
  const int32_t *seqused_kv, *seqused_q;       /* [batch] or null */
  /* Addresses of fc_attention.tensors, in their order, on the device; the array itself is on the host and read at once.
   * Null for a plan without them. Since ABI version 7 */
  const void* const* tensors;
  /* Of a paged cache: int32 [batch, max_pages], rows table_stride apart. Entry p of row s is the page that holds the
   * keys p * page_size .. p * page_size + page_size - 1 of sequence s, whose first seqused_kv[s] keys count (needed
   * here; cu_seqlens_kv is null). Two sequences may have a page in common. Entries past the last page are not read.
   * It is read when the launch runs. A sequence with more keys than seqlen_kv, or than its row of the table has room
   * for, or fewer than none gets NaN in its rows of o and lse. So does each row that sees a key of a page that the pool
   * does not have; nothing outside of the pool is read. Since ABI version 8 */
  const int32_t* block_table;
  /* With FC_AMAX_HEAD, an output: fp32 [2, heads_q], contiguous. Row 0 has the largest |S| of each query head over the
   * batch, of visible pairs and as the softmax takes them: after softcap, ALiBi and the function `score`. Row 1 has the
   * largest |o| before it is rounded, so that of 8 bits it says what saturated. Neither NaN nor a score of -inf counts;
   * a head without any number has 0. Every launch writes all of them, whatever they held. Since ABI version 13 */
  float* amax;
  /* Lists of blocks that fc_block_mask_create made for this plan, or for one with the same lists: the launch makes none
   * of its own. Null: it makes what it needs. Since ABI version 15 */
  fc_block_mask block_mask;
} fc_operands;

#define FC_OPERANDS_INIT                                                                                            \
  {                                                                                                                 \
    (uint32_t)sizeof(fc_operands), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL                                                                                \
  }

/* fc_plan_launch for every problem. Slopes and sinks are read when the launch runs. On the CPU a slope that is NaN or
 * infinite is refused, and a sink that is NaN or +infinity (-infinity is no sink); on a GPU nobody looks. Since ABI
 * version 5 */
FC_API fc_status fc_plan_launch_operands(fc_plan plan, const fc_operands* operands, void* stream);

/* Which sequences of a ragged batch get NaN from a launch on these operands, and why. JSON: {"sequences": how many
 * there are, "bad": [{"sequence": its place in the batch, from 0, "why": a sentence}, ...]}; of a problem of fixed
 * lengths there are none. Waits for `stream`, then copies the lengths and the block table to the host: it is for
 * finding a mistake, and is refused while the stream is captured. It tells what they hold then: of a captured graph,
 * give the operands that were captured, after a replay. What a launch before read, and something wrote over since, it
 * cannot know. Of `operands` only those are looked at; the others may be null. Buffer as in fc_context_describe. Since
 * ABI version 14 */
FC_API fc_status fc_plan_status(fc_plan plan, const fc_operands* operands, void* stream, char* buffer, size_t size,
                                size_t* needed);

/* --- block masks: lists of blocks, made once and read by many launches. Since ABI version 15 --------------------- */

/* On a GPU most kernels with a mask function go over a list of the blocks of keys that each tile of rows sees. A launch
 * whose mask names tensors, or whose batch is ragged, makes these lists first, by a kernel of its own. A block mask
 * holds them, so that the launches of all layers of a model, and of all steps with the same mask, need not.
 *
 * The caller promises, for each launch with a block mask, that what the lists were made of holds the same as when they
 * were made: the elements of the tensors that the mask names, and of a ragged batch cu_seqlens_q, cu_seqlens_kv,
 * seqused_kv and seqused_q. Nobody looks. Where it does not hold, rows may miss keys that they should see and see keys
 * that they should not; blocks that are cut still read the mask's tensors of the launch. The addresses may be others.
 *
 * Plans whose lists are the same may share a block mask: the layers of a model. These are plans of one context with the
 * same kernel, config and problem, strides and scale included. */

/* Makes the lists of `plan` in memory of the handle's own: enqueues that on `stream` and does not wait for it. Of
 * `operands` the lists read the tensors that the mask names, in fc_operands.tensors, and of a ragged batch the lengths;
 * the others may be null. Launches on another stream are to come after it, as after any kernel that writes what they
 * read. Refused while the stream is captured: until the graph's first replay there would be no lists; create it before,
 * and capture fc_block_mask_update.
 *
 * A plan that makes no lists in its launches gets an empty handle, whose update does nothing and which launches take
 * without a difference: on the CPU, whose kernels ask the mask of each pair; without a mask function; of kernels
 * without lists, as those for decoding; and of a mask without tensors on fixed lengths, whose lists the plan has. So a
 * caller need not know which plans have lists. */
FC_API fc_status fc_block_mask_create(fc_plan plan, const fc_operands* operands, void* stream,
                                      fc_block_mask* block_mask);
/* Makes the lists anew in the same memory, of what `operands` hold when it runs on `stream`. It waits for nothing,
 * allocates nothing, and may be captured: launches in the same graph, and in graphs captured before, read the new
 * lists. On a stream other than that of the launches, it is to come after those that read the old lists and before
 * those that read the new ones. */
FC_API fc_status fc_block_mask_update(fc_block_mask block_mask, const fc_operands* operands, void* stream);
/* Launches under way stay valid, for which a GPU is waited for. The memory is freed then; where a captured launch reads
 * or makes the lists it is kept as long as the context, so that captured graphs stay valid. The plan may be destroyed
 * before it. */
FC_API fc_status fc_block_mask_destroy(fc_block_mask block_mask);

/* --- appending: new keys and values to a cache. Since ABI version 9 --------------------------------------------- */

/* A step of its own between the projections and attention: new rows of K and V are written to their pages, and K and Q
 * are turned by rotary position embedding on the way where asked. Lengths and pages are read on the device when the
 * launch runs, so that one captured graph appends to a growing cache. */

/* Which two elements of a row share an angle, of the first rotary_dim: c and c + rotary_dim / 2 (GPT-NeoX, Llama), or
 * 2 c and 2 c + 1 (GPT-J). (a, b) becomes (a cos - b sin, a sin + b cos), computed in fp32 and rounded once. */
typedef enum fc_rotary { FC_ROTARY_NONE = 0, FC_ROTARY_HALF = 1, FC_ROTARY_INTERLEAVED = 2 } fc_rotary;

/* What a kernel is compiled for. Sizes, strides and addresses are those of each launch. */
typedef struct fc_append_kind {
  uint32_t struct_size; /* sizeof(fc_append_kind); FC_APPEND_KIND_INIT sets it */
  int32_t dtype;        /* fc_dtype of k, v and q; 8-bit ones without a rotary embedding */
  int32_t rotary;       /* fc_rotary */
  int32_t rotary_dtype; /* fc_dtype of cos and sin: FC_FP32, FC_FP16 or FC_BF16 */
  /* FC_CACHE_AS_K: the caches are of dtype. FC_E4M3, FC_E5M2, FC_INT8 or FC_INT4 beside a dtype of 16 or 32 bits: a
   * quantised cache. Each element is divided by its factor, rounded to the nearest (ties to even), and saturates */
  int32_t cache_dtype;
  /* 1: of a quantised cache, what saturates is counted (fc_append_operands.saturated). Since ABI version 14: a
   * struct_size without it is accepted */
  int32_t counts_saturated;
} fc_append_kind;

enum { FC_CACHE_AS_K = -1 };
#define FC_APPEND_KIND_INIT \
  { (uint32_t)sizeof(fc_append_kind), FC_FP16, FC_ROTARY_NONE, FC_FP32, FC_CACHE_AS_K, 0 }

/* One launch. Start from FC_APPEND_OPERANDS_INIT. The elements of a row are adjacent; strides count elements and none
 * of an output is negative on a GPU. What is null is not there. */
typedef struct fc_append_operands {
  uint32_t struct_size; /* sizeof(fc_append_operands); FC_APPEND_OPERANDS_INIT sets it */
  int32_t q_at_length;  /* 0: row i of a sequence's q is turned as key number cache_seqlens + i, as new keys are; 1: all
                           of its rows as number cache_seqlens (FlashAttention's, without a causal mask or a window) */
  int64_t batch, heads_kv, head_dim, head_dim_v;
  /* k [batch, rows_new, heads_kv, head_dim] and v [..., head_dim_v], or with cu_seqlens_new or row_sequences
   * [rows_new, heads_kv, head_dim]: the rows of all sequences; rows of no sequence are not read. */
  int64_t rows_new;
  const void *k, *v;
  fc_strides k_strides, v_strides;
  /* The pool of pages, as of fc_attention: batch is the distance from page to page, row that from key to key within
   * one. Without a block table a dense cache [batch, length, heads_kv, head_dim]: page_size is its length, and sequence
   * s has page s. No two rows may share memory. */
  int64_t pages, page_size; /* page_size from 1 to 2^31 - 1 */
  void *k_cache, *v_cache;
  fc_strides k_cache_strides, v_cache_strides;
  const int32_t*
      cache_seqlens; /* [batch]: the keys that each sequence has. New row i becomes number cache_seqlens + i */
  const int32_t*
      cu_seqlens_new;         /* [batch + 1]: sequence s has the rows cu_seqlens_new[s] .. cu_seqlens_new[s + 1] - 1 */
  const int32_t* block_table; /* [batch, max_pages], rows table_stride apart, as of fc_operands */
  int64_t max_pages;
  int64_t table_stride; /* 0: max_pages */
  /* FlashInfer's form of the same: row r is key number row_positions[r] of sequence row_sequences[r] (-1: nobody's), in
   * the place of cache_seqlens and cu_seqlens_new; and sequence s has the pages block_table[table_starts[s]] ..
   * block_table[table_starts[s + 1] - 1] of max_pages in all. */
  const int32_t *row_sequences, *row_positions; /* [rows_new] */
  const int32_t* table_starts;                  /* [batch + 1] */
  /* cos and sin [rotary_rows, rotary_dim / 2], rows rotary_stride apart (0: rotary_dim / 2): one row for each number
   * that a key may have. rotary_dim is even and at most head_dim; the elements from there on are copied. */
  int64_t rotary_dim, rotary_rows, rotary_stride;
  const void *cos, *sin;
  /* q to be turned: [batch, rows_q, heads_q, head_dim], or with cu_seqlens_q [rows_q, heads_q, head_dim]. q_out may be
   * q itself with the same strides. A row without a legal position becomes NaN. heads_q 0: none. Needs cache_seqlens.
   */
  int64_t heads_q, rows_q;
  const void* q;
  void* q_out;
  fc_strides q_strides, q_out_strides;
  const int32_t* cu_seqlens_q;
  /* How many keys each sequence has afterwards, [batch]; may be cache_seqlens itself. -1, which attention answers with
   * NaN, where cache_seqlens is negative or the boundaries leave the tensor; the sum, which is more than the cache has
   * room for, where rows were refused for want of room. Needs cache_seqlens. */
  int32_t* new_seqlens;
  /* One word, to which the number of refused rows is added. Refused is a row whose sequence has a negative length, no
   * place for the key in its row of the table, or a page that the pool does not have; whose number has no row of cos
   * and sin; and whose boundaries leave the tensor. So is each row whose page the launch writes to from another place
   * of the table as well, of this sequence or another: on a GPU only where `refused` is given, for each row reads the
   * lengths and the table of all sequences then (with row_sequences all rows). Nothing is written for a refused row. */
  uint32_t* refused;
  /* The factors of a quantised cache, fp32, which fc_operands is given as well: one each, or with FC_SCALING_HEAD
   * [batch, heads_kv]. Null with FC_SCALING_NONE and FC_SCALING_TOKEN, and for caches of dtype */
  const float *descale_k, *descale_v;
  int32_t scaling;        /* fc_scaling */
  int32_t unused_scaling; /* padding */
  /* With FC_SCALING_TOKEN: where the factors of keys go, [pages, heads_kv, page_size]. The new keys' are written: the
   * largest finite magnitude of the row over the largest number of the cache's type, but at least 2^-126; 1 for a row
   * without a finite number. Since ABI version 10: a struct_size without the two is accepted */
  float *new_descale_k, *new_descale_v;
  /* With counts_saturated: [2], of k and v. The number of elements that saturated is added to it: those whose quotient,
   * rounded to the nearest, ties to even, would be past the type's largest number if the type went on, infinities too,
   * but not NaN. So of e4m3 464 is 448 and does not count. 8 bytes aligned. Since ABI version 14: a struct_size without
   * it is accepted */
  uint64_t* saturated;
} fc_append_operands;

#define FC_APPEND_OPERANDS_INIT                                                                                 \
  {                                                                                                             \
    (uint32_t)sizeof(fc_append_operands), 0, 0, 0, 0, 0, 0, NULL, NULL, {0, 0, 0}, {0, 0, 0}, 0, 0, NULL, NULL, \
        {0, 0, 0}, {0, 0, 0}, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, 0, 0, NULL, NULL,  \
        {0, 0, 0}, {0, 0, 0}, NULL, NULL, NULL, NULL, NULL, FC_SCALING_USUAL, 0, NULL, NULL, NULL               \
  }

/* Compiles and loads the kernel, or finds it. As fc_plan_create it may be done during a capture. */
FC_API fc_status fc_append_create(fc_context context, const fc_append_kind* kind, fc_append* append);
/* Launches under way and captured graphs stay valid. */
FC_API fc_status fc_append_destroy(fc_append append);
/* Enqueues on `stream` as fc_plan_launch does: allocates nothing, waits for nothing, may be captured. A page that two
 * sequences write to keeps what it held on a CPU, and on a GPU with `refused`; else both write to it, in no order.
 * Pages that sequences share must be full, or copied before. Refused with FC_ERROR_BAD_INPUT are null and misaligned
 * addresses, sizes and strides out of range, and outputs that share memory with what is read. */
FC_API fc_status fc_append_launch(fc_append append, const fc_append_operands* operands, void* stream);

/* --- pages as lists (CSR): FlashInfer's indptr, indices and last_page_len. Since ABI version 14 ------------------- */

/* Attention takes a block table and lengths. A launch makes both of lists of pages, on the device, once a step and for
 * all layers; a captured one reads the newest lists. */
typedef struct fc_csr_operands {
  uint32_t struct_size; /* sizeof(fc_csr_operands); FC_CSR_OPERANDS_INIT sets it */
  int32_t unused;       /* padding */
  int64_t batch, page_size;
  int64_t entries;        /* of indices: of all sequences, or of a buffer with room for more */
  int64_t max_pages;      /* columns of the block table, as of fc_attention: the most pages of a sequence */
  int64_t table_stride;   /* 0: max_pages */
  const int32_t* indptr;  /* [batch + 1]: sequence s has the pages indices[indptr[s]] .. indices[indptr[s + 1] - 1] */
  const int32_t* indices; /* [entries] */
  const int32_t*
      last_page_len;    /* [batch]: keys in the last page, 1 to page_size; not read of a sequence without pages */
  int32_t* block_table; /* written: [batch, max_pages]; -1 where a sequence has no page */
  /* Written, [batch]: the keys of each sequence. -1, which attention answers with NaN, where indptr descends or leaves
   * indices, a sequence has more than max_pages, or its last page is longer than a page or empty. */
  int32_t* seqused_kv;
} fc_csr_operands;

#define FC_CSR_OPERANDS_INIT \
  { (uint32_t)sizeof(fc_csr_operands), 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL }

/* Compiles and loads the kernel, or finds it. As fc_plan_create it may be done during a capture. */
FC_API fc_status fc_csr_create(fc_context context, fc_csr* csr);
/* Launches under way and captured graphs stay valid. */
FC_API fc_status fc_csr_destroy(fc_csr csr);
/* Enqueues on `stream` as fc_plan_launch does: allocates nothing, waits for nothing, may be captured. Refused with
 * FC_ERROR_BAD_INPUT are null and misaligned addresses, sizes out of range, and outputs that share memory with what is
 * read. */
FC_API fc_status fc_csr_launch(fc_csr csr, const fc_csr_operands* operands, void* stream);

/* --- quantising: q, k and v of 32 or 16 bits to 8-bit floats with their factors. Since ABI version 12 ------------ */

/* A step of its own before attention on 8 bits. An element is divided by its factor, rounded to the nearest (ties to
 * even), and saturates; NaN stays NaN. A factor is the largest finite magnitude over the largest number of the type,
 * but at least 2^-126; 1 where no finite number but 0 is. All of it happens on the device, in fp32. */

/* What a kernel is compiled for. Sizes, strides and addresses are those of each launch. */
typedef struct fc_quantize_kind {
  uint32_t struct_size; /* sizeof(fc_quantize_kind); FC_QUANTIZE_KIND_INIT sets it */
  int32_t dtype;        /* fc_dtype of q, k and v: FC_FP32, FC_FP16 or FC_BF16 */
  int32_t code_dtype;   /* FC_E4M3 or FC_E5M2 */
  /* 1: what saturates is counted (fc_quantize_operands.saturated). Since ABI version 14: a struct_size without it is
   * accepted */
  int32_t counts_saturated;
} fc_quantize_kind;

#define FC_QUANTIZE_KIND_INIT \
  { (uint32_t)sizeof(fc_quantize_kind), FC_FP16, FC_E4M3, 0 }

/* One launch. Start from FC_QUANTIZE_OPERANDS_INIT. The elements of a row are adjacent; strides count elements, and
 * none is negative on a GPU. The fastest kernel needs a head_dim and head_dim_v that are multiples of 16, addresses and
 * strides in bytes of q, k and v that are multiples of 16, and such of their codes. */
typedef struct fc_quantize_operands {
  uint32_t struct_size; /* sizeof(fc_quantize_operands); FC_QUANTIZE_OPERANDS_INIT sets it */
  int32_t scaling;      /* fc_scaling: FC_SCALING_TENSOR (FC_SCALING_USUAL), FC_SCALING_HEAD or FC_SCALING_TOKEN */
  int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_kv; /* heads_kv divides heads_q; the batch and lengths may be 0 */
  int64_t head_dim, head_dim_v;                          /* 1 to 2048 */
  /* [batch, heads_q, seqlen_q, head_dim], [batch, heads_kv, seqlen_kv, head_dim], [..., head_dim_v] */
  const void *q, *k, *v;
  fc_strides q_strides, k_strides, v_strides;
  void *q_codes, *k_codes, *v_codes; /* of code_dtype, the same shapes; v_codes as v_layout says */
  fc_strides q_codes_strides, k_codes_strides, v_codes_strides;
  /* Written, contiguous whatever the strides of q: one each; with FC_SCALING_HEAD [batch, heads_kv] each; with
   * FC_SCALING_TOKEN [batch, heads_q, seqlen_q], [batch, heads_kv, seqlen_kv] and [batch, heads_kv] */
  float *descale_q, *descale_k, *descale_v;
  /* [batch, heads_kv, head_dim], written: the mean of each column of k over its keys, which is taken from k first.
   * Attention's o stays as it is, and lse is lower by scale * q * k_mean. Outlier channels of k are much the same for
   * all keys. Null: nothing is taken. It is not written where seqlen_kv is 0 */
  float* k_mean;
  int32_t hadamard; /* 1: q and k are rotated by a random Hadamard transform, which spreads outlier channels and leaves
                       q * k as it is; head_dim is a power of two up to 512. 0: they are not */
  /* fc_v_layout of v_codes. FC_V_DN: [batch, heads_kv, head_dim_v, seqlen_kv], row is from column to column. The
   * address and the strides are multiples of 16, and the row's is at least seqlen_kv rounded up to one: keys up to
   * there are written as zeros */
  int32_t v_layout;
  uint64_t seed; /* of the signs of hadamard */
  /* 1: the factors are given, and read: those of the step before, say (FC_AMAX_HEAD). The largest magnitudes are not
   * looked for, so that q, k and v are read once. Not with FC_SCALING_TOKEN. On the CPU a factor that is zero,
   * negative, NaN or infinite is refused; on a GPU nobody looks. 0: they are written. Since ABI version 14, like the
   * next four fields: a struct_size without them is accepted */
  int32_t has_factors;
  /* With FC_SCALING_TOKEN: so many rows of a head of q, and keys of a head, have one factor, that of their largest
   * magnitude; the last of a head may be fewer. It is written for each of them, as attention takes descale_q and
   * descale_k; that of block i is at row i * block_q and key i * block_kv. 0: 1, a factor for each row */
  int32_t block_q, block_kv;
  int32_t unused; /* padding */
  /* With counts_saturated: [3], of q, k and v. The number of elements that saturated is added to it, as to
   * fc_append_operands.saturated. Beside factors that are made of the largest finite magnitudes only infinities do, and
   * beside given ones all that is past the range */
  uint64_t* saturated;
} fc_quantize_operands;

#define FC_QUANTIZE_OPERANDS_INIT                                                                                    \
  {                                                                                                                  \
    (uint32_t)sizeof(fc_quantize_operands), FC_SCALING_TENSOR, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, {0, 0, 0},     \
        {0, 0, 0}, {0, 0, 0}, NULL, NULL, NULL, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, NULL, NULL, NULL, NULL, 0, FC_V_ND, \
        0, 0, 0, 0, 0, NULL                                                                                          \
  }

/* Compiles and loads the kernels, or finds them. As fc_plan_create it may be done during a capture. */
FC_API fc_status fc_quantize_create(fc_context context, const fc_quantize_kind* kind, fc_quantize* quantize);
/* Launches under way and captured graphs stay valid. */
FC_API fc_status fc_quantize_destroy(fc_quantize quantize);
/* Enqueues on `stream` as fc_plan_launch does, workspaces included: waits for nothing, may be captured, and gives the
 * same bits for the same input. Refused with FC_ERROR_BAD_INPUT are null and misaligned addresses, sizes and strides
 * out of range, and outputs that share memory with what is read. */
FC_API fc_status fc_quantize_launch(fc_quantize quantize, const fc_quantize_operands* operands, void* stream);

/* --- timing: for programs that put another attention beside flashcore (docs/peers.md). Since ABI version 4 ------- */

/* Work of the caller's, timed as flashcore times its own kernels. On a GPU: a graph of several calls, captured and
 * instantiated in the device's primary context, whose work before has ended when a sample begins. It runs on a stream
 * of flashcore's, which is kept busy until the graph has been handed over, and stays the caller's. On the CPU: a
 * function that makes one call; it returns 0, or something else to end the sample with an error. */
typedef struct fc_timed_work {
  uint32_t struct_size; /* sizeof(fc_timed_work); FC_TIMED_WORK_INIT sets it */
  int32_t launches;     /* calls in the graph; 1 on the CPU, where the timer counts them */
  void* graph;          /* a CUgraphExec; the CUDA runtime's cudaGraphExec_t is the same */
  int32_t (*call)(void* user);
  void* user;
  double sample_us; /* a sample lasts at least so long; 0: the device's default */
} fc_timed_work;

#define FC_TIMED_WORK_INIT \
  { (uint32_t)sizeof(fc_timed_work), 1, NULL, NULL, NULL, 0.0 }

/* Makes the first, slower run of the work. */
FC_API fc_status fc_timer_create(fc_context context, const fc_timed_work* work, fc_timer* timer);
FC_API fc_status fc_timer_destroy(fc_timer timer);
/* `time_us`: device time of one call. `clock_mhz` (may be null): cycles over time meanwhile; 0 on the CPU. With
 * `warm_up_ms` and `measure_ms` samples are taken back to back for so long, and the second part's mean is given. */
FC_API fc_status fc_timer_sample(fc_timer timer, double warm_up_ms, double measure_ms, double* time_us,
                                 double* clock_mhz);
/* How many calls make a sample last `sample_us` (0: the device's default), by the rule for flashcore's own graphs:
 * takes three samples. On the CPU: as many as a sample makes. */
FC_API fc_status fc_timer_launches(fc_timer timer, double sample_us, int32_t* launches);

/* --- problems ---------------------------------------------------------------------------------------------------- */

/* What fc_plan_create would choose, compiling nothing. JSON: {"problem", "device", "family", "config", "candidate",
 * "reason", "alternatives": [{"candidate", "reason"}], "refused": [why another family cannot]}. Buffer as in
 * fc_context_describe. */
FC_API fc_status fc_explain(fc_context context, const fc_attention* problem, char* buffer, size_t size, size_t* needed);
/* Fills sizes, dtype, mask, scale and strides from an id as "b1_h32_hk8_s4096_d128_bf16_causal" (docs/problem.md has
 * the form), or from {"id": ..., "score": ..., "mask": ..., "tensors": ...}: texts and tensors then belong to the
 * library, for as long as it is loaded. `problem` starts as FC_ATTENTION_INIT: its struct_size says how much of it
 * there is. */
FC_API fc_status fc_problem_parse(const char* id, fc_attention* problem);

#ifdef __cplusplus
}
#endif
#endif
