#include "core/expression_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"

namespace flashcore {

namespace {

using ZeroOp = ExpressionOp;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Below it a device's exp2 gives 0 (PTX ISA, ex2.approx.ftz).
constexpr double kLeastNormal = 0x1p-126;

struct Interval {
  double low = -kInfinite, high = kInfinite;
  bool is_known() const { return low > -kInfinite || high < kInfinite; }
  bool contains(double value) const { return low <= value && value <= high; }
};

Interval hull(std::initializer_list<double> corners) {
  const auto is_nan = [](double corner) { return std::isnan(corner); };
  if (std::any_of(corners.begin(), corners.end(), is_nan)) return {};
  return {std::min(corners), std::max(corners)};
}

// A sum of variables with factors, which sees that seqlen_q - i is at least 1 where intervals alone do not.
struct RealForm {
  std::array<double, kExpressionVariables> factors = {};
  double constant = 0;

  RealForm plus(const RealForm& other, double factor) const {
    RealForm sum = *this;
    for (std::size_t v = 0; v < factors.size(); ++v) sum.factors[v] += factor * other.factors[v];
    sum.constant += factor * other.constant;
    return sum;
  }
  bool is_constant() const { return factors == decltype(factors){}; }
  double of(ExpressionVariable variable) const { return factors[static_cast<std::size_t>(variable)]; }

  // Whether the factors are multiples of a step that the constant is none of: i - j + 0.5, 2 * i - 7. With room for
  // what fp32 rounds of values up to `largest`.
  bool misses_zero(double largest) const {
    double step = 0;
    for (double factor : factors) {
      for (factor = std::abs(factor); factor > 1e-6 * step;) {
        const double left = std::fmod(step, factor);
        step = factor, factor = left;
      }
    }
    const double off = step == 0 ? std::abs(constant) : std::abs(std::remainder(constant, step));
    return off > 0.01 * step && off > 0x1p-20 * largest;
  }
};

// `form` less what it has of `part`, by the first variable of that.
RealForm without_multiple(const RealForm& form, const RealForm& part) {
  for (std::size_t v = 0; v < form.factors.size(); ++v)
    if (part.factors[v] != 0) return form.plus(part, -form.factors[v] / part.factors[v]);
  return form;
}

// Factors of 1 and -1 with a length are one of its position and of how far that is from the end: a pair that exists has
// i < seqlen_q.
Interval range_of_side(const ExpressionBox& box, double of_position, double of_length, ExpressionVariable position,
                       ExpressionVariable length) {
  const auto times = [](double factor, double first, double last) {
    return factor == 0 ? Interval{0, 0} : hull({factor * first, factor * last});
  };
  const auto &at = box[position], &long_as = box[length];
  const auto first = static_cast<double>(at.first), last = static_cast<double>(at.last);
  const Interval i = times(of_position, first, last),
                 n = times(of_length, static_cast<double>(long_as.first), static_cast<double>(long_as.last));
  const Interval both = times(of_position + of_length, first, last),
                 behind = times(of_length, 1, std::max(1.0, static_cast<double>(long_as.last - at.first)));
  return {std::max(i.low + n.low, both.low + behind.low), std::min(i.high + n.high, both.high + behind.high)};
}

Interval range_over(const RealForm& form, const ExpressionBox& box, const VisibleKeys& visible) {
  using enum ExpressionVariable;
  const Interval q = range_of_side(box, form.of(kI), form.of(kSeqlenQ), kI, kSeqlenQ),
                 kv = range_of_side(box, form.of(kJ), form.of(kSeqlenKv), kJ, kSeqlenKv);
  Interval pair{q.low + kv.low, q.high + kv.high};
  // A multiple of j - i.
  if (const double times = form.of(kJ); form.of(kI) == -times && form.of(kSeqlenQ) == 0 && form.of(kSeqlenKv) == 0) {
    const double a = times * static_cast<double>(visible.first), b = times * static_cast<double>(visible.last);
    pair = {std::max(pair.low, std::min(a, b)), std::min(pair.high, std::max(a, b))};
  }
  Interval all{form.constant + pair.low, form.constant + pair.high};
  for (const ExpressionVariable v : {kB, kH, kHk}) {
    const double a = form.of(v) * static_cast<double>(box[v].first), b = form.of(v) * static_cast<double>(box[v].last);
    all.low += std::min(a, b), all.high += std::max(a, b);
  }
  return all;
}

class DivisionAnalysis {
 public:
  DivisionAnalysis(const Expression& expression, const ExpressionBox& box, const VisibleKeys& visible)
      : nodes_(expression.nodes()), box_(box), visible_(visible), ints_(int_ranges(expression, box)) {
    for (std::size_t at = 0; at < nodes_.size(); ++at) {
      Known known = of(nodes_[at]);
      if (nodes_[at].type == ExpressionType::kInt) {
        known.range.low = std::max(known.range.low, static_cast<double>(ints_[at].low));
        known.range.high = std::min(known.range.high, static_cast<double>(ints_[at].high));
      }
      known.nonzero = known.nonzero || is_nonzero(nodes_[at], known);
      known.divisions = divisions_of(static_cast<int>(at));
      all_.push_back(std::move(known));
    }
  }

