#pragma once
// Ranges of ints and conditions over a block of pairs, for the device code that decides it as a whole
// (core/expression_code.h).

#include "kernels/ptx/common.cuh"

namespace flashcore::expression {

struct Range {
  long long low, high;
};
struct Truth {
  bool may_hold, may_fail;
};

constexpr long long least_int() { return -2147483648ll; }
constexpr long long largest_int() { return 2147483647ll; }

FC_DEVICE Range any_int() { return {least_int(), largest_int()}; }
FC_DEVICE Truth any_truth() { return {true, true}; }
FC_DEVICE Range range_of(int value) { return {value, value}; }
FC_DEVICE Truth truth_of(bool value) { return {value, !value}; }
// Of 0 and 1.
FC_DEVICE Truth truth_of(Range range) { return {range.high != 0, range.low == 0}; }

FC_DEVICE long long least(long long a, long long b) { return a < b ? a : b; }
FC_DEVICE long long largest(long long a, long long b) { return a > b ? a : b; }
// Ints wrap, and what may have wrapped is any.
FC_DEVICE Range wrapped(long long low, long long high) {
  return low < least_int() || high > largest_int() ? any_int() : Range{low, high};
}

FC_DEVICE Range negate(Range a) { return wrapped(-a.high, -a.low); }
FC_DEVICE Range add(Range a, Range b) { return wrapped(a.low + b.low, a.high + b.high); }
FC_DEVICE Range subtract(Range a, Range b) { return wrapped(a.low - b.high, a.high - b.low); }
FC_DEVICE Range multiply(Range a, Range b) {
  const long long products[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  return wrapped(least(least(products[0], products[1]), least(products[2], products[3])),
                 largest(largest(products[0], products[1]), largest(products[2], products[3])));
}
FC_DEVICE Range min(Range a, Range b) { return {least(a.low, b.low), least(a.high, b.high)}; }
FC_DEVICE Range max(Range a, Range b) { return {largest(a.low, b.low), largest(a.high, b.high)}; }
FC_DEVICE Range abs(Range a) {
  if (a.low >= 0) return a;
  return wrapped(a.high <= 0 ? -a.high : 0, largest(-a.low, a.high));
}
FC_DEVICE Range where(Truth c, Range a, Range b) {
  if (!c.may_fail) return a;
  if (!c.may_hold) return b;
  return {least(a.low, b.low), largest(a.high, b.high)};
}

FC_DEVICE Truth negate(Truth a) { return {a.may_fail, a.may_hold}; }
FC_DEVICE Truth both(Truth a, Truth b) { return {a.may_hold && b.may_hold, a.may_fail || b.may_fail}; }
FC_DEVICE Truth either(Truth a, Truth b) { return {a.may_hold || b.may_hold, a.may_fail && b.may_fail}; }
FC_DEVICE Truth where(Truth c, Truth a, Truth b) {
  return {(c.may_hold && a.may_hold) || (c.may_fail && b.may_hold),
          (c.may_hold && a.may_fail) || (c.may_fail && b.may_fail)};
}
FC_DEVICE Truth less(Range a, Range b) { return {a.low < b.high, a.high >= b.low}; }
FC_DEVICE Truth less_equal(Range a, Range b) { return {a.low <= b.high, a.high > b.low}; }
FC_DEVICE Truth greater(Range a, Range b) { return less(b, a); }
FC_DEVICE Truth greater_equal(Range a, Range b) { return less_equal(b, a); }
FC_DEVICE Truth equal(Range a, Range b) {
  return {a.low <= b.high && b.low <= a.high, a.low != a.high || b.low != b.high || a.low != b.low};
}
FC_DEVICE Truth not_equal(Range a, Range b) { return negate(equal(a, b)); }

}  // namespace flashcore::expression
