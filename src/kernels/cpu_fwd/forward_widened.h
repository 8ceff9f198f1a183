#pragma once
// Operands of 8 bits on the CPU, a quantised cache's too: q, k and v are converted to fp32, with their factors, and
// computed as such.

#include "kernels/cpu_fwd/forward.h"

namespace flashcore::cpu_fwd {

class WidenedForward {
 public:
  WidenedForward(const Config& config, const Problem& problem, const AttentionArgs& args);
  void operator()();

 private:
  // A tensor of the call beside its copy in fp32.
  struct Converted {
    const void* stored = nullptr;
    DType dtype = DType::kF32;
    TensorLayout stored_layout, layout;
    AlignedMemory values;
    const float* descales = nullptr;
    Scaling scaling = Scaling::kNone;
    std::int64_t heads_per_factor = 1;
    bool transposed = false;  // its rows are the copy's columns
  };
  static Converted make_copy(const void* stored, DType dtype, const TensorLayout& layout, const float* descales,
                             Scaling scaling, std::int64_t heads_per_factor, bool transposed = false);
  // Calls body(batch, head, row) for all rows of a tensor on the pool's threads.
  template <class Body>
  void for_each_row(const TensorLayout& layout, const Body& body) const;
  void load(const Converted& from) const;
  void store() const;

  Problem problem_;
  AttentionArgs args_;
  Converted q_, k_, v_, o_;
  Forward forward_;
};

}  // namespace flashcore::cpu_fwd
