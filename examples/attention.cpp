// Attention from C++ on the CPU: a context, a plan, spans. Exits with 0 if the result is right.
//
//   c++ -std=c++20 attention.cpp $(pkg-config --cflags --libs flashcore) && ./a.out
#include <cmath>
#include <cstdio>
#include <flashcore/flashcore.hpp>
#include <vector>

int main() {
  try {
    const flashcore::Context cpu("cpu");
    const flashcore::Plan plan(
        cpu, {.dtype = FC_FP32, .heads_q = 8, .heads_kv = 2, .seqlen_q = 64, .seqlen_kv = 64, .head_dim = 32});
    // Equal values: whatever the weights, every output is that value.
    const std::vector<float> q(8 * 64 * 32, 0.5f), k(2 * 64 * 32, 0.25f), v(2 * 64 * 32, 3.0f);
    std::vector<float> o(q.size()), lse(8 * 64);
    plan.run<float>(q, k, v, o, lse);
    std::printf("%s\no[0] = %g, lse[0] = %g\n", plan.describe().c_str(), o[0], lse[0]);
    return std::fabs(o[0] - 3.0f) < 1e-5f ? 0 : 1;
  } catch (const flashcore::Error& error) {
    std::fprintf(stderr, "flashcore: %s\n", error.what());
    return 1;
  }
}
