#include "kernels/cpu_fwd/functions.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/problem_expressions.h"

namespace flashcore::cpu_fwd {
namespace {

using Op = ExpressionOp;
using Type = ExpressionType;

std::int32_t add_wrapped(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
std::int32_t subtract_wrapped(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b));
}
std::int32_t multiply_wrapped(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) * static_cast<std::uint32_t>(b));
}

// The scratch of a thread is floats; ints and conditions lie in it as such.
std::int32_t* ints_of(float* values) { return reinterpret_cast<std::int32_t*>(values); }
const std::int32_t* ints_of(const float* values) { return reinterpret_cast<const std::int32_t*>(values); }

// One binary serves every x86-64, as core/reference_block.cpp does.
#if defined(__x86_64__) && !defined(FLASHCORE_SANITIZED)
#define FLASHCORE_LANE_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FLASHCORE_LANE_CLONES
#endif
#define FLASHCORE_LANE_INLINE __attribute__((always_inline)) inline

// Lanes at a time: a number that the compiler knows, so that it takes vectors. What lies behind the last lane is
// computed too, and not used.
constexpr int kStride = 16;

template <class To, class A, class Do>
FLASHCORE_LANE_INLINE void each(int lanes, To* __restrict to, const A* __restrict a, const Do& body) {
  for (int i = 0; i < lanes; i += kStride)
    for (int x = 0; x < kStride; ++x) to[i + x] = body(a[i + x]);
}
template <class To, class A, class Do>
FLASHCORE_LANE_INLINE void each(int lanes, To* __restrict to, const A* __restrict a, const A* __restrict b,
                                const Do& body) {
  for (int i = 0; i < lanes; i += kStride)
    for (int x = 0; x < kStride; ++x) to[i + x] = body(a[i + x], b[i + x]);
}

// Within 2^-22 relatively: the quotient of kernels/tile/expression.cuh, divided exactly.
FLASHCORE_LANE_INLINE float tanh_of(float x) {
  const float low = x > -9.0f ? x : -9.0f, bounded = low < 9.0f ? low : 9.0f, z = bounded * bounded;
  float p = 1.33542430e-8f * z + 2.06087734e-5f, q = 7.77638434e-7f * z + 3.28560389e-4f;
  p = p * z + 3.49556934e-3f, q = q * z + 2.58769114e-2f;
  p = p * z + 0.133810103f, q = q * z + 0.467143267f;
  p = p * z + 1.0f, q = q * z + 1.0f;
  return x != x ? x : bounded * p / q;
}

template <class Number>
FLASHCORE_LANE_INLINE void compare(Op op, int lanes, std::int32_t* to, const Number* a, const Number* b) {
  switch (op) {
    case Op::kLess: return each(lanes, to, a, b, [](Number x, Number y) { return x < y; });
    case Op::kLessEqual: return each(lanes, to, a, b, [](Number x, Number y) { return x <= y; });
    case Op::kGreater: return each(lanes, to, a, b, [](Number x, Number y) { return x > y; });
    case Op::kGreaterEqual: return each(lanes, to, a, b, [](Number x, Number y) { return x >= y; });
    case Op::kEqual: return each(lanes, to, a, b, [](Number x, Number y) { return x == y; });
    case Op::kNotEqual: return each(lanes, to, a, b, [](Number x, Number y) { return x != y; });
    default: throw_internal("operation {} compares nothing", static_cast<int>(op));
  }
}

FLASHCORE_LANE_CLONES void compare_ints(Op op, int lanes, std::int32_t* to, const std::int32_t* a,
                                        const std::int32_t* b) {
  compare(op, lanes, to, a, b);
}
FLASHCORE_LANE_CLONES void compare_floats(Op op, int lanes, std::int32_t* to, const float* a, const float* b) {
  compare(op, lanes, to, a, b);
}

