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
void ldmatrix(unsigned (&tiles)[4], unsigned row, bool transposed);
void mma_m16n8k16(const MmaOperands& operands, bool bf16);
unsigned shuffle_xor(unsigned value, int mask);
void bar_warp_sync();

// Named barriers (barrier_instructions.cpp).
void bar_sync(int barrier, int threads);
void bar_arrive(int barrier, int threads);

float ex2(float x);
float lg2(float x);

}  // namespace flashcore::emulator
