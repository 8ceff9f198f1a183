/* A mask of the caller's own in C: documents packed into one row of tokens, as a tensor that the mask names, and a
 * block mask, which lists once what all launches with the same documents share. Then other documents, for which the
 * lists are made anew. A row of each result is checked against the textbook formula.
 *
 *   cc -std=c11 masked_attention.c $(pkg-config --cflags --libs flashcore) -lm && ./a.out
 *   ./a.out cuda:0
 *
 * Exits with 0 if the rows are right, 1 if one is not, 4 if the device is not there. */
#include <flashcore/flashcore.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHeads = 2, kRows = 300, kDim = 64, kElements = kHeads * kRows * kDim, kRow = 290 };

/* bf16: the GPU kernels for fp32 go over no lists. */
static uint16_t q[kElements], k[kElements], v[kElements], o[kElements];
static int32_t document[kRows]; /* the number of each token's document */

static void must(fc_status status, const char* what) {
  if (status == FC_OK) return;
  fprintf(stderr, "%s: %s\n", what, fc_last_error());
  exit(status == FC_ERROR_ENVIRONMENT ? 4 : 1);
}

static float value_of(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

static void fill(uint16_t* values, unsigned seed) {
  for (int i = 0; i < kElements; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const float value = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    values[i] = (uint16_t)(word >> 16);
  }
}

/* The larger of two differences. One that is NaN is infinite: fmax would forget it. */
static double larger(double worst, double difference) {
  return isfinite(difference) ? fmax(worst, difference) : INFINITY;
}

/* The largest difference to softmax(q k^T / sqrt(dim)) v in one row of each head, over the keys of its document. */
static double worst_difference(void) {
  double worst = 0;
  for (int head = 0; head < kHeads; ++head) {
    const int first = head * kRows * kDim;
    double weight[kRows] = {0}, sum = 0;
    for (int key = 0; key <= kRow; ++key) {
      double dot = 0;
      if (document[key] != document[kRow]) continue;
      for (int d = 0; d < kDim; ++d)
        dot += (double)value_of(q[first + kRow * kDim + d]) * value_of(k[first + key * kDim + d]);
      sum += weight[key] = exp(dot / sqrt(kDim));
    }
    for (int d = 0; d < kDim; ++d) {
      double right = 0;
      for (int key = 0; key <= kRow; ++key) right += weight[key] / sum * value_of(v[first + key * kDim + d]);
      worst = larger(worst, fabs(right - value_of(o[first + kRow * kDim + d])));
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

  /* A tensor has a name, by which the mask asks for its elements: b is the batch entry, i the row, j the key. */
  const fc_tensor documents = {"document", FC_ELEMENT_INT, 2, {1, kRows}, {0}};
  fc_attention problem = FC_ATTENTION_INIT;
  problem.dtype = FC_BF16;
  problem.heads_q = problem.heads_kv = kHeads;
  problem.seqlen_q = problem.seqlen_kv = kRows;
  problem.head_dim = problem.head_dim_v = kDim;
  problem.causal = FC_CAUSAL_TOP_LEFT;
  problem.mask = "document[b, i] == document[b, j]";
  problem.tensors = &documents;
  problem.tensor_count = 1;
  fc_plan plan;
  must(fc_plan_create(context, &problem, &plan), "planning");
  char text[4096];
  must(fc_plan_describe(plan, text, sizeof text, NULL), "describing");
  printf("flashcore %s: %s\n", fc_version(), text);

  fill(q, 1);
  fill(k, 2);
  fill(v, 3);
  void* ddocument = on_device(context, document, sizeof document);
  void* dout = on_device(context, o, sizeof o);
  const void* const tensors[] = {ddocument}; /* in the order of problem.tensors */
  fc_operands operands = FC_OPERANDS_INIT;
  operands.q = on_device(context, q, sizeof q);
  operands.k = on_device(context, k, sizeof k);
  operands.v = on_device(context, v, sizeof v);
  operands.o = dout;
  operands.tensors = tensors;

  double worst = 0;
  for (int step = 0; step < 2; ++step) {
    for (int token = 0; token < kRows; ++token) document[token] = token / (step == 0 ? 100 : 150);
    must(fc_memory_upload(context, ddocument, document, sizeof document), "copying the documents");
    /* Once for all layers of a model: their launches take the same block mask. */
    if (step == 0) must(fc_block_mask_create(plan, &operands, NULL, &operands.block_mask), "listing blocks");
    else must(fc_block_mask_update(operands.block_mask, &operands, NULL), "listing blocks anew");
    must(fc_plan_launch_operands(plan, &operands, NULL), "launching");
    must(fc_context_synchronize(context, NULL), "waiting");
    must(fc_memory_download(context, o, dout, sizeof o), "copying back");
    worst = larger(worst, worst_difference());
  }

  must(fc_block_mask_destroy(operands.block_mask), "closing the block mask");
  must(fc_plan_destroy(plan), "closing the plan");
  must(fc_context_destroy(context), "closing the context");
  printf("largest difference to the formula: %.2e\n", worst);
  return worst < 1e-2 ? 0 : 1; /* the last bit of bf16 and its weights' */
}