  // Nodes that may divide by zero where the root's value depends on it.
  const std::vector<int>& divisions(int root) const { return at(root).divisions; }
  const Interval& divisor(int division) const { return at(args_of(division)[1]).range; }

 private:
  struct Known {
    Interval range;
    std::optional<RealForm> form;
    bool open = false;     // depends on s or on an element of a tensor
    bool nonzero = false;  // never zero, where the range may not say so
    bool may_hold = true, may_fail = true;
    std::vector<int> divisions;
  };

  const Known& at(int node) const { return all_[static_cast<std::size_t>(node)]; }
  const ExpressionNode& node(int number) const { return nodes_[static_cast<std::size_t>(number)]; }
  const std::array<int, kMaxExpressionRank>& args_of(int number) const { return node(number).args; }

  Known of(const ExpressionNode& node) const {
    static const Known kNone;
    Known made;
    for (int a = 0; a < node.count; ++a) made.open |= at(node.args[static_cast<std::size_t>(a)]).open;
    const Known& a = node.count > 0 ? at(node.args[0]) : kNone;
    const Known& b = node.count > 1 ? at(node.args[1]) : kNone;
    const Interval &x = a.range, &y = b.range;
    const bool linear = a.form && b.form;
    switch (node.op) {
      case ZeroOp::kWhole:
      case ZeroOp::kReal:
        made.form = RealForm{{}, node.op == ZeroOp::kWhole ? node.whole : static_cast<double>(node.real)};
        break;
      case ZeroOp::kVariable:
        if (node.variable == ExpressionVariable::kS) made.open = true;
        else made.form = RealForm(), made.form->factors[static_cast<std::size_t>(node.variable)] = 1;
        break;
      case ZeroOp::kElement: made.open = true; break;
      case ZeroOp::kToFloat: made.range = x, made.form = a.form; break;
      case ZeroOp::kNegate:
        made.range = {-x.high, -x.low};
        if (a.form) made.form = RealForm().plus(*a.form, -1);
        break;
      case ZeroOp::kAbs:
        made.range = {x.contains(0) ? 0 : std::min(std::abs(x.low), std::abs(x.high)),
                      std::max(std::abs(x.low), std::abs(x.high))};
        break;
      case ZeroOp::kAdd:
        made.range = {x.low + y.low, x.high + y.high};
        if (linear) made.form = a.form->plus(*b.form, 1);
        break;
      case ZeroOp::kSubtract:
        made.range = {x.low - y.high, x.high - y.low};
        if (linear) made.form = a.form->plus(*b.form, -1);
        break;
      case ZeroOp::kMultiply:
        made.range = hull({x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high});
        if (node.args[0] == node.args[1]) made.range.low = std::max(made.range.low, 0.0);
        if (linear && b.form->is_constant()) made.form = RealForm().plus(*a.form, b.form->constant);
        else if (linear && a.form->is_constant()) made.form = RealForm().plus(*b.form, a.form->constant);
        break;
      case ZeroOp::kDivide:
        if (!y.contains(0)) made.range = hull({x.low / y.low, x.low / y.high, x.high / y.low, x.high / y.high});
        if (linear && b.form->is_constant() && b.form->constant != 0)
          made.form = RealForm().plus(*a.form, 1 / b.form->constant);
        break;
      case ZeroOp::kExp:
      case ZeroOp::kExp2: {
        const auto power = [&](double e) { return node.op == ZeroOp::kExp ? std::exp(e) : std::exp2(e); };
        made.range = {power(x.low) < kLeastNormal ? 0 : power(x.low), power(x.high)};
        break;
      }
      case ZeroOp::kLog: made.range = {std::log(std::max(x.low, 0.0)), std::log(std::max(x.high, 0.0))}; break;
      case ZeroOp::kLog2: made.range = {std::log2(std::max(x.low, 0.0)), std::log2(std::max(x.high, 0.0))}; break;
      // On a device it is 1 from 9 on (tile/expression.cuh).
      case ZeroOp::kTanh: made.range = {x.low < -9 ? -1 : std::tanh(x.low), x.high > 9 ? 1 : std::tanh(x.high)}; break;
      case ZeroOp::kSqrt: made.range = {std::sqrt(std::max(x.low, 0.0)), std::sqrt(std::max(x.high, 0.0))}; break;
      case ZeroOp::kMin: made.range = {std::min(x.low, y.low), std::min(x.high, y.high)}; break;
      case ZeroOp::kMax: made.range = {std::max(x.low, y.low), std::max(x.high, y.high)}; break;
      case ZeroOp::kNot: made.may_hold = a.may_fail, made.may_fail = a.may_hold; break;
      case ZeroOp::kAnd: made.may_hold = a.may_hold && b.may_hold, made.may_fail = a.may_fail || b.may_fail; break;
      case ZeroOp::kOr: made.may_hold = a.may_hold || b.may_hold, made.may_fail = a.may_fail && b.may_fail; break;
      case ZeroOp::kWhere: choose(node, made); break;
      case ZeroOp::kFloorDivide:
      case ZeroOp::kModulo: break;  // by int_ranges()
      default: {
        Interval difference{x.low - y.high, x.high - y.low};
        if (linear) difference = range_over(a.form->plus(*b.form, -1), box_, visible_);
        made.may_hold = may_be(node.op, difference), made.may_fail = may_be(opposite(node.op), difference);
      }
    }
    if (made.form) {
      const Interval exact = range_over(*made.form, box_, visible_);
      made.range = {std::max(made.range.low, exact.low), std::min(made.range.high, exact.high)};
    }
    if (std::isnan(made.range.low) || std::isnan(made.range.high)) made.range = {};
    return made;
  }

