/* Decoding from a paged cache in C: three sequences of different lengths, a pool of pages in no order, and in each step
 * a new key for every sequence and one query row on all of its keys. Each step is checked against the textbook formula.
 *
 *   cc -std=c11 paged_decode.c $(pkg-config --cflags --libs flashcore) -lm && ./a.out
 *   ./a.out cuda:0
 *
 * Exits with 0 if every result is right, 1 if one is not, 4 if the device is not there. */
#include <flashcore/flashcore.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBatch = 3, kHeads = 4, kHeadsKv = 2, kDim = 16, kPageSize = 4, kPages = 12, kMaxPages = 4, kSteps = 6 };
enum { kKeyRow = kHeadsKv * kDim, kQueryRow = kHeads * kDim, kPoolElements = kPages * kPageSize * kKeyRow };

/* Page p of sequence s is kTable[s][p] of the pool. -1: the sequence will not need it. */
static const int32_t kTable[kBatch][kMaxPages] = {{7, 2, -1, -1}, {0, 11, 5, 3}, {9, 4, 6, -1}};
static int32_t lengths[kBatch] = {1, 9, 4}; /* keys that each sequence has */

/* What the device holds, kept here for the formula: [pages, page_size, heads_kv, head_dim]. */
static float k_pool[kPoolElements], v_pool[kPoolElements];
static float q[kBatch * kQueryRow], k_new[kBatch * kKeyRow], v_new[kBatch * kKeyRow], o[kBatch * kQueryRow];

static void must(fc_status status, const char* what) {
  if (status == FC_OK) return;
  fprintf(stderr, "%s: %s\n", what, fc_last_error());
  exit(status == FC_ERROR_ENVIRONMENT ? 4 : 1);
}

static void fill(float* values, int count) {
  static unsigned seed = 1;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
}

/* Where key number `key` of a sequence lies in the pool. */
static int place(int sequence, int key) {
  return (kTable[sequence][key / kPageSize] * kPageSize + key % kPageSize) * kKeyRow;
}

/* The larger of two differences. One that is NaN is infinite: fmax would forget it. */
static double larger(double worst, double difference) {
  return isfinite(difference) ? fmax(worst, difference) : INFINITY;
}

/* The largest difference to softmax(q k^T / sqrt(dim)) v over the keys that each sequence has. */
static double worst_difference(void) {
  double worst = 0;
  for (int s = 0; s < kBatch; ++s) {
    for (int head = 0; head < kHeads; ++head) {
      const int head_kv = head / (kHeads / kHeadsKv);
      const float* row = q + s * kQueryRow + head * kDim;
      double weight[kMaxPages * kPageSize], sum = 0;
      for (int key = 0; key < lengths[s]; ++key) {
        double dot = 0;
        for (int d = 0; d < kDim; ++d) dot += (double)row[d] * k_pool[place(s, key) + head_kv * kDim + d];
        sum += weight[key] = exp(dot / sqrt(kDim));
      }
      for (int d = 0; d < kDim; ++d) {
        double value = 0;
        for (int key = 0; key < lengths[s]; ++key)
          value += weight[key] / sum * v_pool[place(s, key) + head_kv * kDim + d];
        worst = larger(worst, fabs(value - o[s * kQueryRow + head * kDim + d]));
      }
    }
  }
  return worst;
}

/* A copy of `host` on the device; from there on the same code serves the CPU and a GPU. The last plan of a context that
 * is closed frees what nobody has freed with fc_memory_free. */
static void* on_device(fc_context context, const void* host, size_t bytes) {
  void* address = NULL;
  must(fc_memory_allocate(context, bytes, &address), "allocating");
  must(fc_memory_upload(context, address, host, bytes), "copying to the device");
  return address;
}

