#pragma once
// The values of an expression: the definition of correct for the device code.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/expression.h"

namespace flashcore {

struct ExpressionPoint {
  double s = 0;
  std::int32_t b = 0, h = 0, hk = 0, i = 0, j = 0, seqlen_q = 0, seqlen_kv = 0;
};

// Element of the tensor with that number in Expression::tensors(). The indices are inside its shape for whoever asked
// check_expression() first (expression_range.h).
using ExpressionElements = std::function<double(int tensor, std::span<const std::int32_t> indices)>;

// Ints are 32 bits wide and wrap. A division of ints by 0 gives 0, as on the device; check_expression() refuses it.
// Floats: fp64 in a score; in a mask fp32, operation by operation, for a mask is the same on every device.
class ExpressionEvaluator {
 public:
  explicit ExpressionEvaluator(const Expression& expression, ExpressionElements elements = {});
  double score(const ExpressionPoint& point);
  bool mask(const ExpressionPoint& point);
  // Of one row and the keys from row.j on, side by side: what does not depend on the key or on s is computed once.
  // `s` becomes the scores.
  void scores(const ExpressionPoint& row, std::span<double> s);
  // With them, of each key, how much of an error of s is left (the derivative by s), and how far fp32 may be off by
  // what it rounds on the way, to first order; an infinity is exact.
  void scores(const ExpressionPoint& row, std::span<double> s, std::span<double> slopes, std::span<double> errors);
  void masks(const ExpressionPoint& row, std::span<std::uint8_t> visible);  // 1 or 0

 private:
  static constexpr std::size_t kLanes = 64;
  // Of one node for all lanes; in the first alone if it is the same for all.
  struct Values {
    std::array<double, kLanes> real;  // each a Real, exactly
    std::array<std::int32_t, kLanes> whole;
    std::array<bool, kLanes> truth;
    bool varies;
    std::size_t at(std::size_t lane) const { return varies ? lane : 0; }
  };
  template <class Real>
  void run(const ExpressionPoint& point, std::size_t lanes, const double* s);
  void run_score(const ExpressionPoint& point, std::size_t lanes, const double* s);
  template <class Real>
  void run_node(const ExpressionNode& node, Values& to, std::size_t lanes);

  const Expression& expression_;
  ExpressionElements elements_;
  std::vector<Values> values_;
};

// Rounded down, and what is left, with the divisor's sign; 0 where the divisor is 0.
std::int32_t expression_floor_divide(std::int32_t a, std::int32_t b);
std::int32_t expression_modulo(std::int32_t a, std::int32_t b);

}  // namespace flashcore