  void choose(const ExpressionNode& node, Known& made) const {
    const Known& condition = at(node.args[0]);
    made.range = {kInfinite, -kInfinite};
    made.nonzero = true;
    made.may_hold = made.may_fail = false;
    for (const bool holds : {true, false}) {
      if (!(holds ? condition.may_hold : condition.may_fail)) continue;
      const int branch = node.args[holds ? 1 : 2];
      const Known& value = at(branch);
      const bool nonzero = value.nonzero || excludes_zero(node.args[0], holds, branch);
      Interval range = value.range;
      if (nonzero && node.type == ExpressionType::kInt && range.low == 0) range.low = 1;
      made.range = {std::min(made.range.low, range.low), std::max(made.range.high, range.high)};
      made.nonzero = made.nonzero && nonzero;
      made.may_hold |= value.may_hold, made.may_fail |= value.may_fail;
    }
  }

  bool is_nonzero(const ExpressionNode& node, const Known& known) const {
    if (node.type == ExpressionType::kBool) return false;
    if (!known.range.contains(0)) return true;
    if (known.form && known.form->misses_zero(std::max(std::abs(known.range.low), std::abs(known.range.high))))
      return true;
    switch (node.op) {
      case ZeroOp::kToFloat:
      case ZeroOp::kNegate:
      case ZeroOp::kAbs:
      case ZeroOp::kSqrt: return at(node.args[0]).nonzero;
      case ZeroOp::kMultiply:
      case ZeroOp::kMin:
      case ZeroOp::kMax: return at(node.args[0]).nonzero && at(node.args[1]).nonzero;
      default: return false;
    }
  }

