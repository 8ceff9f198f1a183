#pragma once
// Score and mask functions of the user's own, in fp32: a tree that is gone through operation by operation, each for
// many keys of a row side by side.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/band.h"
#include "core/expression_range.h"
#include "core/expression_value.h"
#include "kernels/family.h"

namespace flashcore::cpu_fwd {

class Functions {
 public:
  Functions(const Problem& problem, const AttentionArgs& args, int block_m, int block_n);

  bool has_score() const { return score_.has_value(); }
  bool has_mask() const { return mask_.has_value(); }
  // What a calling thread has to hand over.
  std::size_t scratch_floats() const;

  // Scores of the keys at.j, at.j + 1, ... of a row, in natural units.
  void scores(const ExpressionPoint& at, float* scores, int count, float* scratch) const;
  // Those of hidden keys become -inf.
  void hide(const ExpressionPoint& at, float* scores, int count, float* scratch) const;
  bool shows(const ExpressionPoint& at, float* scratch) const;
  // What the mask is to these rows of every head and keys, as far as the text alone says.
  BlockUse use_of(std::int64_t first_row, std::int64_t last_row, int key_begin, int key_end) const;

 private:
  static constexpr int kLanes = 128;
  // One operation. A value is kLanes numbers: floats, ints, or ints that are 0 or 1.
  struct Step {
    ExpressionNode node;
    bool varies;        // with the key or the score
    ExpressionType of;  // what its first argument is
    int key_index;      // of an element: the index that alone varies, and is the key; else -1
  };
  struct Code {
    std::vector<Step> steps;
    std::vector<int> tensors;  // Problem::tensors, by the expression's own numbers
    int root = 0;
  };
  Code code_of(const Expression& expression) const;
  void run(const Code& code, const ExpressionPoint& at, const float* s, int lanes, float* values) const;
  void run_step(const Code& code, const Step& step, int lanes, float* values, float* to) const;
  void load_elements(const Code& code, const Step& step, int lanes, float* values, float* to) const;

  Problem problem_;
  std::int64_t first_batch_;
  std::optional<Code> score_, mask_;
  std::array<const void*, kMaxExpressionTensors> tensors_;
  std::array<std::array<std::int64_t, kMaxExpressionRank>, kMaxExpressionTensors> strides_;
  // Of a mask that names no tensor, by tile of rows and block of keys.
  std::int64_t block_m_, block_n_, blocks_n_ = 0;
  std::vector<BlockUse> uses_;
};

}  // namespace flashcore::cpu_fwd
