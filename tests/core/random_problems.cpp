// random_problems COUNT SEED: problems as the fuzzer draws them, one a line, for tests in Python: ids, or JSON where
// they have functions of their own.
#include <cstdio>
#include <cstdlib>

#include "core/operands.h"
#include "core/problem_fields.h"

int main(int argc, char** argv) {
  if (argc != 3) return 3;
  flashcore::Draws draws(std::strtoull(argv[2], nullptr, 10));
  for (long i = std::strtol(argv[1], nullptr, 10); i > 0; --i)
    std::puts(flashcore::PlacedProblem(random_problem(draws), flashcore::Layout::kBhsd).portable().c_str());
}
