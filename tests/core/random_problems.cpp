// random_problems COUNT SEED: ids of problems as the fuzzer draws them, one a line, for tests in Python.
#include <cstdio>
#include <cstdlib>

#include "core/problem_fields.h"

int main(int argc, char** argv) {
  if (argc != 3) return 3;
  flashcore::Draws draws(std::strtoull(argv[2], nullptr, 10));
  for (long i = std::strtol(argv[1], nullptr, 10); i > 0; --i) std::puts(random_problem(draws).id().c_str());
}