FLASHCORE_LANE_CLONES void run_ints(Op op, int lanes, std::int32_t* to, const std::int32_t* a, const std::int32_t* b) {
  switch (op) {
    case Op::kNegate: return each(lanes, to, a, [](std::int32_t x) { return subtract_wrapped(0, x); });
    case Op::kAbs: return each(lanes, to, a, [](std::int32_t x) { return x < 0 ? subtract_wrapped(0, x) : x; });
    case Op::kAdd: return each(lanes, to, a, b, add_wrapped);
    case Op::kSubtract: return each(lanes, to, a, b, subtract_wrapped);
    case Op::kMultiply: return each(lanes, to, a, b, multiply_wrapped);
    case Op::kFloorDivide: return each(lanes, to, a, b, expression_floor_divide);
    case Op::kModulo: return each(lanes, to, a, b, expression_modulo);
    case Op::kMin: return each(lanes, to, a, b, [](std::int32_t x, std::int32_t y) { return x < y ? x : y; });
    case Op::kMax: return each(lanes, to, a, b, [](std::int32_t x, std::int32_t y) { return x > y ? x : y; });
    default: throw_internal("operation {} is none of ints", static_cast<int>(op));
  }
}

// One rounding each: the values lie in memory between two operations, so that none are fused.
FLASHCORE_LANE_CLONES void run_floats(Op op, int lanes, float* to, const float* a, const float* b) {
  switch (op) {
    case Op::kNegate: return each(lanes, to, a, [](float x) { return -x; });
    case Op::kAbs: return each(lanes, to, a, [](float x) { return std::abs(x); });
    case Op::kExp: return each(lanes, to, a, [](float x) { return std::exp(x); });
    case Op::kExp2: return each(lanes, to, a, [](float x) { return std::exp2(x); });
    case Op::kLog: return each(lanes, to, a, [](float x) { return std::log(x); });
    case Op::kLog2: return each(lanes, to, a, [](float x) { return std::log2(x); });
    case Op::kTanh: return each(lanes, to, a, tanh_of);
    case Op::kSqrt: return each(lanes, to, a, [](float x) { return std::sqrt(x); });
    case Op::kAdd: return each(lanes, to, a, b, [](float x, float y) { return x + y; });
    case Op::kSubtract: return each(lanes, to, a, b, [](float x, float y) { return x - y; });
    case Op::kMultiply: return each(lanes, to, a, b, [](float x, float y) { return x * y; });
    case Op::kDivide: return each(lanes, to, a, b, [](float x, float y) { return x / y; });
    case Op::kMin: return each(lanes, to, a, b, [](float x, float y) { return x < y || std::isnan(x) ? x : y; });
    case Op::kMax: return each(lanes, to, a, b, [](float x, float y) { return x > y || std::isnan(x) ? x : y; });
    default: throw_internal("operation {} is none of floats", static_cast<int>(op));
  }
}

// Whatever they are, 32 bits are handed on.
FLASHCORE_LANE_CLONES void choose(int lanes, std::int32_t* __restrict to, const std::int32_t* __restrict a,
                                  const std::int32_t* __restrict b, const std::int32_t* __restrict c) {
  for (int i = 0; i < lanes; i += kStride)
    for (int x = 0; x < kStride; ++x) to[i + x] = a[i + x] != 0 ? b[i + x] : c[i + x];
}

}  // namespace

Functions::Functions(const Problem& problem, const AttentionArgs& args, int block_m, int block_n)
    : problem_(problem),
      first_batch_(args.first_batch),
      tensors_(args.tensors),
      strides_(args.layouts.tensor_strides),
      block_m_(block_m),
      block_n_(block_n) {
  if (problem.has_score_expression()) score_ = code_of(problem.score_expression());
  if (!problem.has_mask_expression()) return;
  const Expression mask = problem.mask_expression();
  mask_ = code_of(mask);
  if (!mask.tensors().empty()) return;
  // Nothing is asked twice, and a launch allocates nothing.
  blocks_n_ = (problem.seqlen_kv + block_n - 1) / block_n;
  ExpressionBox box = expression_box(problem);
  box[ExpressionVariable::kB] = {first_batch_, first_batch_ + problem.batch - 1};
  for (std::int64_t row = 0; row < problem.seqlen_q; row += block_m) {
    for (std::int64_t key = 0; key < problem.seqlen_kv; key += block_n) {
      box[ExpressionVariable::kI] = {row, std::min(row + block_m, problem.seqlen_q) - 1};
      box[ExpressionVariable::kJ] = {key, std::min(key + block_n, problem.seqlen_kv) - 1};
      uses_.push_back(classify_tile(mask, box));
    }
  }
}

