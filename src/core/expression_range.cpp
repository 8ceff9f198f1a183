#include "core/expression_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"

namespace flashcore {

namespace {

using Op = ExpressionOp;
using Type = ExpressionType;

constexpr std::int64_t kLeastInt = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kMostInt = std::numeric_limits<std::int32_t>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A sum of variables with factors, which sees that i - i is 0 where intervals alone do not. Small enough that 64 bits
// hold its bounds.
struct LinearForm {
  std::array<std::int64_t, kExpressionVariables> factors = {};
  std::int64_t constant = 0;

  static LinearForm of(std::int64_t value) { return {{}, value}; }
  bool is_small() const {
    constexpr std::int64_t kMostFactor = 1 << 24, kMostConstant = std::int64_t{1} << 40;
    return std::all_of(factors.begin(), factors.end(), [](std::int64_t f) { return std::abs(f) <= kMostFactor; }) &&
           std::abs(constant) <= kMostConstant;
  }
  LinearForm plus(const LinearForm& other, std::int64_t factor) const {
    LinearForm sum = *this;
    for (std::size_t v = 0; v < factors.size(); ++v) sum.factors[v] += factor * other.factors[v];
    sum.constant += factor * other.constant;
    return sum;
  }
};

struct IntRange {
  std::int64_t low = kLeastInt, high = kMostInt;
  bool is_point() const { return low == high; }
  bool contains(std::int64_t value) const { return low <= value && value <= high; }
  bool fits() const { return low >= kLeastInt && high <= kMostInt; }
};

IntRange range_over(const LinearForm& form, const ExpressionBox& box) {
  IntRange range{form.constant, form.constant};
  for (std::size_t v = 0; v < form.factors.size(); ++v) {
    const std::int64_t factor = form.factors[v];
    range.low += factor * (factor < 0 ? box.ranges[v].last : box.ranges[v].first);
    range.high += factor * (factor < 0 ? box.ranges[v].first : box.ranges[v].last);
  }
  return range;
}

// What a node may be. Of ints also the linear form, where it has one, and whether an element of a tensor is in it.
struct Possible {
  IntRange whole;
  std::optional<LinearForm> linear;
  bool from_data = false;
  float low = -kInf, high = kInf;
  bool nan = true;
  bool may_hold = true, may_fail = true;

