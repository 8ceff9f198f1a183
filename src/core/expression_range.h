#pragma once
// What can be said of an expression before any value is known: interval arithmetic over ranges of its variables.

#include <array>
#include <cstdint>
#include <vector>

#include "core/band.h"
#include "core/expression.h"

namespace flashcore {

struct ExpressionSizes {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1;
};

// first .. last of each variable, by ExpressionVariable; that of s is not used.
struct ExpressionBox {
  struct Range {
    std::int64_t first = 0, last = 0;
  };
  std::array<Range, kExpressionVariables> ranges = {};

  Range& operator[](ExpressionVariable variable) { return ranges[static_cast<std::size_t>(variable)]; }
  const Range& operator[](ExpressionVariable variable) const { return ranges[static_cast<std::size_t>(variable)]; }
  // All of a problem. With lengths that the device knows alone, `sizes` are their bounds and every length up to them
  // counts.
  static ExpressionBox of(const ExpressionSizes& sizes, bool lengths_vary = false);
};

// What a mask is to the rows and keys of the box: skipped where it can be shown that no pair is visible, full where all
// are, else cut. Never wrong; exact for comparisons of sums of variables. What depends on tensors is cut.
BlockUse classify_tile(const Expression& mask, const ExpressionBox& box);

// What each node may be, in the order of the nodes; of those that are no int anything.
struct ExpressionIntRange {
  std::int64_t low = 0, high = 0;
};
std::vector<ExpressionIntRange> int_ranges(const Expression& expression, const ExpressionBox& box);

// The shape that a tensor of the expression has at least.
struct ExpressionShape {
  int count = 0;
  std::array<std::int64_t, kMaxExpressionRank> sizes = {};
};

// Of Expression::tensors(), in their order. Error kBadInput with the column where an index may be negative or cannot be
// bounded, an int may leave 32 bits, or a divisor of ints may be 0. Elements of tensors count as any value, and sums of
// them wrap.
std::vector<ExpressionShape> check_expression(const Expression& expression, const ExpressionBox& box);

}  // namespace flashcore
