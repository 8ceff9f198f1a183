#pragma once
// PTX ISA, "Parallel Synchronization and Communication Instructions".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// bar.sync 0: every thread of the CTA; orders their shared-memory accesses.
FC_DEVICE void bar_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// bar.warp.sync over the full warp: orders its lanes' shared-memory accesses.
FC_DEVICE void bar_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

}  // namespace flashcore::ptx
