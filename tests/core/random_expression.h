#pragma once
// Random expressions as text, with a second evaluation of them that shares nothing with the library: a recursive walk
// over its own tree, in the order of Python's rules (// and % round down).

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/draws.h"
#include "core/expression.h"
#include "core/expression_value.h"

namespace flashcore {

inline const std::vector<ExpressionTensor>& example_tensors() {
  static const std::vector<ExpressionTensor> kTensors = {{"slope", ExpressionType::kFloat, 1},
                                                         {"doc", ExpressionType::kInt, 2},
                                                         {"keep", ExpressionType::kBool, 1},
                                                         {"bias", ExpressionType::kFloat, 4}};
  return kTensors;
}
// Any function of the indices will do.
inline double example_element(const std::string& name, std::span<const std::int32_t> at) {
  if (name == "slope") return std::ldexp(1.0, -at[0]);
  if (name == "doc") return (at[0] + at[1]) / 3;
  if (name == "keep") return at[0] % 3 != 1;
  return 0.25 * at[0] - at[1] + 0.5 * at[2] - 0.125 * at[3];
}

struct RandomTree {
  enum class Type { kInt, kFloat, kBool } type;
  std::string text;
  // What a tree is worth at a point. Floats in Real: fp64 in a score, fp32 in a mask.
  struct Value {
    std::int64_t whole = 0;
    double real = 0;
    bool truth = false;
  };
  std::function<Value(const ExpressionPoint&)> value;
};

class RandomExpressions {
 public:
  using Type = RandomTree::Type;
  using Value = RandomTree::Value;
  RandomExpressions(std::uint64_t seed, bool mask, bool tensors) : draws_(seed), mask_(mask), tensors_(tensors) {}

  Draws& draws() { return draws_; }
  RandomTree next(int depth) { return mask_ ? condition(depth) : number(depth, draws_.below(2) == 0); }

