#pragma once
// Micro-tests of ptx/math.cuh and ptx/prmt.cuh.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/prmt.cuh"

namespace flashcore::conformance {

struct Ex2 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::ex2(number(p, i)); });
  }
};
struct Lg2 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::lg2(number(p, i)); });
  }
};
struct Rcp {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::rcp(number(p, i)); });
  }
};
struct Fma {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) {
      return ptx::fma(number(p, i), number(p, (i + 1) % kRegionWords), number(p, (i + 7) % kRegionWords));
    });
  }
};
struct Max {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::max(number(p, i), number(p, (i + 5) % kRegionWords)); });
  }
};
struct MaxU16x2 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::max_u16x2(word(p, i), word(p, (i + 5) % kRegionWords)); });
  }
};
struct Prmt {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) {
      return ptx::prmt(word(p, i), word(p, (i + 5) % kRegionWords), word(p, (i + 7) % kRegionWords) >> 11);
    });
  }
};
struct ToF16 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::cvt_f16x2(number(p, i), number(p, (i + 1) % kRegionWords)); });
  }
};
struct SubF16 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::sub_f16x2(word(p, i), word(p, (i + 5) % kRegionWords)); });
  }
};
struct ToBf16 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::cvt_bf16x2(number(p, i), number(p, (i + 1) % kRegionWords)); });
  }
};
struct Constants {
  FC_DEVICE static void run(const Arguments& p) {
    give(p, thread(), ptx::negative_infinity());
    give(p, kThreads + thread(), ptx::float_of_bits(word(p, kRawWords + thread())));
  }
};
// Every bit pattern.
struct FromF16 {
  FC_DEVICE static void run(const Arguments& p) {
    for (int i = thread(); i < 65536; i += kThreads) give(p, i, ptx::cvt_f32_f16(static_cast<unsigned short>(i)));
  }
};
struct FromBf16 {
  FC_DEVICE static void run(const Arguments& p) {
    for (int i = thread(); i < 65536; i += kThreads) give(p, i, ptx::cvt_f32_bf16(static_cast<unsigned short>(i)));
  }
};

}  // namespace flashcore::conformance
