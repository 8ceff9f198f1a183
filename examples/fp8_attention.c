/* Attention on 8-bit floats in C: q, k and v of fp32 become e4m3 with a factor for each key head, and attention gets
 * the factors as descales. The result is compared with the textbook formula on the numbers before they were rounded.
 *
 *   cc -std=c11 fp8_attention.c $(pkg-config --cflags --libs flashcore) -lm && ./a.out
 *   ./a.out cuda:0
 *
 * Exits with 0 if the error is what rounding to e4m3 costs, 1 if it is larger, 4 if the device is not there. */
#include <flashcore/flashcore.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHeads = 4, kHeadsKv = 2, kRows = 48, kKeys = 200, kDim = 64 };
enum { kOfQ = kHeads * kRows * kDim, kOfK = kHeadsKv * kKeys * kDim };

static float q[kOfQ], k[kOfK], v[kOfK];
static uint16_t o[kOfQ]; /* bf16: what attention on 8 bits returns unless it is told otherwise */

static void must(fc_status status, const char* what) {
  if (status == FC_OK) return;
  fprintf(stderr, "%s: %s\n", what, fc_last_error());
  exit(status == FC_ERROR_ENVIRONMENT ? 4 : 1);
}

/* About N(0, 1): the sum of twelve evenly drawn numbers. */
static void fill(float* values, int count) {
  static unsigned seed = 1;
  for (int i = 0; i < count; ++i) {
    float sum = -6.0f;
    for (int j = 0; j < 12; ++j) {
      seed = seed * 1664525u + 1013904223u;
      sum += (float)(seed >> 8) / (float)(1 << 24);
    }
    values[i] = sum;
  }
}

