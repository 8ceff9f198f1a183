/* What a planned launch costs the host, from C: microseconds from call to return, without waiting for the device.
 *
 *   cc -std=c11 -O2 -Iinclude overhead.c -o overhead -ldl
 *   ./overhead path/to/libflashcore.so cuda:0 b1_h8_s512_d64_fp16 20
 *
 * The library is opened at run time, so that one program measures any build of it. Prints JSON: "repeated" launches on
 * the same addresses, "changing" on addresses that differ from launch to launch, and on a GPU "driver": what the driver
 * alone takes for a kernel that does nothing, with as many bytes of parameters. "measures" says it in words. On the CPU
 * a launch is the computation, so only a GPU's figures are overhead. Exits with 4 if the library or the device is not
 * there. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <flashcore/flashcore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kSets = 4, kPerBatch = 100 };

static const char* (*last_error)(void);

static void must(fc_status status, const char* what) {
  if (status == FC_OK) return;
  fprintf(stderr, "overhead: %s: %s\n", what, last_error());
  exit(status == FC_ERROR_ENVIRONMENT ? 4 : 1);
}

static void* find(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (!symbol) {
    fprintf(stderr, "overhead: the library has no %s\n", name);
    exit(4);
  }
  return symbol;
}

/* A function pointer from dlsym's object pointer, which ISO C does not convert. */
#define LOAD(library, pointer, name)              \
  do {                                            \
    void* symbol = find(library, name);           \
    memcpy(&(pointer), &symbol, sizeof(pointer)); \
  } while (0)

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void print_times(const char* name, double* times, int batches) {
  qsort(times, (size_t)batches, sizeof(double), ascending);
  printf(", \"%s_us\": {\"p10\": %.3f, \"p50\": %.3f, \"p90\": %.3f}", name, times[batches / 10], times[batches / 2],
         times[batches * 9 / 10]);
}

/* The floor: cuLaunchKernel of an empty kernel in the device's primary context. Prints nothing where a step fails. */
static void time_driver(int ordinal, double* times, int batches) {
  static const char kernel[] =
      ".version 7.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry nothing(.param .align 64 .b8 parameters[704]) { ret; }\n";
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return;
  int (*initialize)(unsigned);
  int (*get_device)(int*, int);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*synchronize)(void);
  int (*load)(void**, const void*);
  int (*get_function)(void**, void*, const char*);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  LOAD(driver, initialize, "cuInit");
  LOAD(driver, get_device, "cuDeviceGet");
  LOAD(driver, retain, "cuDevicePrimaryCtxRetain");
  LOAD(driver, set_current, "cuCtxSetCurrent");
  LOAD(driver, synchronize, "cuCtxSynchronize");
  LOAD(driver, load, "cuModuleLoadData");
  LOAD(driver, get_function, "cuModuleGetFunction");
  LOAD(driver, launch, "cuLaunchKernel");
  int which = 0;
  void *context = NULL, *module = NULL, *function = NULL;
  if (initialize(0) || get_device(&which, ordinal) || retain(&context, which) || set_current(context)) return;
  if (load(&module, kernel) || get_function(&function, module, "nothing")) return;
  static unsigned char bytes[704];
  void* parameters[1] = {bytes};
  for (int batch = -1; batch < batches; ++batch) {
    const double start = now_us();
    for (int n = 0; n < kPerBatch; ++n)
      if (launch(function, 1, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL)) return;
    if (batch >= 0) times[batch] = (now_us() - start) / kPerBatch;
    if (synchronize()) return;
  }
  print_times("driver", times, batches);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr,
            "usage: overhead LIBRARY [DEVICE [PROBLEM [BATCHES]]]\n"
            "Measures what a planned launch costs the host: microseconds from call to return, without waiting for the\n"
            "device, as JSON. LIBRARY is a path to libflashcore.so; by default DEVICE is cuda:0, PROBLEM\n"
            "b1_h8_s512_d64_fp16, BATCHES 50 (of 100 launches each). On the CPU a launch is the computation itself.\n");
    return 3;
  }
  const char* device = argc > 2 ? argv[2] : "cuda:0";
  const char* id = argc > 3 ? argv[3] : "b1_h8_s512_d64_fp16";
  int batches = argc > 4 ? atoi(argv[4]) : 50;
  if (batches < 1) batches = 1;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) {
    fprintf(stderr, "overhead: %s\n", dlerror());
    return 4;
  }
  fc_status (*context_create)(const char*, fc_context*);
  fc_status (*synchronize)(fc_context, void*);
  fc_status (*allocate)(fc_context, size_t, void**);
  fc_status (*parse)(const char*, fc_attention*);
  fc_status (*plan_create)(fc_context, const fc_attention*, fc_plan*);
  fc_status (*launch)(fc_plan, const void*, const void*, const void*, void*, float*, void*);
  LOAD(library, last_error, "fc_last_error");
  LOAD(library, context_create, "fc_context_create");
  LOAD(library, synchronize, "fc_context_synchronize");
  LOAD(library, allocate, "fc_memory_allocate");
  LOAD(library, parse, "fc_problem_parse");
  LOAD(library, plan_create, "fc_plan_create");
  LOAD(library, launch, "fc_plan_launch");

  fc_context context;
  fc_plan plan;
  fc_attention p = FC_ATTENTION_INIT;
  must(parse(id, &p), "reading the problem");
  must(context_create(device, &context), "opening the device");
  double start = now_us();
  must(plan_create(context, &p, &plan), "planning");
  const double plan_us = now_us() - start;
  const size_t rows = (size_t)(p.batch * p.heads_q * p.seqlen_q), keys = (size_t)(p.batch * p.heads_kv * p.seqlen_kv);
  const size_t sizes[5] = {rows * (size_t)p.head_dim * 4, keys * (size_t)p.head_dim * 4,
                           keys * (size_t)p.head_dim_v * 4, rows * (size_t)p.head_dim_v * 4, rows * 4};
  void* a[kSets][5];
  for (int set = 0; set < kSets; ++set)
    for (int i = 0; i < 5; ++i) must(allocate(context, sizes[i], &a[set][i]), "allocating");

  double* times = malloc(sizeof(double) * (size_t)batches);
  if (!times) return 4;
  const int on_gpu = !strncmp(device, "cuda", 4);
  printf(
      "{\"measures\": \"%s\", \"device\": \"%s\", \"problem\": \"%s\", \"batches\": %d, \"launches_per_batch\": %d, ",
      on_gpu ? "microseconds from call to return, the device not waited for"
             : "microseconds per launch, the computation included",
      device, id, batches, kPerBatch);
  printf("\"plan_us\": %.1f", plan_us);
  for (int changing = 0; changing < 2; ++changing) {
    for (int batch = -1; batch < batches; ++batch) { /* the first is a warm-up */
      start = now_us();
      for (int n = 0; n < kPerBatch; ++n) {
        void** t = a[changing ? n % kSets : 0];
        must(launch(plan, t[0], t[1], t[2], t[3], (float*)t[4], NULL), "launching");
      }
      if (batch >= 0) times[batch] = (now_us() - start) / kPerBatch;
      must(synchronize(context, NULL), "waiting"); /* so that the queue never fills: a full one makes a launch wait */
    }
    print_times(changing ? "changing" : "repeated", times, batches);
  }
  if (on_gpu) time_driver(device[4] == ':' ? atoi(device + 5) : 0, times, batches);
  printf("}\n");
  free(times);
  return 0;
}