  static ZeroOp opposite(ZeroOp op) {
    switch (op) {
      case ZeroOp::kLess: return ZeroOp::kGreaterEqual;
      case ZeroOp::kLessEqual: return ZeroOp::kGreater;
      case ZeroOp::kGreater: return ZeroOp::kLessEqual;
      case ZeroOp::kGreaterEqual: return ZeroOp::kLess;
      case ZeroOp::kEqual: return ZeroOp::kNotEqual;
      default: return ZeroOp::kEqual;
    }
  }
  // Whether a difference within the interval may be what the comparison asks for.
  static bool may_be(ZeroOp op, const Interval& difference) {
    switch (op) {
      case ZeroOp::kLess: return difference.low < 0;
      case ZeroOp::kLessEqual: return difference.low <= 0;
      case ZeroOp::kGreater: return difference.high > 0;
      case ZeroOp::kGreaterEqual: return difference.high >= 0;
      case ZeroOp::kEqual: return difference.contains(0);
      default: return difference.low != 0 || difference.high != 0;
    }
  }

  // What is zero exactly where the node is.
  int core_of(int number) const {
    while (node(number).op == ZeroOp::kToFloat || node(number).op == ZeroOp::kNegate || node(number).op == ZeroOp::kAbs)
      number = args_of(number)[0];
    return number;
  }

  bool is_multiple(int a, int b) const {
    if (a == b) return true;
    if (!at(a).form || !at(b).form) return false;
    const RealForm rest = without_multiple(*at(a).form, *at(b).form);
    return rest.is_constant() && rest.constant == 0;
  }

  // Whether `value` cannot be zero where the condition holds, or where it does not.
  bool excludes_zero(int condition, bool holds, int value) const {
    if (says_nonzero(condition, holds, value)) return true;
    const auto argument = [&](std::size_t a) {
      const int number = args_of(value)[a];
      return at(number).nonzero || excludes_zero(condition, holds, number);
    };
    switch (node(value).op) {
      case ZeroOp::kToFloat:
      case ZeroOp::kNegate:
      case ZeroOp::kAbs:
      case ZeroOp::kSqrt: return argument(0);
      case ZeroOp::kMultiply:
      case ZeroOp::kMin:
      case ZeroOp::kMax: return argument(0) && argument(1);
      default: return false;
    }
  }

  // The same of the value as a whole.
  bool says_nonzero(int condition, bool holds, int value) const {
    const ExpressionNode& of = node(condition);
    if (of.op == ZeroOp::kNot) return says_nonzero(of.args[0], !holds, value);
    if (of.op == ZeroOp::kAnd || of.op == ZeroOp::kOr) {
      const bool first = says_nonzero(of.args[0], holds, value), second = says_nonzero(of.args[1], holds, value);
      return (of.op == ZeroOp::kAnd) == holds ? first || second : first && second;
    }
    if (of.op < ZeroOp::kLess || of.op > ZeroOp::kNotEqual) return false;
    return !may_be(holds ? of.op : opposite(of.op), difference_at_zero(of.args[0], of.args[1], value));
  }

