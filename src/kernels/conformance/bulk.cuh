#pragma once
// Micro-tests of bulk copies, multicast and plain accesses to the shared memory of other CTAs.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/distributed_shared.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace flashcore::conformance {

// Two lines of bytes in; changed by the threads; out again.
struct Bulk {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress data = ptx::dynamic_shared(), barrier = data + 8192;
    const auto* from = static_cast<const unsigned*>(p.in) + kRawWords;
    if (t == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, 2048 + 16);
      ptx::bulk_load(data, from + 4, 2048, barrier);
      ptx::bulk_load(data + 2048, from + 1000, 16, barrier);
    }
    ptx::bar_sync();
    ptx::mbarrier_wait(barrier, 0);
    for (int i = t; i < 516; i += kThreads) ptx::st_shared_u32(data + 4 * i, ptx::ld_shared_u32(data + 4 * i) + 1);
    ptx::fence_proxy_async();
    ptx::bar_sync();
    if (t == 0) {
      ptx::bulk_store(p.out, data + 16, 2048);
      ptx::bulk_commit();
      ptx::bulk_store(p.out + 516, data, 32);
      ptx::bulk_commit();
      ptx::bulk_wait<0>();
    }
  }
};

// Every CTA sends a box to all and one to the CTAs of odd rank.
struct Multicast {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread(), rank = ptx::cluster_ctarank();
    const ptx::SharedAddress data = ptx::dynamic_shared(), barrier = data + 32768;
    constexpr int kBox = 2048;
    const int boxes = kClusterCtas * (rank % 2 == 1 ? 2 : 1);
    if (t == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, boxes * kBox);
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (t == 0) {
      ptx::tma_load_4d_multicast(data + rank * kBox, p.map_in, barrier, 0, 4 * rank, 1, 0, 15);
      ptx::tma_load_4d_multicast(data + (4 + rank) * kBox, p.map_in, barrier, 0, 3 * rank, 0, 0, 10);
    }
    ptx::mbarrier_wait_cluster(barrier, 0);
    for (int i = t; i < boxes * kBox / 4; i += kThreads) give(p, rank * 4096 + i, ptx::ld_shared_u32(data + 4 * i));
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
};

// Every CTA writes to the next, which waits for it; then reads what the one after has.
struct DistributedShared {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread(), rank = ptx::cluster_ctarank(), next = (rank + 1) % kClusterCtas;
    const ptx::SharedAddress barrier = ptx::dynamic_shared(), data = barrier + 1024;
    if (t == 0) {
      ptx::mbarrier_init(barrier, kThreads);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    ptx::st_cluster_u32(ptx::mapa(data + 4 * t, next), static_cast<unsigned>(1000 * rank + t));
    ptx::st_cluster_v4(ptx::mapa(data + 1024 + 16 * t, next), number(p, 300 + t), static_cast<float>(rank), -1.0f,
                       static_cast<float>(t));
    ptx::mbarrier_arrive_cluster(ptx::mapa(barrier, next));
    ptx::mbarrier_wait_cluster(barrier, 0);
    const int at = rank * 8 * kThreads + t;
    give(p, at, ptx::ld_shared_u32(data + 4 * (t ^ 77)));
    const ptx::Vector4 four = ptx::ld_shared_v4(data + 1024 + 16 * (t ^ 77));
    give(p, at + kThreads, four.x);
    give(p, at + 2 * kThreads, four.y);
    give(p, at + 3 * kThreads, four.w);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    give(p, at + 4 * kThreads, ptx::ld_cluster_u32(ptx::mapa(data + 4 * t, next)));
    give(p, at + 5 * kThreads, ptx::ld_cluster_f32(ptx::mapa(data + 1024 + 16 * t, (rank + 2) % kClusterCtas)));
    ptx::mbarrier_arrive_cluster_relaxed(ptx::mapa(barrier, next));
    ptx::mbarrier_wait(barrier, 1);
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
};

}  // namespace flashcore::conformance