std::size_t Functions::scratch_floats() const {
  const auto needed = [](const std::optional<Code>& code) { return code ? code->steps.size() : std::size_t{0}; };
  return std::max(needed(score_), needed(mask_)) * kLanes;
}

Functions::Code Functions::code_of(const Expression& expression) const {
  Code code;
  code.tensors = tensor_numbers(problem_, expression);
  code.root = expression.root();
  for (const ExpressionNode& node : expression.nodes()) {
    bool varies = node.op == Op::kVariable &&
                  (node.variable == ExpressionVariable::kS || node.variable == ExpressionVariable::kJ);
    for (std::size_t a = 0; a < static_cast<std::size_t>(node.count); ++a)
      varies = varies || code.steps[static_cast<std::size_t>(node.args[a])].varies;
    const Type of = node.count > 0 ? code.steps[static_cast<std::size_t>(node.args[0])].node.type : node.type;
    // The one index that is the key itself, where no other varies with it.
    int key_index = -1, varying = 0;
    for (int x = 0; node.op == Op::kElement && x < node.count; ++x) {
      const Step& index = code.steps[static_cast<std::size_t>(node.args[static_cast<std::size_t>(x)])];
      varying += index.varies;
      if (index.node.op == Op::kVariable && index.node.variable == ExpressionVariable::kJ) key_index = x;
    }
    code.steps.push_back({node, varies, of, varying == 1 ? key_index : -1});
  }
  return code;
}

void Functions::load_elements(const Code& code, const Step& step, int lanes, float* values, float* to) const {
  const auto number = static_cast<std::size_t>(code.tensors[static_cast<std::size_t>(step.node.tensor)]);
  const auto* data = static_cast<const std::byte*>(tensors_[number]);
  const bool bytes = step.node.type == Type::kBool;
  const auto offset_of = [&](int lane) {
    std::int64_t offset = 0;
    for (std::size_t x = 0; x < static_cast<std::size_t>(step.node.count); ++x)
      offset += strides_[number][x] * ints_of(values + step.node.args[x] * kLanes)[lane];
    return offset;
  };
  const auto load = [&](int lane, std::int64_t offset) {
    if (bytes) ints_of(to)[lane] = data[offset] != std::byte{0};
    else std::memcpy(to + lane, data + offset * static_cast<std::int64_t>(sizeof(float)), sizeof(float));
  };
  if (step.key_index < 0) {
    for (int lane = 0; lane < lanes; ++lane) load(lane, offset_of(lane));
    return;
  }
  // Keys side by side, as in a bias or a mask of [.., i, j].
  const std::int64_t first = offset_of(0), stride = strides_[number][static_cast<std::size_t>(step.key_index)];
  if (stride == 1 && !bytes) {
    std::memcpy(to, data + first * static_cast<std::int64_t>(sizeof(float)),
                static_cast<std::size_t>(lanes) * sizeof(float));
  } else if (stride == 1) {
    for (int lane = 0; lane < lanes; ++lane) ints_of(to)[lane] = data[first + lane] != std::byte{0};
  } else {
    for (int lane = 0; lane < lanes; ++lane) load(lane, first + lane * stride);
  }
}

