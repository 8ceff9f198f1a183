// What rounding makes of a score in fp32, to first order: the tree backwards, from the root to s.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/expression_value.h"

namespace flashcore {

namespace {

using RoundedOp = ExpressionOp;

constexpr double kUlp = 0x1p-24, kLn2 = 0.69314718055994530942;
// ex2.approx and lg2.approx (PTX ISA); what tile/expression.cuh makes of them.
constexpr double kSpecial = 0x1p-22, kTanh = 0x1p-21;

// How far the value of an operation may be off by its own rounding; `a` is what it was given.
double rounding_of(RoundedOp op, double value, double a) {
  switch (op) {
    case RoundedOp::kAdd:
    case RoundedOp::kSubtract:
    case RoundedOp::kMultiply: return kUlp * std::abs(value);
    case RoundedOp::kDivide: return 3 * kUlp * std::abs(value);  // by a literal: times its rounded reciprocal
    case RoundedOp::kExp:
      return value == 0 ? 0 : (kSpecial + 2 * kUlp * std::abs(a)) * std::abs(value);  // of -inf: exact
    case RoundedOp::kExp2: return kSpecial * std::abs(value);
    case RoundedOp::kLog: return kSpecial * std::max(kLn2, std::abs(value)) + 2 * kUlp * std::abs(value);
    case RoundedOp::kLog2: return kSpecial * std::max(1.0, std::abs(value));
    case RoundedOp::kTanh: return kTanh * std::abs(value);
    case RoundedOp::kSqrt: return 4 * kUlp * std::abs(value);
    default: return 0;
  }
}

// The derivative by the first argument and by the second.
std::array<double, 2> slopes_of(RoundedOp op, double value, double a, double b) {
  switch (op) {
    case RoundedOp::kNegate: return {-1, 0};
    case RoundedOp::kAbs: return {a < 0 ? -1.0 : 1.0, 0};
    case RoundedOp::kExp: return {value, 0};
    case RoundedOp::kExp2: return {value * kLn2, 0};
    case RoundedOp::kLog: return {1 / a, 0};
    case RoundedOp::kLog2: return {1 / (a * kLn2), 0};
    case RoundedOp::kTanh: return {1 - value * value, 0};
    case RoundedOp::kSqrt: return {0.5 / value, 0};
    case RoundedOp::kAdd: return {1, 1};
    case RoundedOp::kSubtract: return {1, -1};
    case RoundedOp::kMultiply: return {b, a};
    case RoundedOp::kDivide: return {1 / b, -a / (b * b)};
    case RoundedOp::kMin: return a < b ? std::array{1.0, 0.0} : std::array{0.0, 1.0};
    case RoundedOp::kMax: return a > b ? std::array{1.0, 0.0} : std::array{0.0, 1.0};
    default: throw_internal("operation {} gives no float", static_cast<int>(op));
  }
}

}  // namespace

void ExpressionEvaluator::scores(const ExpressionPoint& row, std::span<double> s, std::span<double> slopes,
                                 std::span<double> errors) {
  FC_CHECK(expression_.use() == ExpressionUse::kScore && slopes.size() == s.size() && errors.size() == s.size());
  const std::vector<ExpressionNode>& nodes = expression_.nodes();
  std::vector<std::array<double, kLanes>> moved(nodes.size());  // of the root, by an error of that node
  const auto real = [&](int node, std::size_t lane) {
    const Values& of = values_[static_cast<std::size_t>(node)];
    return of.real[of.at(lane)];
  };
  ExpressionPoint from = row;
  for (std::size_t done = 0; done < s.size(); done += kLanes, from.j += static_cast<std::int32_t>(kLanes)) {
    const std::size_t lanes = std::min(kLanes, s.size() - done);
    run_score(from, lanes, s.data() + done);
    for (std::array<double, kLanes>& each : moved) each.fill(0);
    moved[static_cast<std::size_t>(expression_.root())].fill(1);
    const std::span<double> slope = slopes.subspan(done, lanes), error = errors.subspan(done, lanes);
    std::fill(slope.begin(), slope.end(), 0.0), std::fill(error.begin(), error.end(), 0.0);
    for (int at = expression_.root(); at >= 0; --at) {
      const ExpressionNode& node = nodes[static_cast<std::size_t>(at)];
      if (node.type != ExpressionType::kFloat) continue;
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const double by = moved[static_cast<std::size_t>(at)][lane], value = real(at, lane);
        // An infinity is exact, and what led to it has no say.
        if (by == 0 || !std::isfinite(by) || !std::isfinite(value)) continue;
        const auto hand_on = [&](int argument, double times) {
          if (times != 0) moved[static_cast<std::size_t>(argument)][lane] += by * times;
        };
        switch (node.op) {
          case RoundedOp::kVariable: slope[lane] += by; break;
          case RoundedOp::kReal:
            error[lane] += std::abs(by * (value - static_cast<double>(static_cast<float>(value))));
            break;
          case RoundedOp::kToFloat:
            error[lane] += std::abs(by) * (std::abs(value) > 0x1p24 ? kUlp * std::abs(value) : 0);
            break;
          case RoundedOp::kElement: break;
          case RoundedOp::kWhere: {
            const Values& condition = values_[static_cast<std::size_t>(node.args[0])];
            hand_on(node.args[condition.truth[condition.at(lane)] ? 1 : 2], 1);
            break;
          }
          default: {
            const double a = real(node.args[0], lane), b = node.count > 1 ? real(node.args[1], lane) : 0;
            error[lane] += std::abs(by) * rounding_of(node.op, value, a);
            const std::array<double, 2> times = slopes_of(node.op, value, a, b);
            for (std::size_t x = 0; x < static_cast<std::size_t>(node.count); ++x) hand_on(node.args[x], times[x]);
          }
        }
      }
    }
    const int root = expression_.root();
    for (std::size_t lane = 0; lane < lanes; ++lane) s[done + lane] = real(root, lane);
  }
}

}  // namespace flashcore
