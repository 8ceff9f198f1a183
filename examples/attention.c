/* Attention from C: 4 query heads on 2 key heads, causal, checked against the textbook formula.
 *
 *   cc -std=c11 attention.c $(pkg-config --cflags --libs flashcore) -lm && ./a.out
 *   ./a.out cuda:0
 *
 * Exits with 0 if the result is right, 1 if it is not, 4 if the device is not there. */
#include <flashcore/flashcore.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kHeads = 4, kHeadsKv = 2, kRows = 40, kDim = 16 };
enum { kQueryElements = kHeads * kRows * kDim, kKeyElements = kHeadsKv * kRows * kDim };

static float q[kQueryElements], k[kKeyElements], v[kKeyElements], o[kQueryElements], lse[kHeads * kRows];

static void must(fc_status status, const char* what) {
  if (status == FC_OK) return;
  fprintf(stderr, "%s: %s\n", what, fc_last_error());
  exit(status == FC_ERROR_ENVIRONMENT ? 4 : 1);
}

static void fill(float* values, int count, unsigned seed) {
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
}

/* The larger of two differences. One that is NaN is infinite: fmax would forget it. */
static double larger(double worst, double difference) {
  return isfinite(difference) ? fmax(worst, difference) : INFINITY;
}

/* The largest difference to softmax(q k^T / sqrt(dim)) v, row i seeing keys 0..i. */
static double worst_difference(void) {
  double worst = 0;
  for (int head = 0; head < kHeads; ++head) {
    const int head_kv = head / (kHeads / kHeadsKv);
    for (int row = 0; row < kRows; ++row) {
      double score[kRows], sum = 0;
      for (int key = 0; key <= row; ++key) {
        double dot = 0;
        for (int d = 0; d < kDim; ++d)
          dot += (double)q[(head * kRows + row) * kDim + d] * k[(head_kv * kRows + key) * kDim + d];
        sum += score[key] = exp(dot / sqrt(kDim));
      }
      for (int d = 0; d < kDim; ++d) {
        double value = 0;
        for (int key = 0; key <= row; ++key) value += score[key] / sum * v[(head_kv * kRows + key) * kDim + d];
        worst = larger(worst, fabs(value - o[(head * kRows + row) * kDim + d]));
      }
      worst = larger(worst, fabs(log(sum) - lse[head * kRows + row]));
    }
  }
  return worst;
}

/* A copy of `host` on the device; from there on the same code serves the CPU and a GPU. */
static void* on_device(fc_context context, const void* host, size_t bytes) {
  void* address = NULL;
  must(fc_memory_allocate(context, bytes, &address), "allocating");
  must(fc_memory_upload(context, address, host, bytes), "copying to the device");
  return address;
}

int main(int argc, char** argv) {
  fc_context context;
  fc_plan plan;
  fc_attention problem = FC_ATTENTION_INIT;
  char text[2048];

  problem.dtype = FC_FP32;
  problem.heads_q = kHeads;
  problem.heads_kv = kHeadsKv;
  problem.seqlen_q = problem.seqlen_kv = kRows;
  problem.head_dim = problem.head_dim_v = kDim;
  problem.causal = FC_CAUSAL_TOP_LEFT;

  must(fc_context_create(argc > 1 ? argv[1] : "cpu", &context), "opening the device");
  must(fc_plan_create(context, &problem, &plan), "planning");
  must(fc_plan_describe(plan, text, sizeof text, NULL), "describing");
  printf("flashcore %s: %s\n", fc_version(), text);

  fill(q, kQueryElements, 1);
  fill(k, kKeyElements, 2);
  fill(v, kKeyElements, 3);
  void* dq = on_device(context, q, sizeof q);
  void* dk = on_device(context, k, sizeof k);
  void* dv = on_device(context, v, sizeof v);
  void* dout = on_device(context, o, sizeof o);
  void* dlse = on_device(context, lse, sizeof lse);
  must(fc_plan_launch(plan, dq, dk, dv, dout, (float*)dlse, NULL), "launching");
  must(fc_context_synchronize(context, NULL), "waiting");
  must(fc_memory_download(context, o, dout, sizeof o), "copying back");
  must(fc_memory_download(context, lse, dlse, sizeof lse), "copying back");

  must(fc_plan_destroy(plan), "closing the plan");
  must(fc_context_destroy(context), "closing the context");
  const double worst = worst_difference();
  printf("largest difference to the formula: %.2e\n", worst);
  return worst < 1e-5 ? 0 : 1;
}