void Functions::run_step(const Code& code, const Step& step, int lanes, float* values, float* to) const {
  const ExpressionNode& node = step.node;
  const auto arg = [&](std::size_t x) { return values + node.args[x] * kLanes; };
  const float *a = arg(0), *b = arg(1), *c = arg(2);
  switch (node.op) {
    case Op::kWhole: return std::fill_n(ints_of(to), lanes, node.whole), void();
    case Op::kReal: return std::fill_n(to, lanes, static_cast<float>(node.real)), void();
    case Op::kVariable: return;  // run() has them
    case Op::kElement: return load_elements(code, step, lanes, values, to);
    case Op::kToFloat: return each(lanes, to, ints_of(a), [](std::int32_t x) { return static_cast<float>(x); });
    case Op::kNot: return each(lanes, ints_of(to), ints_of(a), [](std::int32_t x) { return x == 0; });
    case Op::kAnd:
      return each(lanes, ints_of(to), ints_of(a), ints_of(b), [](std::int32_t x, std::int32_t y) { return x & y; });
    case Op::kOr:
      return each(lanes, ints_of(to), ints_of(a), ints_of(b), [](std::int32_t x, std::int32_t y) { return x | y; });
    case Op::kWhere: return choose(lanes, ints_of(to), ints_of(a), ints_of(b), ints_of(c));
    default: break;
  }
  if (node.type == Type::kBool && step.of == Type::kFloat) compare_floats(node.op, lanes, ints_of(to), a, b);
  else if (node.type == Type::kBool) compare_ints(node.op, lanes, ints_of(to), ints_of(a), ints_of(b));
  else if (node.type == Type::kInt) run_ints(node.op, lanes, ints_of(to), ints_of(a), ints_of(b));
  else run_floats(node.op, lanes, to, a, b);
}

// What is the same for all keys is computed once and repeated, so that every operation takes whole rows of values.
void Functions::run(const Code& code, const ExpressionPoint& at, const float* s, int lanes, float* values) const {
  const std::int32_t variables[] = {
      0, static_cast<std::int32_t>(first_batch_) + at.b, at.h, at.hk, at.i, at.j, at.seqlen_q, at.seqlen_kv};
  for (std::size_t n = 0; n < code.steps.size(); ++n) {
    const Step& step = code.steps[n];
    float* to = values + n * kLanes;
    if (step.node.op == Op::kVariable && step.node.variable == ExpressionVariable::kS) {
      std::copy_n(s, lanes, to);
    } else if (step.node.op == Op::kVariable) {
      const std::int32_t first = variables[static_cast<std::size_t>(step.node.variable)];
      for (int lane = 0; lane < kLanes; ++lane) ints_of(to)[lane] = first + (step.varies ? lane : 0);
    } else if (step.varies) {
      run_step(code, step, lanes, values, to);
    } else {
      run_step(code, step, 1, values, to);
      std::fill(to + 1, to + kLanes, to[0]);
    }
  }
}

void Functions::scores(const ExpressionPoint& at, float* scores, int count, float* scratch) const {
  ExpressionPoint from = at;
  for (int done = 0; done < count; done += kLanes, from.j += kLanes) {
    const int lanes = std::min(kLanes, count - done);
    run(*score_, from, scores + done, lanes, scratch);
    std::copy_n(scratch + score_->root * kLanes, lanes, scores + done);
  }
}

void Functions::hide(const ExpressionPoint& at, float* scores, int count, float* scratch) const {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  ExpressionPoint from = at;
  for (int done = 0; done < count; done += kLanes, from.j += kLanes) {
    const int lanes = std::min(kLanes, count - done);
    run(*mask_, from, nullptr, lanes, scratch);
    const std::int32_t* shown = ints_of(scratch + mask_->root * kLanes);
    for (int lane = 0; lane < lanes; ++lane) scores[done + lane] = shown[lane] != 0 ? scores[done + lane] : kHidden;
  }
}

bool Functions::shows(const ExpressionPoint& at, float* scratch) const {
  run(*mask_, at, nullptr, 1, scratch);
  return ints_of(scratch + mask_->root * kLanes)[0] != 0;
}

BlockUse Functions::use_of(std::int64_t first_row, std::int64_t last_row, int key_begin, int key_end) const {
  if (!mask_) return BlockUse::kFull;
  if (uses_.empty() || key_begin >= key_end) return BlockUse::kCut;
  std::optional<BlockUse> all;
  for (std::int64_t m = first_row / block_m_; m <= last_row / block_m_; ++m) {
    for (std::int64_t n = key_begin / block_n_; n <= (key_end - 1) / block_n_; ++n) {
      const BlockUse use = uses_[static_cast<std::size_t>(m * blocks_n_ + n)];
      if (use == BlockUse::kCut || (all && *all != use)) return BlockUse::kCut;
      all = use;
    }
  }
  return *all;
}

}  // namespace flashcore::cpu_fwd
