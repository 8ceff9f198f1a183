// Expressions: scores and masks of the user's own. The first character chooses which.
#include "core/expression.h"

#include <cmath>

#include "core/expression_code.h"
#include "core/expression_derivative.h"
#include "core/expression_division.h"
#include "core/expression_range.h"
#include "core/expression_value.h"
#include "target.h"

namespace flashcore::fuzz {
namespace {

// Everything that is made of what was parsed, on a small problem.
const Target kExpression("expression", [](std::string_view input) {
  static const std::vector<ExpressionTensor> tensors = {{"slope", ExpressionType::kFloat, 1},
                                                        {"doc", ExpressionType::kInt, 2},
                                                        {"keep", ExpressionType::kBool, 1},
                                                        {"bias", ExpressionType::kFloat, 4}};
  const bool is_mask = input.starts_with('?');
  if (is_mask) input.remove_prefix(1);
  const ExpressionUse use = is_mask ? ExpressionUse::kMask : ExpressionUse::kScore;
  const Expression expression = Expression::parse(input, use, tensors);
  const Expression again = Expression::parse(expression.text(), use, tensors);
  FLASHCORE_REQUIRE(again.text() == expression.text() && again.token() == expression.token());
  FLASHCORE_REQUIRE(again.nodes().size() == expression.nodes().size());

  const ExpressionBox box = ExpressionBox::of({2, 4, 2, 8, 16});
  FLASHCORE_REQUIRE(!expression_device_code(expression, "function", box).empty());
  // Any element at any index: what is out of a shape is check_expression's to refuse.
  ExpressionEvaluator evaluator(expression,
                                [](int, std::span<const std::int32_t> at) { return at[0] % 3 == 0 ? 1.0 : 0.0; });
  ExpressionBox tile = box;
  tile[ExpressionVariable::kB] = tile[ExpressionVariable::kH] = tile[ExpressionVariable::kHk] = {1, 1};
  tile[ExpressionVariable::kI] = {2, 5};
  tile[ExpressionVariable::kJ] = {4, 7};
  const BlockUse said = is_mask ? classify_tile(expression, tile) : BlockUse::kCut;
  for (std::int32_t i = 2; i <= 5; ++i) {
    for (std::int32_t j = 4; j <= 7; ++j) {
      const ExpressionPoint point{.s = 0.5, .b = 1, .h = 1, .hk = 1, .i = i, .j = j, .seqlen_q = 8, .seqlen_kv = 16};
      if (!is_mask) {
        (void)evaluator.score(point);
        continue;
      }
      FLASHCORE_REQUIRE(said == BlockUse::kCut || evaluator.mask(point) == (said == BlockUse::kFull));
    }
  }
  if (!is_mask) (void)expression_derivative(expression);
  check_divisions(expression, box);
  check_expression(expression, box);
});

}  // namespace
}  // namespace flashcore::fuzz
