/* An example in C whose copies of results hold some NaN. Exits with 0 if the example says that they are wrong. */
#include <flashcore/flashcore.h>
#include <stdint.h>
#include <string.h>

/* Of fp32 a NaN, of bf16 two. The numbers that follow are right, and must not make it forgotten. */
static const uint32_t kNan = 0x7fc07fc0u;
enum { kApart = 128 }; /* in bytes; what is smaller are counts */

static fc_status download_with_nan(fc_context context, void* host, const void* device, size_t bytes) {
  const fc_status status = fc_memory_download(context, host, device, bytes);
  if (bytes < kApart) return status;
  for (size_t at = 0; at + sizeof kNan <= bytes; at += kApart) memcpy((char*)host + at, &kNan, sizeof kNan);
  return status;
}

#define fc_memory_download download_with_nan
#define main run_example
#include FLASHCORE_EXAMPLE
#undef main

int main(int argc, char** argv) { return run_example(argc, argv) == 1 ? 0 : 1; }
