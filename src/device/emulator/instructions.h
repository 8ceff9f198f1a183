#pragma once
// One function per service (services.h). Called on a fiber, straight from kernel code: FC_EMULATOR_SITE is the line.

#include "device/emulator/execution.h"
#include "device/emulator/services.h"

namespace flashcore::emulator {

// Special registers.
int tid(int dimension);
int ctaid(int dimension);
int nctaid(int dimension);

// Memory (memory_instructions.cpp).
void load_global(const void* address, void* value, int bytes);
void store_global(void* address, const void* value, int bytes);
unsigned shared_base();
void load_shared(unsigned address, void* value, int bytes);
void store_shared(unsigned address, const void* value, int bytes);
void cp_async(unsigned destination, const void* source, int source_bytes);
void cp_async_commit();
void cp_async_wait(int pending);

// Whole warp (warp_instructions.cpp).
void ldmatrix(unsigned* tiles, int count, unsigned row, bool transposed);
void mma_sync(const MmaOperands& operands, MatrixElement element);
unsigned shuffle_xor(unsigned value, int mask);
void bar_warp_sync();
void stmatrix(unsigned row, const unsigned* tiles, int count, bool transposed);
unsigned shuffle_index(unsigned value, int source);
unsigned shuffle_by(unsigned value, int delta);
bool vote_any(bool condition);
unsigned vote_ballot(bool condition);
bool elect();

// Named barriers (barrier_instructions.cpp).
void bar_sync(int barrier, int threads);
void bar_arrive(int barrier, int threads);

// .aligned: the lanes of a warp come to the same instruction. `slot` of Warp::aligned.
void check_aligned(Cluster& cluster, std::size_t slot, const std::string& name, const void* site);

// Clusters (cluster_instructions.cpp).
int cluster_ctarank();
unsigned mapa(unsigned address, int rank);
void cluster_arrive(bool release);
void cluster_wait();
void st_async(unsigned remote, const void* value, int bytes, unsigned remote_barrier);
void load_cluster(unsigned remote, void* value, int bytes);
void store_cluster(unsigned remote, const void* value, int bytes);
void mbarrier_arrive_cluster(unsigned remote_barrier);
void mbarrier_arrive_cluster_relaxed(unsigned remote_barrier);
// Access by the running thread to the shared memory of `target`: a fault unless that is known to have started and has
// not ended.
void check_peer(Cluster& cluster, const Cta& target, const char* action, const void* site);
// The target must not end before this access.
void remember_remote(Cta& target, const Access& access);
// Every thread calls it when it returns from the kernel: others may no longer touch its CTA's shared memory once all
// have.
void leave_cluster(Thread& thread);

// Programmatic dependent launch (cluster_instructions.cpp).
void griddepcontrol_wait();
void griddepcontrol_launch_dependents();
// A global access by the running thread: a fault if the launch before may still write there.
void check_launch_before(Cluster& cluster, const void* site);

// Registers (setmaxnreg.cpp).
void setmaxnreg(int registers, bool increase);

// Barriers in shared memory and proxy fences (mbarrier_instructions.cpp).
void mbarrier_init(unsigned barrier, int arrivals);
void mbarrier_arrive(unsigned barrier, int expect_bytes);
// An arrival of the running thread, in its CTA or another.
// `releases`: whoever waits must acquire at the scope of the cluster if it comes from another CTA.
void arrive_at(Cluster& cluster, Cta& cta, unsigned barrier, int expect_bytes, const void* site, bool releases = true);
bool mbarrier_try_wait(unsigned barrier, int parity);
void mbarrier_wait(unsigned barrier, int parity);
void mbarrier_wait_cluster(unsigned barrier, int parity);
void fence_mbarrier_init();
void fence_proxy_async();
// Of a copy that has landed.
void complete_bytes(Cluster& cluster, Cta& cta, unsigned barrier, int bytes, std::uint32_t phase, const void* site);
// An mbarrier that the running thread may use, in its CTA or another; a fault if there is none.
MBarrier& find_mbarrier(Cluster& cluster, Cta& cta, unsigned address, const char* action, const void* site);
// The barrier that a copy by the running thread may complete on; a fault if there is none.
MBarrier& mbarrier_of_copy(Cluster& cluster, Cta& cta, unsigned barrier, const void* site);

// Tensor memory accelerator (tma_instructions.cpp).
void tma_prefetch(const void* map);
void tma_load(unsigned destination, const void* map, unsigned barrier, const int (&at)[4]);
void tma_load_multicast(unsigned destination, const void* map, unsigned barrier, const int (&at)[4], unsigned ctas);
void tma_store(const void* map, unsigned source, const int (&at)[4]);
void bulk_load(unsigned destination, const void* source, int bytes, unsigned barrier);
void bulk_store(void* destination, unsigned source, int bytes);
void bulk_commit();
void bulk_wait_read(int pending);
void bulk_wait(int pending);
// Every thread calls it when it returns from the kernel: nothing of its may still read shared memory.
void thread_returns(Thread& thread);

// Warpgroup (wgmma_instructions.cpp).
void wgmma(const WgmmaOperands& operands);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending);

unsigned atomic_add_global(unsigned* address, unsigned value);
unsigned atomic_add_global_acq_rel(unsigned* address, unsigned value);
float atomic_add_global_f32(float* address, float value);
unsigned atomic_max_global(unsigned* address, unsigned value);
unsigned atomic_add_shared_u32(unsigned address, unsigned value);
float atomic_add_shared_f32(unsigned address, float value);
unsigned long long globaltimer();
unsigned long long steps();
int warps();

// What the device writes for a TensorMapSpec, into the 128 bytes of a tensor map.
void encode_tensor_map(const TensorMapSpec& map, std::byte* to);

// A read of global memory that an asynchronous copy makes for the running thread, as `access`: bounds, alignment and
// races.
void check_global_read(Cluster& cluster, const void* address, int bytes, int alignment, const Access& access,
                       const void* site);
// A global write by the running thread or by a bulk store that it starts, as `access`: bounds, alignment and races.
void check_global_store(Cluster& cluster, void* address, int bytes, const Access& access, const void* site);

float ex2(float x);
float lg2(float x);

}  // namespace flashcore::emulator
