#pragma once
// Micro-tests of clusters and of programmatic dependent launch.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/griddepcontrol.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace flashcore::conformance {

// Every CTA of the cluster sends to the next and to itself, two phases of a barrier each.
struct Cluster {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread(), rank = ptx::cluster_ctarank(), next = (rank + 1) % kClusterCtas;
    const ptx::SharedAddress barrier = ptx::dynamic_shared(), data = barrier + 1024;
    constexpr int kBytes = 16 * kThreads;
    if (t == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
    for (int phase = 0; phase < 2; ++phase) {
      if (t == 0) ptx::mbarrier_arrive_expect_tx(barrier, 2 * kBytes);
      const float value = number(p, 100 + 16 * t + 4 * rank + phase);
      for (int to = rank;; to = next) {
        ptx::st_async_v4(ptx::mapa(data + (to == rank ? kBytes : 0) + 16 * t, to), value, static_cast<float>(rank),
                         static_cast<float>(to), static_cast<float>(t), ptx::mapa(barrier, to));
        if (to == next) break;
      }
      ptx::mbarrier_wait_cluster(barrier, phase);
      for (int part = 0; part < 2; ++part) {
        ptx::st_global_v4(p.out + 4 * (((phase * kClusterCtas + rank) * 2 + part) * kThreads + t),
                          ptx::ld_shared_v4(data + part * kBytes + 16 * (t ^ 5)));
      }
      // Nobody sends again before all have read.
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
  }
};
// That both return; what they order cannot be seen in one launch.
struct Griddepcontrol {
  FC_DEVICE static void run(const Arguments& p) {
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    give(p, thread(), static_cast<unsigned>(thread() + 9));
  }
};

}  // namespace flashcore::conformance
