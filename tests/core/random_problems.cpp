// random_problems COUNT SEED: problems as the fuzzer draws them, one a line, for tests that say a problem in another
// language and ask the library on a CPU what it understood: ids, or JSON where they have functions of their own.
#include <cstdio>
#include <cstdlib>

#include "core/operands.h"
#include "core/problem_fields.h"

namespace {

// A plan says what the library understood, and wider heads have none on a CPU: cpu_fwd's most.
constexpr std::int64_t kColumns = 256;

bool has_a_plan(const flashcore::Problem& p) { return p.head_dim <= kColumns && p.head_dim_v <= kColumns; }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 3;
  flashcore::Draws draws(std::strtoull(argv[2], nullptr, 10));
  for (long i = std::strtol(argv[1], nullptr, 10); i > 0;) {
    const flashcore::Problem problem = random_problem(draws);
    if (!has_a_plan(problem)) continue;
    std::puts(flashcore::PlacedProblem(problem, flashcore::Layout::kBhsd).portable().c_str());
    --i;
  }
}