int main(int argc, char** argv) {
  fc_context context;
  must(fc_context_create(argc > 1 ? argv[1] : "cpu", &context), "opening the device");
  fill(k_pool, kPoolElements);
  fill(v_pool, kPoolElements);

  /* A pool may have any strides: here a page holds its keys one after another, each with all of its heads. */
  const fc_strides of_pages = {kPageSize * kKeyRow, kDim, kKeyRow}, of_rows = {0, kDim, kQueryRow};

  /* One plan for every step: it has the bounds, and reads lengths and pages on the device when it runs. */
  fc_attention problem = FC_ATTENTION_INIT;
  problem.dtype = FC_FP32;
  problem.batch = kBatch;
  problem.heads_q = kHeads;
  problem.heads_kv = kHeadsKv;
  problem.seqlen_q = 1;                      /* rows of a sequence, at most */
  problem.seqlen_kv = kMaxPages * kPageSize; /* keys of a sequence, at most */
  problem.head_dim = problem.head_dim_v = kDim;
  problem.causal = FC_CAUSAL_BOTTOM_RIGHT;
  problem.lengths = FC_LENGTHS_FULL;
  problem.total_q = kBatch; /* rows of q and o together */
  problem.page_size = kPageSize;
  problem.pages = kPages;
  problem.max_pages = kMaxPages;
  problem.q = problem.o = of_rows;
  problem.k = problem.v = of_pages;
  fc_plan plan;
  must(fc_plan_create(context, &problem, &plan), "planning");
  char text[4096];
  must(fc_plan_describe(plan, text, sizeof text, NULL), "describing");
  printf("flashcore %s: %s\n", fc_version(), text);

  fc_append_kind kind = FC_APPEND_KIND_INIT;
  kind.dtype = FC_FP32;
  fc_append append;
  must(fc_append_create(context, &kind, &append), "planning to append");

  const int32_t cu_seqlens_q[kBatch + 1] = {0, 1, 2, 3}; /* each sequence has one row */
  const uint32_t none = 0;
  fc_operands attend = FC_OPERANDS_INIT;
  void* dq = on_device(context, q, sizeof q);
  void* dout = on_device(context, o, sizeof o);
  void* dk_pool = on_device(context, k_pool, sizeof k_pool);
  void* dv_pool = on_device(context, v_pool, sizeof v_pool);
  void* dlengths = on_device(context, lengths, sizeof lengths);
  attend.q = dq;
  attend.o = dout;
  attend.k = dk_pool;
  attend.v = dv_pool;
  attend.cu_seqlens_q = (const int32_t*)on_device(context, cu_seqlens_q, sizeof cu_seqlens_q);
  attend.seqused_kv = (const int32_t*)dlengths;
  attend.block_table = (const int32_t*)on_device(context, kTable, sizeof kTable);

  fc_append_operands grow = FC_APPEND_OPERANDS_INIT;
  void* dk_new = on_device(context, k_new, sizeof k_new);
  void* dv_new = on_device(context, v_new, sizeof v_new);
  void* drefused = on_device(context, &none, sizeof none);
  grow.batch = kBatch;
  grow.heads_kv = kHeadsKv;
  grow.head_dim = grow.head_dim_v = kDim;
  grow.rows_new = 1; /* of each sequence */
  grow.k = dk_new;
  grow.v = dv_new;
  grow.k_strides = grow.v_strides = (fc_strides){kKeyRow, kDim, kKeyRow};
  grow.pages = kPages;
  grow.page_size = kPageSize;
  grow.k_cache = dk_pool;
  grow.v_cache = dv_pool;
  grow.k_cache_strides = grow.v_cache_strides = of_pages;
  grow.block_table = attend.block_table;
  grow.max_pages = kMaxPages;
  grow.cache_seqlens = (const int32_t*)dlengths;
  grow.new_seqlens = (int32_t*)dlengths; /* in place: the lengths are those of the next step */
  grow.refused = (uint32_t*)drefused;

  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    fill(q, kBatch * kQueryRow);
    fill(k_new, kBatch * kKeyRow);
    fill(v_new, kBatch * kKeyRow);
    must(fc_memory_upload(context, dq, q, sizeof q), "copying q");
    must(fc_memory_upload(context, dk_new, k_new, sizeof k_new), "copying new keys");
    must(fc_memory_upload(context, dv_new, v_new, sizeof v_new), "copying new values");
    must(fc_append_launch(append, &grow, NULL), "appending");
    must(fc_plan_launch_operands(plan, &attend, NULL), "launching");
    must(fc_context_synchronize(context, NULL), "waiting");
    must(fc_memory_download(context, o, dout, sizeof o), "copying back");

    for (int s = 0; s < kBatch; ++s) {
      memcpy(k_pool + place(s, lengths[s]), k_new + s * kKeyRow, kKeyRow * sizeof(float));
      memcpy(v_pool + place(s, lengths[s]), v_new + s * kKeyRow, kKeyRow * sizeof(float));
      ++lengths[s];
    }
    worst = larger(worst, worst_difference());
  }
  uint32_t refused = 0;
  must(fc_memory_download(context, &refused, drefused, sizeof refused), "copying back");

  must(fc_append_destroy(append), "closing the append");
  must(fc_plan_destroy(plan), "closing the plan");
  must(fc_context_destroy(context), "closing the context");
  printf("%d steps, keys of each sequence %d, %d, %d, refused %u; largest difference to the formula: %.2e\n", kSteps,
         lengths[0], lengths[1], lengths[2], refused, worst);
  return worst < 1e-5 && refused == 0 ? 0 : 1;
}