  // What a - b may be where `value` is zero.
  Interval difference_at_zero(int a, int b, int value) const {
    const int core = core_of(value);
    const auto range = [&](int number) {
      return is_multiple(core_of(number), core) ? Interval{0, 0} : at(number).range;
    };
    const Interval x = range(a), y = range(b);
    Interval difference{x.low - y.high, x.high - y.low};
    if (std::isnan(difference.low) || std::isnan(difference.high)) difference = {};
    if (!at(a).form || !at(b).form || !at(core).form) return difference;
    // a - b = times * value + rest, if their factors are in proportion.
    const RealForm rest = without_multiple(at(a).form->plus(*at(b).form, -1), *at(core).form);
    return rest.is_constant() ? Interval{rest.constant, rest.constant} : difference;
  }

  std::vector<int> divisions_of(int number) const {
    const ExpressionNode& of = node(number);
    std::vector<int> found;
    const auto add = [&](const std::vector<int>& more, int condition, bool holds) {
      for (const int division : more) {
        if (condition >= 0 && excludes_zero(condition, holds, args_of(division)[1])) continue;
        if (std::find(found.begin(), found.end(), division) == found.end()) found.push_back(division);
      }
    };
    for (int a = 0; a < of.count; ++a) {
      const int argument = of.args[static_cast<std::size_t>(a)];
      const bool chooses = of.op == ZeroOp::kWhere && a > 0, joins = of.op == ZeroOp::kAnd || of.op == ZeroOp::kOr;
      if (chooses && !(a == 1 ? at(of.args[0]).may_hold : at(of.args[0]).may_fail)) continue;
      if (chooses) add(at(argument).divisions, of.args[0], a == 1);
      else if (joins) add(at(argument).divisions, of.args[1 - static_cast<std::size_t>(a)], of.op == ZeroOp::kAnd);
      else add(at(argument).divisions, -1, false);
    }
    if (of.op != ZeroOp::kDivide) return found;
    const Known& divisor = at(of.args[1]);
    if (!divisor.nonzero && !divisor.open && divisor.range.is_known()) found.push_back(number);
    return found;
  }

  const std::vector<ExpressionNode>& nodes_;
  const ExpressionBox& box_;
  const VisibleKeys& visible_;
  std::vector<ExpressionIntRange> ints_;
  std::vector<Known> all_;
};

}  // namespace

void check_divisions(const Expression& expression, const ExpressionBox& box, const VisibleKeys& visible) {
  ExpressionBox pairs = box;  // lengths of none have no pair
  for (const ExpressionVariable length : {ExpressionVariable::kSeqlenQ, ExpressionVariable::kSeqlenKv}) {
    pairs[length].first = std::max<std::int64_t>(pairs[length].first, 1);
    pairs[length].last = std::max(pairs[length].last, pairs[length].first);
  }
  for (ExpressionBox::Range& range : pairs.ranges) range.last = std::max(range.first, range.last);
  const DivisionAnalysis analysis(expression, pairs, visible);
  const std::vector<int>& divisions = analysis.divisions(expression.root());
  if (divisions.empty()) return;
  const int first = *std::min_element(divisions.begin(), divisions.end());
  const ExpressionNode& node = expression.nodes()[static_cast<std::size_t>(first)];
  const Interval& by = analysis.divisor(first);
  const std::string range = by.low == by.high ? "is 0" : fmt::format("may be {:.10g} to {:.10g}", by.low, by.high);
  throw_bad_input("column {} of the {}: '/' {} by 0: its divisor {}; max(x, 1) or where(x == 0, 1, x) excludes it",
                  node.column, expression.use() == ExpressionUse::kScore ? "score" : "mask",
                  by.low == by.high ? "divides" : "may divide", range);
}

}  // namespace flashcore