static float value_of_bf16(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

/* The distance from softmax(q k^T / sqrt(dim)) v, as a share of its size. */
static double error(void) {
  double apart = 0, size = 0;
  for (int head = 0; head < kHeads; ++head) {
    const float *keys = k + head / (kHeads / kHeadsKv) * kKeys * kDim, *values = v + (keys - k);
    for (int row = 0; row < kRows; ++row) {
      const int first = (head * kRows + row) * kDim;
      double weight[kKeys], sum = 0;
      for (int key = 0; key < kKeys; ++key) {
        double dot = 0;
        for (int d = 0; d < kDim; ++d) dot += (double)q[first + d] * keys[key * kDim + d];
        sum += weight[key] = exp(dot / sqrt(kDim));
      }
      for (int d = 0; d < kDim; ++d) {
        double right = 0;
        for (int key = 0; key < kKeys; ++key) right += weight[key] / sum * values[key * kDim + d];
        apart += pow(right - value_of_bf16(o[first + d]), 2);
        size += right * right;
      }
    }
  }
  return sqrt(apart / size);
}

/* Memory of the device, with a copy of `host` unless that is null. The last plan of a context that is closed frees what
 * nobody has freed with fc_memory_free. */
static void* on_device(fc_context context, const void* host, size_t bytes) {
  void* address = NULL;
  must(fc_memory_allocate(context, bytes, &address), "allocating");
  if (host) must(fc_memory_upload(context, address, host, bytes), "copying to the device");
  return address;
}

int main(int argc, char** argv) {
  fc_context context;
  must(fc_context_create(argc > 1 ? argv[1] : "cpu", &context), "opening the device");
  fill(q, kOfQ);
  fill(k, kOfK);
  fill(v, kOfK);
  for (int i = 0; i < kOfK; i += kDim) k[i] += 20.0f; /* a channel that is far from zero, as in real models */

  /* What a kernel is compiled for; sizes and addresses come with the launch. */
  fc_quantize_kind kind = FC_QUANTIZE_KIND_INIT;
  kind.dtype = FC_FP32;
  kind.code_dtype = FC_E4M3;
  kind.counts_saturated = 1;
  fc_quantize quantize;
  must(fc_quantize_create(context, &kind, &quantize), "planning to quantise");

  const uint64_t none[3] = {0, 0, 0};
  fc_quantize_operands round = FC_QUANTIZE_OPERANDS_INIT;
  round.scaling = FC_SCALING_HEAD;
  round.batch = 1;
  round.heads_q = kHeads;
  round.heads_kv = kHeadsKv;
  round.seqlen_q = kRows;
  round.seqlen_kv = kKeys;
  round.head_dim = round.head_dim_v = kDim;
  round.q = on_device(context, q, sizeof q);
  round.k = on_device(context, k, sizeof k);
  round.v = on_device(context, v, sizeof v);
  round.q_codes = on_device(context, NULL, kOfQ); /* a byte each */
  round.k_codes = on_device(context, NULL, kOfK);
  round.v_codes = on_device(context, NULL, kOfK);
  round.q_strides = round.q_codes_strides = (fc_strides){kOfQ, kRows * kDim, kDim};
  round.k_strides = round.k_codes_strides = (fc_strides){kOfK, kKeys * kDim, kDim};
  round.v_strides = round.v_codes_strides = round.k_strides;
  round.descale_q = (float*)on_device(context, NULL, kHeadsKv * sizeof(float));
  round.descale_k = (float*)on_device(context, NULL, kHeadsKv * sizeof(float));
  round.descale_v = (float*)on_device(context, NULL, kHeadsKv * sizeof(float));
  /* The mean of the keys is taken from them, which leaves o as it is and that channel as exact as the others. */
  round.k_mean = (float*)on_device(context, NULL, kHeadsKv * kDim * sizeof(float));
  round.saturated = (uint64_t*)on_device(context, none, sizeof none);

  fc_attention problem = FC_ATTENTION_INIT;
  problem.dtype = FC_E4M3;
  problem.scaling = FC_SCALING_HEAD;
  problem.heads_q = kHeads;
  problem.heads_kv = kHeadsKv;
  problem.seqlen_q = kRows;
  problem.seqlen_kv = kKeys;
  problem.head_dim = problem.head_dim_v = kDim;
  fc_plan plan;
  must(fc_plan_create(context, &problem, &plan), "planning");
  char text[4096];
  must(fc_plan_describe(plan, text, sizeof text, NULL), "describing");
  printf("flashcore %s: %s\n", fc_version(), text);

  fc_operands attend = FC_OPERANDS_INIT;
  attend.q = round.q_codes;
  attend.k = round.k_codes;
  attend.v = round.v_codes;
  attend.o = on_device(context, NULL, sizeof o);
  attend.descale_q = round.descale_q;
  attend.descale_k = round.descale_k;
  attend.descale_v = round.descale_v;

  /* Both are enqueued on one stream; the host reads no factor and waits once. */
  must(fc_quantize_launch(quantize, &round, NULL), "quantising");
  must(fc_plan_launch_operands(plan, &attend, NULL), "launching");
  must(fc_context_synchronize(context, NULL), "waiting");
  must(fc_memory_download(context, o, attend.o, sizeof o), "copying back");
  uint64_t saturated[3];
  must(fc_memory_download(context, saturated, round.saturated, sizeof saturated), "copying back");
  must(fc_quantize_destroy(quantize), "closing the quantiser");
  must(fc_plan_destroy(plan), "closing the plan");
  must(fc_context_destroy(context), "closing the context");

  /* Rounding q, k and v to three bits of mantissa moves o by about 0.05 of its size on any hardware, and weights of 8
   * bits, which the fast kernels multiply with, by half as much again at most. */
  const double found = error();
  printf("saturated: %d of q, %d of k, %d of v; error to the formula on unrounded numbers: %.4f\n", (int)saturated[0],
         (int)saturated[1], (int)saturated[2], found);
  return found < 0.065 && saturated[0] + saturated[1] + saturated[2] == 0 ? 0 : 1;
}
