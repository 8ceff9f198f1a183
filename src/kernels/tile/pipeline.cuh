#pragma once
// Rings of stages in shared memory, the barriers that hand them on, and addresses of what lies there.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/special_registers.cuh"

namespace flashcore::tile {

// A barrier in a SharedStorage struct.
struct Barrier {
  unsigned long long word;
};

// In a struct with `shared` and `Storage`: the address of element i of a member that is an array, or (i, j) of one of
// arrays.
#define FC_SHARED_ADDRESS(member)                                                                     \
  FC_DEVICE ptx::SharedAddress member(int i = 0) const {                                              \
    return shared + FC_OFFSET_OF(Storage, member) + i * static_cast<int>(sizeof(Storage::member[0])); \
  }
#define FC_SHARED_ADDRESS_2D(member)                                                                                  \
  FC_DEVICE ptx::SharedAddress member(int i, int j) const {                                                           \
    constexpr int kRow = sizeof(Storage::member[0]) / sizeof(Storage::member[0][0]);                                  \
    return shared + FC_OFFSET_OF(Storage, member) + (i * kRow + j) * static_cast<int>(sizeof(Storage::member[0][0])); \
  }

// Position in a ring as the number of items passed: one register, where a stage and a parity would be two.
template <int kStages>
struct Ring {
  unsigned count = 0;
  FC_DEVICE int stage() const { return static_cast<int>(ptx::opaque(count) % kStages); }
  // Of the phase that a reader waits for. An empty barrier starts as if its previous phase had ended: writers wait for
  // the opposite parity.
  FC_DEVICE int parity() const { return static_cast<int>(ptx::opaque(count) / kStages % 2); }
  FC_DEVICE void advance() { ++count; }
};

// The barriers of a ring: a stage is filled by one thread (or `fillers`), whose bytes count too, and emptied by so many
// arrivals.
FC_DEVICE void init_stage(ptx::SharedAddress full, ptx::SharedAddress empty, int arrivals, int fillers = 1) {
  ptx::mbarrier_init(full, fillers), ptx::mbarrier_init(empty, arrivals);
}

// One arrival for the warp.
FC_DEVICE void arrive_for_warp(ptx::SharedAddress barrier) {
  if (ptx::tid_x() % 32 == 0) ptx::mbarrier_arrive(barrier);
}

}  // namespace flashcore::tile