 private:
  static std::int64_t wrap(std::int64_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value)); }
  double rounded(double value) const { return mask_ ? static_cast<double>(static_cast<float>(value)) : value; }
  static std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return b == 0 ? 0
                  : static_cast<std::int64_t>(std::floor(static_cast<long double>(a) / static_cast<long double>(b)));
  }
  std::string spaced() { return std::string(static_cast<std::size_t>(draws_.below(2)), ' '); }
  std::string wrapped_text(const std::string& text) {
    return draws_.one_in(4) ? "((" + spaced() + text + "))" : "(" + text + ")";
  }

  RandomTree number(int depth, bool whole) { return whole ? integer(depth) : floating(depth); }

  RandomTree integer(int depth) {
    if (depth <= 0) return integer_leaf();
    const RandomTree a = integer(depth - 1), b = integer(depth - 1);
    const auto x = a.value, y = b.value;
    RandomTree made{Type::kInt, {}, {}};
    const auto infix = [&](const char* sign, auto function) {
      made.text = wrapped_text(a.text + spaced() + sign + spaced() + b.text);
      made.value = [=](const ExpressionPoint& p) { return Value{wrap(function(x(p).whole, y(p).whole))}; };
    };
    const auto call = [&](const char* name, auto function) {
      made.text = fmt::format("{}({}, {})", name, a.text, b.text);
      made.value = [=](const ExpressionPoint& p) { return Value{wrap(function(x(p).whole, y(p).whole))}; };
    };
    switch (draws_.below(std::int64_t{10})) {
      case 0:
      case 1: infix("+", [](auto u, auto v) { return u + v; }); break;
      case 2:
      case 3: infix("-", [](auto u, auto v) { return u - v; }); break;
      case 4: infix("*", [](auto u, auto v) { return u * v; }); break;
      case 5: {
        const std::int64_t by = draws_.between(1, 9) * (draws_.one_in(3) ? -1 : 1);
        const bool rest = draws_.one_in(2);
        made.text = wrapped_text(fmt::format("{} {} {}", a.text, rest ? "%" : "//", by));
        made.value = [=](const ExpressionPoint& p) {
          const std::int64_t u = x(p).whole;
          return Value{wrap(rest ? u - by * floor_div(u, by) : floor_div(u, by))};
        };
        break;
      }
      case 6: call("min", [](auto u, auto v) { return std::min(u, v); }); break;
      case 7: call("max", [](auto u, auto v) { return std::max(u, v); }); break;
      case 8:
        made.text = draws_.one_in(2) ? "abs(" + a.text + ")" : "";
        if (made.text.empty()) {
          made.text = "(-" + a.text + ")";
          made.value = [=](const ExpressionPoint& p) { return Value{wrap(-x(p).whole)}; };
        } else {
          made.value = [=](const ExpressionPoint& p) { return Value{wrap(std::abs(x(p).whole))}; };
        }
        break;
      default: {
        const RandomTree c = condition(depth - 1);
        const auto z = c.value;
        made.text = fmt::format("where({},{}, {})", c.text, a.text, b.text);
        made.value = [=](const ExpressionPoint& p) { return z(p).truth ? x(p) : y(p); };
      }
    }
    return made;
  }

  RandomTree integer_leaf() {
    if (tensors_ && draws_.one_in(5)) return document_leaf(draws_.one_in(2));
    if (draws_.one_in(3)) {
      const std::int64_t value = draws_.below(std::int64_t{20});
      return {Type::kInt, fmt::format("{}", value), [=](const ExpressionPoint&) { return Value{value}; }};
    }
    switch (draws_.below(std::int64_t{9})) {
      case 0: return {Type::kInt, "b", [](const ExpressionPoint& p) { return Value{p.b}; }};
      case 1: return {Type::kInt, "h", [](const ExpressionPoint& p) { return Value{p.h}; }};
      case 2: return {Type::kInt, "hk", [](const ExpressionPoint& p) { return Value{p.hk}; }};
      case 3: return {Type::kInt, "seqlen_q", [](const ExpressionPoint& p) { return Value{p.seqlen_q}; }};
      case 4: return {Type::kInt, "seqlen_kv", [](const ExpressionPoint& p) { return Value{p.seqlen_kv}; }};
      case 5:
      case 6: return {Type::kInt, "i", [](const ExpressionPoint& p) { return Value{p.i}; }};
      default: return {Type::kInt, "j", [](const ExpressionPoint& p) { return Value{p.j}; }};
    }
  }
  RandomTree document_leaf(bool row) {
    return {Type::kInt, row ? "doc[b, i]" : "doc[b,j]", [=](const ExpressionPoint& p) {
              const std::int32_t at[] = {p.b, row ? p.i : p.j};
              return Value{static_cast<std::int64_t>(example_element("doc", at))};
            }};
  }

  RandomTree floating(int depth) {
    if (depth <= 0) return floating_leaf();
    if (draws_.one_in(6)) {
      const RandomTree a = integer(depth - 1);
      const auto x = a.value;
      const double by = static_cast<double>(draws_.between(1, 16)) / 8;
      return {Type::kFloat, wrapped_text(fmt::format("{} * {:.3f}", a.text, by)),
              [this, x, by](const ExpressionPoint& p) {
                return Value{0, rounded(rounded(static_cast<double>(x(p).whole)) * by)};
              }};
    }
    const RandomTree a = floating(depth - 1), b = floating(depth - 1);
    const auto x = a.value, y = b.value;
    RandomTree made{Type::kFloat, {}, {}};
    const bool fp32 = mask_;
    const auto apply = [&](std::string text, auto function) {
      made.text = std::move(text);
      made.value = [=](const ExpressionPoint& p) {
        const double u = x(p).real, v = y(p).real;
        return Value{0, fp32 ? static_cast<double>(function(static_cast<float>(u), static_cast<float>(v)))
                             : static_cast<double>(function(u, v))};
      };
    };
    const auto infix = [&](const char* sign) { return wrapped_text(a.text + spaced() + sign + spaced() + b.text); };
    const auto unary = [&](const char* name) { return fmt::format("{}({})", name, a.text); };
    switch (draws_.below(std::int64_t{fp32 ? 9 : 15})) {
      case 0: apply(infix("+"), [](auto u, auto v) { return u + v; }); break;
      case 1: apply(infix("-"), [](auto u, auto v) { return u - v; }); break;
      case 2: apply(infix("*"), [](auto u, auto v) { return u * v; }); break;
      case 3: apply(infix("/"), [](auto u, auto v) { return u / v; }); break;
      case 4:
        apply(fmt::format("min({},{})", a.text, b.text), [](auto u, auto v) { return u != u || u < v ? u : v; });
        break;
      case 5:
        apply(fmt::format("max({},{})", a.text, b.text), [](auto u, auto v) { return u != u || u > v ? u : v; });
        break;
      case 6: apply(unary("abs"), [](auto u, auto) { return std::abs(u); }); break;
      case 7: apply("-" + a.text, [](auto u, auto) { return -u; }); break;
      case 8: {
        const RandomTree c = condition(depth - 1);
        const auto z = c.value;
        made.text = fmt::format("where({}, {}, {})", c.text, a.text, b.text);
        made.value = [=](const ExpressionPoint& p) { return z(p).truth ? x(p) : y(p); };
        break;
      }
      case 9:
      case 10: apply(unary("tanh"), [](auto u, auto) { return std::tanh(u); }); break;
      case 11: apply(unary("exp2"), [](auto u, auto) { return std::exp2(u); }); break;
      case 12: apply(unary("exp"), [](auto u, auto) { return std::exp(u); }); break;
      case 13:
        apply(fmt::format("log(1.0 + abs({}))", a.text), [](auto u, auto) { return std::log(1 + std::abs(u)); });
        break;
      default:
        apply(fmt::format("sqrt(0.5 + abs({}))", a.text), [](auto u, auto) { return std::sqrt(0.5 + std::abs(u)); });
    }
    if (made.text.starts_with("-")) made.text = "(" + made.text + ")";
    return made;
  }

  RandomTree floating_leaf() {
    if (tensors_ && draws_.one_in(4)) {
      return {Type::kFloat, "slope[h]", [this](const ExpressionPoint& p) {
                const std::int32_t at[] = {p.h};
                return Value{0, rounded(example_element("slope", at))};
              }};
    }
    if (!mask_ && !draws_.one_in(3)) return {Type::kFloat, "s", [](const ExpressionPoint& p) { return Value{0, p.s}; }};
    const double value = static_cast<double>(draws_.between(1, 64)) / 16;
    return {Type::kFloat, fmt::format("{:.4f}", value), [=](const ExpressionPoint&) { return Value{0, value}; }};
  }

  RandomTree condition(int depth) {
    if (depth <= 0 || draws_.one_in(3)) return comparison(std::max(depth - 1, 0));
    const RandomTree a = condition(depth - 1), b = condition(depth - 1);
    const auto x = a.value, y = b.value;
    switch (draws_.below(std::int64_t{3})) {
      case 0:
        return {Type::kBool, wrapped_text(a.text + " && " + b.text), [=](const ExpressionPoint& p) {
                  return Value{0, 0, x(p).truth && y(p).truth};
                }};
      case 1:
        return {Type::kBool, wrapped_text(a.text + "||" + b.text), [=](const ExpressionPoint& p) {
                  return Value{0, 0, x(p).truth || y(p).truth};
                }};
      default:
        return {Type::kBool, "!" + wrapped_text(a.text), [=](const ExpressionPoint& p) {
                  return Value{0, 0, !x(p).truth};
                }};
    }
  }

  RandomTree comparison(int depth) {
    if (tensors_ && draws_.one_in(6)) {
      return {Type::kBool, "keep[j]", [](const ExpressionPoint& p) {
                const std::int32_t at[] = {p.j};
                return Value{0, 0, example_element("keep", at) != 0};
              }};
    }
    static constexpr const char* kSigns[] = {"<", "<=", ">", ">=", "==", "!="};
    const std::size_t sign = static_cast<std::size_t>(draws_.below(std::int64_t{6}));
    const bool whole = !draws_.one_in(4);
    const RandomTree a = number(depth, whole), b = number(depth, whole);
    const auto x = a.value, y = b.value;
    return {Type::kBool, wrapped_text(a.text + spaced() + kSigns[sign] + spaced() + b.text),
            [=](const ExpressionPoint& p) {
              const auto judge = [&](auto u, auto v) {
                return sign == 0   ? u < v
                       : sign == 1 ? u <= v
                       : sign == 2 ? u > v
                       : sign == 3 ? u >= v
                       : sign == 4 ? u == v
                                   : u != v;
              };
              const Value u = x(p), v = y(p);
              return Value{0, 0, whole ? judge(u.whole, v.whole) : judge(u.real, v.real)};
            }};
  }

  Draws draws_;
  bool mask_, tensors_;
};

}  // namespace flashcore
