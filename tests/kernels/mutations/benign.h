#pragma once
// Changes that alter no result and no order: all checks pass them.

#include "kernels/mutations/mutation.h"

namespace flashcore::testing {

inline std::vector<Mutation> mutations_of_benign() {
  using namespace mutated;
  return {
      {"sm90_no_prefetch", kSm90, kCausal, kK90, "ptx::prefetch_tensormap(params.q);", "", "",
       "a prefetch only warms a cache"},
      {"short_start_barrier_before_cluster_barrier", kShort, kCausal, kKShort,
       "ptx::bar_sync();\n    // All of the cluster", "// All of the cluster", "",
       "the cluster's barrier, which follows, is of this CTA's threads too and hands on the fenced inits; who reads "
       "what "
       "was loaded or stores to O comes after an mbarrier of the thread that executed griddepcontrol.wait"},
  };
}

}  // namespace flashcore::testing
