// Counts what a launch on the CPU allocates: the C library's allocator goes through this program.
#include <flashcore/flashcore.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {
std::atomic<bool> g_counting{false};
std::atomic<long> g_allocations{0};
void count() {
  if (g_counting.load(std::memory_order_relaxed)) ++g_allocations;
}
}  // namespace

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t size) { return count(), __libc_malloc(size); }
void* calloc(std::size_t n, std::size_t size) { return count(), __libc_calloc(n, size); }
void* realloc(void* old, std::size_t size) { return count(), __libc_realloc(old, size); }
void* memalign(std::size_t alignment, std::size_t size) { return count(), __libc_memalign(alignment, size); }
void* aligned_alloc(std::size_t alignment, std::size_t size) { return count(), __libc_memalign(alignment, size); }
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  *out = (count(), __libc_memalign(alignment, size));
  return *out ? 0 : ENOMEM;
}
void free(void* memory) { __libc_free(memory); }
}

namespace {

constexpr std::size_t kSets = 4;

void must(fc_status status) {
  if (status == FC_OK) return;
  std::fprintf(stderr, "%s\n", fc_last_error());
  std::exit(1);
}

// Of launches that go round `sets` sets of addresses, after each has had its first.
long allocations(fc_context context, const char* id, std::size_t sets) {
  fc_attention p = FC_ATTENTION_INIT;
  must(fc_problem_parse(id, &p));
  fc_plan plan = nullptr;
  must(fc_plan_create(context, &p, &plan));
  const auto rows = static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q * p.head_dim);
  const auto keys = static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_kv * p.head_dim);
  std::vector<std::array<std::vector<float>, 4>> tensors(sets);
  for (auto& t : tensors)
    t = {std::vector<float>(rows), std::vector<float>(keys), std::vector<float>(keys), std::vector<float>(rows)};
  const auto round = [&] {
    for (auto& t : tensors)
      must(fc_plan_launch(plan, t[0].data(), t[1].data(), t[2].data(), t[3].data(), nullptr, nullptr));
  };
  round();
  g_allocations = 0;
  g_counting = true;
  for (int i = 0; i < 20; ++i) round();
  g_counting = false;
  must(fc_plan_destroy(plan));
  return g_allocations;
}

}  // namespace

int main() {
  fc_context context = nullptr;
  must(fc_context_create("cpu", &context));
  int failures = 0;
  for (const char* id : {"b1_h8_hk2_sq1_sk512_d64_fp32", "b1_h4_s256_d64_fp32_causal"}) {
    const long repeated = allocations(context, id, 1), changing = allocations(context, id, kSets);
    std::printf("%s: %ld allocations on the same addresses, %ld on %zu sets in turn\n", id, repeated, changing, kSets);
    failures += repeated != 0 || changing != 0;
  }
  // The counter counts: launches on more sets of addresses than a plan keeps working memory for do allocate.
  if (allocations(context, "b1_h1_sq1_sk64_d64_fp32", 64) == 0) {
    std::printf("launches on 64 sets of addresses allocated nothing: is the allocator still this program's?\n");
    ++failures;
  }
  must(fc_context_destroy(context));
  return failures == 0 ? 0 : 1;
}
