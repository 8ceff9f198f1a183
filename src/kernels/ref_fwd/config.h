#pragma once
// Tunables of ref_fwd. Host and kernel both read this file.

#include "kernels/tile/traits.h"

namespace flashcore::ref_fwd {

struct Config {
  int num_warps = 4;  // warps of a CTA; each computes one query row

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("num_warps", &Config::num_warps, 1, 2, 4, 8);
  }
};

constexpr int kMaxHeadDim = 1024;  // 32 lanes × 32 registers, for q and again for o

constexpr int threads_per_block(const Config& c) { return c.num_warps * 32; }
constexpr int smem_bytes(const Config&, const Traits&) { return 0; }

constexpr const char* why_invalid(const Config&, const Traits& t, const Limits&) {
  if (t.head_dim > kMaxHeadDim || t.head_dim_v > kMaxHeadDim)
    return "head dims above 1024 do not fit one warp's registers";
  return nullptr;
}

}  // namespace flashcore::ref_fwd