  static Possible condition(bool may_hold, bool may_fail) {
    Possible possible;
    possible.may_hold = may_hold;
    possible.may_fail = may_fail;
    return possible;
  }
  static Possible floats(float low, float high, bool nan) {
    Possible possible;
    possible.low = low;
    possible.high = high;
    possible.nan = nan;
    return possible;
  }
};

IntRange between_all(std::initializer_list<std::int64_t> values) { return {std::min(values), std::max(values)}; }

std::int64_t floor_of(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

class RangeAnalysis {
 public:
  RangeAnalysis(const Expression& expression, const ExpressionBox& box, bool strict)
      : expression_(expression), box_(box), strict_(strict) {
    for (ExpressionBox::Range& range : box_.ranges) range.last = std::max(range.first, range.last);
    for (const ExpressionNode& node : expression.nodes()) all_.push_back(of(node));
  }

  const Possible& at(int node) const { return all_[static_cast<std::size_t>(node)]; }

 private:
  [[noreturn]] void refuse(const ExpressionNode& node, const std::string& sentence) const {
    throw_bad_input("column {} of the {}: {}", node.column,
                    expression_.use() == ExpressionUse::kScore ? "score" : "mask", sentence);
  }

  Possible of(const ExpressionNode& node) const {
    static const Possible kNone;
    const Possible& a = node.count > 0 ? at(node.args[0]) : kNone;
    const Possible& b = node.count > 1 ? at(node.args[1]) : kNone;
    switch (node.op) {
      case Op::kReal: {
        const float value = static_cast<float>(node.real);
        return Possible::floats(value, value, false);
      }
      case Op::kElement: {
        Possible any;
        any.from_data = true;
        return any;
      }
      case Op::kToFloat:
        return Possible::floats(static_cast<float>(a.whole.low), static_cast<float>(a.whole.high), false);
      case Op::kNot: return Possible::condition(a.may_fail, a.may_hold);
      case Op::kAnd: return Possible::condition(a.may_hold && b.may_hold, a.may_fail || b.may_fail);
      case Op::kOr: return Possible::condition(a.may_hold || b.may_hold, a.may_fail && b.may_fail);
      case Op::kWhere: return chosen(a, b, at(node.args[2]));
      default: break;
    }
    if (node.type == Type::kBool) {
      const bool floats = expression_.nodes()[static_cast<std::size_t>(node.args[0])].type == Type::kFloat;
      return floats ? compared_floats(node.op, a, b) : compared_ints(node, a, b);
    }
    return node.type == Type::kInt ? int_of(node, a, b) : float_of(node.op, a, b);
  }

  static Possible chosen(const Possible& condition, const Possible& a, const Possible& b) {
    if (!condition.may_fail) return a;
    if (!condition.may_hold) return b;
    Possible either;
    either.whole = {std::min(a.whole.low, b.whole.low), std::max(a.whole.high, b.whole.high)};
    either.from_data = a.from_data || b.from_data;
    either.low = std::min(a.low, b.low);
    either.high = std::max(a.high, b.high);
    either.nan = a.nan || b.nan;
    either.may_hold = a.may_hold || b.may_hold;
    either.may_fail = a.may_fail || b.may_fail;
    return either;
  }

  Possible compared_ints(const ExpressionNode& node, const Possible& a, const Possible& b) const {
    IntRange d{a.whole.low - b.whole.high, a.whole.high - b.whole.low};
    if (node.args[0] == node.args[1]) d = {0, 0};
    if (a.linear && b.linear) {
      const IntRange exact = range_over(a.linear->plus(*b.linear, -1), box_);
      d = {std::max(d.low, exact.low), std::min(d.high, exact.high)};
    }
    switch (node.op) {
      case Op::kLess: return Possible::condition(d.low < 0, d.high >= 0);
      case Op::kLessEqual: return Possible::condition(d.low <= 0, d.high > 0);
      case Op::kGreater: return Possible::condition(d.high > 0, d.low <= 0);
      case Op::kGreaterEqual: return Possible::condition(d.high >= 0, d.low < 0);
      case Op::kEqual: return Possible::condition(d.contains(0), !d.is_point() || d.low != 0);
      default: return Possible::condition(!d.is_point() || d.low != 0, d.contains(0));
    }
  }

  static Possible compared_floats(Op op, const Possible& a, const Possible& b) {
    const bool nan = a.nan || b.nan;
    switch (op) {
      case Op::kLess: return Possible::condition(a.low < b.high, nan || !(a.high < b.low));
      case Op::kLessEqual: return Possible::condition(a.low <= b.high, nan || !(a.high <= b.low));
      case Op::kGreater: return Possible::condition(a.high > b.low, nan || !(a.low > b.high));
      case Op::kGreaterEqual: return Possible::condition(a.high >= b.low, nan || !(a.low >= b.high));
      default: break;
    }
    const bool may_equal = a.low <= b.high && b.low <= a.high;
    const bool may_differ = nan || !(a.low == a.high && b.low == b.high && a.low == b.low);
    return op == Op::kEqual ? Possible::condition(may_equal, may_differ) : Possible::condition(may_differ, may_equal);
  }

  // Rounding to nearest is monotone, so the corners bound what fp32 makes of all values between.
  static Possible float_of(Op op, const Possible& a, const Possible& b) {
    const auto within = [](std::initializer_list<float> corners, bool nan) {
      for (const float corner : corners)
        if (std::isnan(corner)) return Possible();
      return nan ? Possible::floats(std::min(corners), std::max(corners), true)
                 : Possible::floats(std::min(corners), std::max(corners), false);
    };
    const bool nan = a.nan || b.nan;
    const auto has_zero = [](const Possible& x) { return x.low <= 0 && x.high >= 0; };
    const auto has_infinity = [](const Possible& x) { return x.low == -kInf || x.high == kInf; };
    switch (op) {
      case Op::kNegate: return within({-a.low, -a.high}, a.nan);
      case Op::kAbs: return within({has_zero(a) ? 0.0f : std::abs(a.low), std::abs(a.low), std::abs(a.high)}, a.nan);
      case Op::kAdd: return within({a.low + b.low, a.high + b.high, a.low + b.high, a.high + b.low}, nan);
      case Op::kSubtract: return within({a.low - b.high, a.high - b.low, a.low - b.low, a.high - b.high}, nan);
      case Op::kMultiply:
        if ((has_zero(a) && has_infinity(b)) || (has_zero(b) && has_infinity(a))) return {};
        return within({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high}, nan);
      case Op::kDivide:
        if (has_zero(b)) return {};
        return within({a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high}, nan);
      case Op::kMin: return Possible::floats(std::min(a.low, b.low), std::min(a.high, b.high), nan);
      case Op::kMax: return Possible::floats(std::max(a.low, b.low), std::max(a.high, b.high), nan);
      default: return {};  // s, and functions that masks do not have
    }
  }

  Possible int_of(const ExpressionNode& node, const Possible& a, const Possible& b) const {
    Possible made;
    made.from_data = a.from_data || b.from_data;
    IntRange range = a.whole;
    std::optional<LinearForm> form;
    switch (node.op) {
      case Op::kWhole:
        range = {node.whole, node.whole};
        form = LinearForm::of(node.whole);
        break;
      case Op::kVariable: {
        const auto& given = box_[node.variable];
        range = {given.first, given.last};
        form = LinearForm();
        form->factors[static_cast<std::size_t>(node.variable)] = 1;
        break;
      }
      case Op::kNegate:
        range = {-a.whole.high, -a.whole.low};
        if (a.linear) form = LinearForm().plus(*a.linear, -1);
        break;
      case Op::kAbs:
        if (a.whole.low >= 0) form = a.linear;
        else if (a.whole.high <= 0) range = {-a.whole.high, -a.whole.low};
        else range = {0, std::max(-a.whole.low, a.whole.high)};
        break;
      case Op::kAdd:
        range = {a.whole.low + b.whole.low, a.whole.high + b.whole.high};
        if (a.linear && b.linear) form = a.linear->plus(*b.linear, 1);
        break;
      case Op::kSubtract:
        range = {a.whole.low - b.whole.high, a.whole.high - b.whole.low};
        if (a.linear && b.linear) form = a.linear->plus(*b.linear, -1);
        break;
      case Op::kMultiply:
        range = between_all({a.whole.low * b.whole.low, a.whole.low * b.whole.high, a.whole.high * b.whole.low,
                             a.whole.high * b.whole.high});
        if (a.linear && b.whole.is_point()) form = scaled(*a.linear, b.whole.low);
        else if (b.linear && a.whole.is_point()) form = scaled(*b.linear, a.whole.low);
        break;
      case Op::kMin:
        range = {std::min(a.whole.low, b.whole.low), std::min(a.whole.high, b.whole.high)};
        if (a.whole.high <= b.whole.low) form = a.linear;
        else if (b.whole.high <= a.whole.low) form = b.linear;
        break;
      case Op::kMax:
        range = {std::max(a.whole.low, b.whole.low), std::max(a.whole.high, b.whole.high)};
        if (a.whole.low >= b.whole.high) form = a.linear;
        else if (b.whole.low >= a.whole.high) form = b.linear;
        break;
      default: range = divided(node, a, b, form); break;
    }
    return settle(node, made, range, form);
  }

  static std::optional<LinearForm> scaled(const LinearForm& form, std::int64_t factor) {
    constexpr std::int64_t kMost = 1 << 24;
    if (std::abs(factor) > kMost || !form.is_small()) return std::nullopt;
    // 2^40 * 2^24 is more than 64 bits hold.
    if (std::abs(form.constant) > kMostInt) return std::nullopt;
    return LinearForm().plus(form, factor);
  }

  IntRange divided(const ExpressionNode& node, const Possible& a, const Possible& b,
                   std::optional<LinearForm>& form) const {
    const IntRange& by = b.whole;
    if (by.contains(0)) {
      if (strict_)
        refuse(node, fmt::format("'{}' may divide by 0: its divisor may be {} to {}; max(x, 1) excludes it",
                                 node.op == Op::kModulo ? "%" : "//", by.low, by.high));
      return {};
    }
    const IntRange quotient = between_all({floor_of(a.whole.low, by.low), floor_of(a.whole.low, by.high),
                                           floor_of(a.whole.high, by.low), floor_of(a.whole.high, by.high)});
    if (node.op == Op::kFloorDivide) {
      if (quotient.is_point()) form = LinearForm::of(quotient.low);
      return quotient;
    }
    if (by.is_point() && quotient.is_point()) {
      const std::int64_t off = quotient.low * by.low;
      if (a.linear) form = a.linear->plus(LinearForm::of(off), -1);
      return {a.whole.low - off, a.whole.high - off};
    }
    return by.low > 0 ? IntRange{0, by.high - 1} : IntRange{by.low + 1, 0};
  }

  // The node's values are `range` and, where there is one, those of `form`; unless they wrap.
  Possible settle(const ExpressionNode& node, Possible made, IntRange range,
                  const std::optional<LinearForm>& form) const {
    if (form && form->is_small()) {
      const IntRange exact = range_over(*form, box_);
      range = {std::max(range.low, exact.low), std::min(range.high, exact.high)};
    }
    if (range.fits()) {
      made.whole = range;
      if (form && form->is_small()) made.linear = form;
    } else if (strict_ && !made.from_data) {
      refuse(node,
             fmt::format("this int may be {}, and ints end at {}; as a float, 1.0 * x, it may be larger",
                         range.high > kMostInt ? range.high : range.low, range.high > kMostInt ? kMostInt : kLeastInt));
    }
    return made;
  }

  const Expression& expression_;
  ExpressionBox box_;
  bool strict_;
  std::vector<Possible> all_;
};

}  // namespace

ExpressionBox ExpressionBox::of(const ExpressionSizes& sizes, bool lengths_vary) {
  using enum ExpressionVariable;
  ExpressionBox box;
  const auto up_to = [](std::int64_t size) { return Range{0, std::max<std::int64_t>(size - 1, 0)}; };
  box[kB] = up_to(sizes.batch);
  box[kH] = up_to(sizes.heads_q);
  box[kHk] = up_to(sizes.heads_kv);
  box[kI] = up_to(sizes.seqlen_q);
  box[kJ] = up_to(sizes.seqlen_kv);
  box[kSeqlenQ] = {lengths_vary ? 0 : sizes.seqlen_q, sizes.seqlen_q};
  box[kSeqlenKv] = {lengths_vary ? 0 : sizes.seqlen_kv, sizes.seqlen_kv};
  for (const Range& range : box.ranges) FC_CHECK(range.first >= 0 && range.last <= kMostInt);
  return box;
}

BlockUse classify_tile(const Expression& mask, const ExpressionBox& box) {
  FC_CHECK(mask.use() == ExpressionUse::kMask);
  const RangeAnalysis analysis(mask, box, false);
  const Possible& root = analysis.at(mask.root());
  return !root.may_hold ? BlockUse::kSkip : !root.may_fail ? BlockUse::kFull : BlockUse::kCut;
}

std::vector<ExpressionIntRange> int_ranges(const Expression& expression, const ExpressionBox& box) {
  const RangeAnalysis analysis(expression, box, false);
  std::vector<ExpressionIntRange> ranges;
  for (int node = 0; node < static_cast<int>(expression.nodes().size()); ++node)
    ranges.push_back({analysis.at(node).whole.low, analysis.at(node).whole.high});
  return ranges;
}

std::vector<ExpressionShape> check_expression(const Expression& expression, const ExpressionBox& box) {
  const RangeAnalysis analysis(expression, box, true);
  std::vector<ExpressionShape> shapes(expression.tensors().size());
  for (const ExpressionNode& node : expression.nodes()) {
    if (node.op != Op::kElement) continue;
    const ExpressionTensor& tensor = expression.tensors()[static_cast<std::size_t>(node.tensor)];
    ExpressionShape& shape = shapes[static_cast<std::size_t>(node.tensor)];
    shape.count = node.count;
    for (std::size_t x = 0; x < static_cast<std::size_t>(node.count); ++x) {
      const IntRange& index = analysis.at(node.args[x]).whole;
      if (index.low < 0 || index.high == kMostInt)
        throw_bad_input("column {} of the {}: index {} of '{}' may be {} to {}; min and max keep it in the shape",
                        node.column, expression.use() == ExpressionUse::kScore ? "score" : "mask", x + 1, tensor.name,
                        index.low, index.high);
      shape.sizes[x] = std::max(shape.sizes[x], index.high + 1);
    }
  }
  return shapes;
}

}  // namespace flashcore
