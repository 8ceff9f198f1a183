#pragma once
// Micro-tests of loads, stores, copies, matrix loads and atomics.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory_bytes.cuh"
#include "kernels/ptx/movmatrix.cuh"

namespace flashcore::conformance {

// Every way into global memory and out of it; the loads' bits are any.
struct GlobalMemory {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const auto* in = static_cast<const unsigned*>(p.in) + kRawWords;
    ptx::st_global_f32(reinterpret_cast<float*>(p.out) + t,
                       ptx::ld_global_f32(static_cast<const float*>(p.in) + 64 + 5 * t));
    auto* halves = reinterpret_cast<unsigned short*>(p.out + kThreads);
    for (int i = 0; i < 2; ++i) {
      ptx::st_global_u16(halves + 2 * t + i,
                         ptx::ld_global_u16(reinterpret_cast<const unsigned short*>(in) + 3 * t + i));
    }
    ptx::st_global_u32(p.out + 2 * kThreads + t, static_cast<unsigned>(t) * 0x01234567u);
    ptx::st_global_v4(p.out + 3 * kThreads + 4 * t,
                      {word(p, kRawWords + t), static_cast<unsigned>(t), word(p, kRawWords + 2 * t), 0x89abcdefu});
  }
};
struct GlobalBytes {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const auto* in = static_cast<const unsigned char*>(p.in) + 4 * kRawWords;
    auto* out = reinterpret_cast<unsigned char*>(p.out) + 4 * t;
    for (int i = 0; i < 4; ++i) ptx::st_global_u8(out + i, ptx::ld_global_u8(in + 5 * t + i) + 0x100u * t);
  }
};
struct SharedMemory {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress shared = ptx::dynamic_shared();
    for (int i = 0; i < 4; ++i) ptx::st_shared_u32(shared + 16 * t + 4 * i, word(p, kRawWords + 4 * t + i));
    ptx::bar_sync();
    const int other = ptx::opaque(t) ^ 37;
    ptx::st_global_v4(p.out + 4 * t, ptx::ld_shared_v4(shared + 16 * other));
    give(p, 4 * kThreads + t, ptx::ld_shared_u32(shared + 4 * other));
    ptx::bar_sync();
    const float value = number(p, 64 + t);
    ptx::st_shared_v4(shared + 16 * t, value, 1.0f, -value, static_cast<float>(t));
    ptx::bar_sync();
    ptx::st_global_v4(p.out + 6 * kThreads + 4 * t, ptx::ld_shared_v4(shared + 16 * other));
    // Kernels count on this alignment: the swizzle follows the address.
    give(p, 5 * kThreads + t, shared % 1024);
  }
};
struct SpecialRegisters {
  FC_DEVICE static void run(const Arguments& p) {
    const int cta = (ptx::ctaid_z() * kGridY + ptx::ctaid_y()) * kGridX + ptx::ctaid_x();
    give(p, cta * kThreads + ptx::tid_x(),
         static_cast<unsigned>(ptx::tid_x() + 1000 * cta + 1000000 * (ptx::nctaid_x() + 10 * ptx::nctaid_z())));
  }
};
// Every number is handed out once, whatever the order.
struct Atomics {
  FC_DEVICE static void run(const Arguments& p) {
    const unsigned before = ptx::atomic_add_global(p.out, 3);
    give(p, 1 + static_cast<int>(before / 3), 7 + before % 3);
  }
};
struct CpAsync {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress own = ptx::dynamic_shared() + 32 * t;
    const auto* from = static_cast<const unsigned*>(p.in) + kRawWords + 4 * t;
    ptx::cp_async_16(own, from, t % 3 == 0 ? 0 : 16);
    ptx::cp_async_commit();
    ptx::cp_async_16(own + 16, from, 16);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    ptx::st_global_v4(p.out + 8 * t, ptx::ld_shared_v4(own));
    ptx::cp_async_wait<0>();
    ptx::bar_sync();
    ptx::st_global_v4(p.out + 8 * t + 4, ptx::ld_shared_v4(ptx::dynamic_shared() + 32 * (t ^ 64) + 16));
  }
};
template <bool kTransposed>
struct Ldmatrix {
  FC_DEVICE static void run(const Arguments& p) {
    fill_shared<false>(p, 1024);
    const int t = thread(), lane = t % 32;
    unsigned tiles[4];
    const ptx::SharedAddress row = ptx::dynamic_shared() + t / 32 * 512 + (lane * 5 % 32) * 16;
    if constexpr (kTransposed) ptx::ldmatrix_x4_trans(tiles, row);
    else ptx::ldmatrix_x4(tiles, row);
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, tiles[i]);
  }
};
struct Movmatrix {
  FC_DEVICE static void run(const Arguments& p) { give(p, thread(), ptx::movmatrix_trans(pair<false>(p, thread()))); }
};
struct Stmatrix {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread(), lane = t % 32;
    ptx::stmatrix_x4(ptx::dynamic_shared() + t / 32 * 512 + (lane * 5 % 32) * 16, pair<false>(p, 4 * t),
                     pair<false>(p, 4 * t + 1), pair<false>(p, 4 * t + 2), pair<false>(p, 4 * t + 3));
    ptx::bar_sync();
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, ptx::ld_shared_u32(ptx::dynamic_shared() + 16 * t + 4 * i));
  }
};

}  // namespace flashcore::conformance
