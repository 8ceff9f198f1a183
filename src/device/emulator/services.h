#pragma once
// What compiled device code calls. Read by the engine and, beside the emulator's ptx/ headers, by the host compiler at
// run time, so it includes nothing. Each function finds the calling GPU thread by itself, and the source line by its
// own return address: ptx/ functions are inlined into the kernel, so the address stands for the whole chain of calls.

namespace flashcore::emulator {

// Of a matrix instruction's operands a and b. 16 bits: k is 16; 8 bits: k is 32. kE4m3ByE5m2: a of e4m3, b of e5m2.
enum class MatrixElement : int { kF16, kBf16, kE4m3, kE5m2, kE4m3ByE5m2 };

// The operands of one lane; results are written back through them.
struct MmaOperands {
  float* d;           // 4
  const unsigned* a;  // 4
  unsigned b0, b1;
};

// One lane's part of wgmma m64nNk16 or m64nNk32. `a` null: operand A comes through `descriptor_a`.
struct WgmmaOperands {
  float* d;           // n / 2
  const unsigned* a;  // 4, or null
  unsigned long long descriptor_a, descriptor_b;
  int n;
  MatrixElement element;
  bool transpose_b, accumulate;
};

struct Services {
  // Special registers; `dimension` 0, 1, 2 for x, y, z.
  int (*tid)(int dimension);
  int (*ctaid)(int dimension);
  int (*nctaid)(int dimension);

  // Memory. `bytes` a power of two up to 16.
  void (*load_global)(const void* address, void* value, int bytes);
  void (*store_global)(void* address, const void* value, int bytes);
  unsigned (*shared_base)();
  void (*load_shared)(unsigned address, void* value, int bytes);
  void (*store_shared)(unsigned address, const void* value, int bytes);

  // cp.async and its groups.
  void (*cp_async)(unsigned destination, const void* source, int source_bytes);
  void (*cp_async_commit)();
  void (*cp_async_wait)(int pending);

  // The whole warp takes part.
  void (*ldmatrix)(unsigned* tiles, int count, unsigned row, bool transposed);
  void (*mma_sync)(const MmaOperands& operands, MatrixElement element);
  unsigned (*shuffle_xor)(unsigned value, int mask);
  void (*bar_warp_sync)();

  void (*stmatrix)(unsigned row, const unsigned* tiles, int count, bool transposed);
  unsigned (*shuffle_index)(unsigned value, int source);
  unsigned (*shuffle_by)(unsigned value, int delta);
  bool (*vote_any)(bool condition);
  unsigned (*vote_ballot)(bool condition);
  bool (*elect)();
  void (*setmaxnreg)(int registers, bool increase);

  // The CTA takes part. `threads` 0: all of it.
  void (*bar_sync)(int barrier, int threads);
  void (*bar_arrive)(int barrier, int threads);

  // Barriers in shared memory.
  void (*mbarrier_init)(unsigned barrier, int arrivals);
  void (*mbarrier_arrive)(unsigned barrier, int expect_bytes);
  bool (*mbarrier_try_wait)(unsigned barrier, int parity);
  void (*mbarrier_wait)(unsigned barrier, int parity);
  void (*fence_mbarrier_init)();
  void (*fence_proxy_async)();

  void (*mbarrier_wait_cluster)(unsigned barrier, int parity);

  // Clusters. Addresses of mapa tell the CTA's rank in their upper bits.
  int (*cluster_ctarank)();
  unsigned (*mapa)(unsigned address, int rank);
  void (*cluster_arrive)(bool release);
  void (*cluster_wait)();
  void (*st_async)(unsigned remote, const void* value, int bytes, unsigned remote_barrier);
  void (*load_cluster)(unsigned remote, void* value, int bytes);
  void (*store_cluster)(unsigned remote, const void* value, int bytes);
  void (*mbarrier_arrive_cluster)(unsigned remote_barrier);
  void (*mbarrier_arrive_cluster_relaxed)(unsigned remote_barrier);
  void (*griddepcontrol_wait)();
  void (*griddepcontrol_launch_dependents)();

  // Tensor memory accelerator; `map` as the emulator encoded it. Coordinates: column, row, head, batch.
  void (*tma_prefetch)(const void* map);
  void (*tma_load)(unsigned destination, const void* map, unsigned barrier, const int (&at)[4]);
  void (*tma_load_multicast)(unsigned destination, const void* map, unsigned barrier, const int (&at)[4],
                             unsigned ctas);
  void (*tma_store)(const void* map, unsigned source, const int (&at)[4]);
  void (*bulk_load)(unsigned destination, const void* source, int bytes, unsigned barrier);
  void (*bulk_store)(void* destination, unsigned source, int bytes);
  void (*bulk_commit)();
  void (*bulk_wait_read)(int pending);
  void (*bulk_wait)(int pending);

  // The warpgroup takes part.
  void (*wgmma)(const WgmmaOperands& operands);
  void (*wgmma_fence)();
  void (*wgmma_commit)();
  void (*wgmma_wait)(int pending);

  unsigned (*atomic_add_global)(unsigned* address, unsigned value);
  unsigned (*atomic_add_global_acq_rel)(unsigned* address, unsigned value);
  float (*atomic_add_global_f32)(float* address, float value);
  unsigned (*atomic_max_global)(unsigned* address, unsigned value);
  unsigned (*atomic_add_shared_u32)(unsigned address, unsigned value);
  float (*atomic_add_shared_f32)(unsigned address, float value);
  unsigned long long (*globaltimer)();
  unsigned long long (*steps)();  // the thread's clock: takes no step itself
  int (*warps)();                 // of a CTA

  float (*ex2)(float x);
  float (*lg2)(float x);
};

}  // namespace flashcore::emulator
