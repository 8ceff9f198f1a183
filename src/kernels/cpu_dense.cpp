#include "kernels/cpu_dense.h"

#include <algorithm>
#include <string_view>

#include "device/cpu/cpu_threads.h"

namespace flashcore {
namespace {

// Of one core of a common server, on the low side: a launch that is over sooner gains less from another thread than
// waking it costs (5 to 10 us, and as much again until its last part is waited for).
constexpr double kFlopsPerUs = 30e3, kPackedElementsPerUs = 3e3, kLeastUsOfAThread = 25;

bool names_its_threads(const Family& family, const ConfigValues& config) {
  const auto& fields = family.space().fields();
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (std::string_view(fields[i].name) == "threads") return config[i] != 0;
  return false;
}

int limit_of(const Family& family, const ConfigValues& config, const Problem& problem) {
  return names_its_threads(family, config) ? 0 : worthwhile_threads(problem, cpu_threads());
}

}  // namespace

int worthwhile_threads(const Problem& problem, int most) {
  const double packed = static_cast<double>(problem.batch * problem.heads_kv * problem.seqlen_kv *
                                            (problem.head_dim + problem.head_dim_v));
  // Counting what a mask function shows takes longer than a launch, and the lengths of a ragged batch are new at each.
  const double flops = problem.has_mask_expression() ? problem.without_expressions().flops() : problem.flops();
  const double work_us = flops / kFlopsPerUs + packed / kPackedElementsPerUs;
  return static_cast<int>(std::clamp(work_us / kLeastUsOfAThread, 1.0, static_cast<double>(std::max(most, 1))));
}

Launch bind_dense_on_cpu(const Family& family, const ConfigValues& config, const Problem& problem,
                         const AttentionArgs& args) {
  const int limit = limit_of(family, config, problem);
  const ThreadLimit while_bound(limit);
  return [limit, launch = family.cpu_launch(config, problem, args)] {
    const ThreadLimit while_launched(limit);
    launch();
  };
}

}  // namespace flashcore
