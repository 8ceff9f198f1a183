#include "core/expression_builtin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace flashcore {

namespace {

// The own key of row i.
std::string_view own_key(Alignment alignment) {
  return alignment == Alignment::kBottomRight ? "(i + seqlen_kv - seqlen_q)" : "i";
}

std::string causal_text(Alignment alignment) { return fmt::format("j <= {}", own_key(alignment)); }

std::string offset_text(std::string_view key, std::int64_t bound, char sign) {
  if (bound < 0) {
    bound = -bound;
    sign = sign == '+' ? '-' : '+';
  }
  return bound == 0 ? std::string(key) : fmt::format("{} {} {}", key, sign, bound);
}

// Parsed, an expression of more words would be refused; and of expressions that name s often, what is made of a few is
// longer than any memory.
constexpr double kMostOperations = 300;

double operations(const Expression& expression) {
  std::vector<double> of;
  for (const ExpressionNode& node : expression.nodes()) {
    double all = 1;
    for (int a = 0; a < node.count; ++a) all += of[static_cast<std::size_t>(node.args[static_cast<std::size_t>(a)])];
    of.push_back(all);
  }
  return of[static_cast<std::size_t>(expression.root())];
}

// The nodes of `from` in `to`, with `s` (where it is one) for s; its root.
int copy_into(ExpressionBuilder& to, const Expression& from, int s) {
  std::vector<int> place;
  for (const ExpressionNode& node : from.nodes()) {
    std::array<int, kMaxExpressionRank> args{};
    for (std::size_t a = 0; a < static_cast<std::size_t>(node.count); ++a)
      args[a] = place[static_cast<std::size_t>(node.args[a])];
    const std::span<const int> given = std::span<const int>(args).first(static_cast<std::size_t>(node.count));
    switch (node.op) {
      case ExpressionOp::kWhole: place.push_back(to.whole(node.whole, node.column)); break;
      case ExpressionOp::kReal: place.push_back(to.real(node.real, node.column)); break;
      case ExpressionOp::kVariable:
        place.push_back(node.variable == ExpressionVariable::kS && s >= 0 ? s
                                                                          : to.variable(node.variable, node.column));
        break;
      case ExpressionOp::kElement:
        place.push_back(to.element(from.tensors()[static_cast<std::size_t>(node.tensor)], given, node.column));
        break;
      case ExpressionOp::kToFloat: place.push_back(to.to_float(args[0])); break;
      default: place.push_back(to.operation(node.op, given, "", node.column));
    }
  }
  return place[static_cast<std::size_t>(from.root())];
}

Expression joined(ExpressionBuilder&& builder, int root, const Expression& a, const Expression& b) {
  for (const ExpressionTensor& tensor : a.tensors()) {
    const auto same = std::find_if(b.tensors().begin(), b.tensors().end(),
                                   [&](const ExpressionTensor& other) { return other.name == tensor.name; });
    if (same != b.tensors().end() && *same != tensor)
      throw_bad_input(
          "two expressions name the tensor '{}' and mean {} with {} and {} with {} indices; one has to be "
          "called otherwise",
          tensor.name, expression_type_words(tensor.element), tensor.rank, expression_type_words(same->element),
          same->rank);
  }
  Expression made = std::move(builder).finish(root);
  if (operations(made) > kMostOperations)
    throw_bad_input("together, two expressions have {} operations; {} are allowed", operations(made), kMostOperations);
  return made;
}

}  // namespace

Expression softcap_score(double cap) {
  if (!(cap > 0) || !(static_cast<float>(cap) > 0) || std::isinf(static_cast<float>(cap)))
    throw_bad_input("softcap is {}; it has to be a positive fp32 number, or 0 for none", cap);
  return Expression::parse(fmt::format("{0} * tanh(s / {0})", cap), ExpressionUse::kScore);
}

std::optional<double> softcap_of(const Expression& score) {
  using Op = ExpressionOp;
  const auto at = [&](int number) -> const ExpressionNode& { return score.nodes()[static_cast<std::size_t>(number)]; };
  const ExpressionNode& product = at(score.root());
  if (product.op != Op::kMultiply) return std::nullopt;
  const bool is_first = at(product.args[0]).op == Op::kReal;
  const ExpressionNode &cap = at(product.args[is_first ? 0 : 1]), &bounded = at(product.args[is_first ? 1 : 0]);
  if (cap.op != Op::kReal || bounded.op != Op::kTanh) return std::nullopt;
  const ExpressionNode& share = at(bounded.args[0]);
  if (share.op != Op::kDivide) return std::nullopt;
  const ExpressionNode &s = at(share.args[0]), &divisor = at(share.args[1]);
  if (s.op != Op::kVariable || s.variable != ExpressionVariable::kS) return std::nullopt;
  if (divisor.op != Op::kReal || divisor.real != cap.real) return std::nullopt;
  return cap.real;
}

void name_softcap(Problem& problem) {
  if (!problem.has_score_expression() || problem.transforms_scores()) return;
  const std::optional<double> cap = softcap_of(problem.score_expression());
  if (!cap || !(*cap >= kMinSoftcap && *cap <= kMaxSoftcap)) return;
  problem.softcap = *cap;
  problem.score_text.clear();  // it names no tensor
}

Expression alibi_score(Alignment alignment) {
  const ExpressionTensor slopes{std::string(kAlibiSlopes), ExpressionType::kFloat, 1};
  return Expression::parse(fmt::format("s - {}[h] * abs({} - j)", kAlibiSlopes, own_key(alignment)),
                           ExpressionUse::kScore, {&slopes, 1});
}

Expression band_mask(const Mask& band) {
  FC_CHECK(!band.none());
  const std::string_view own = own_key(band.alignment);
  std::string text;
  if (band.left) text = fmt::format("j >= {}", offset_text(own, *band.left, '-'));
  if (band.right) text += fmt::format("{}j <= {}", text.empty() ? "" : " && ", offset_text(own, *band.right, '+'));
  return Expression::parse(text, ExpressionUse::kMask);
}

Expression prefix_mask(std::int64_t keys, Alignment alignment) {
  return Expression::parse(fmt::format("j < {} || {}", keys, causal_text(alignment)), ExpressionUse::kMask);
}

Expression prefix_mask_of_batch(Alignment alignment) {
  const ExpressionTensor keys{std::string(kPrefixKeys), ExpressionType::kInt, 1};
  return Expression::parse(fmt::format("j < {}[b] || {}", kPrefixKeys, causal_text(alignment)), ExpressionUse::kMask,
                           {&keys, 1});
}

Expression document_mask() {
  const ExpressionTensor documents[] = {{std::string(kDocumentQ), ExpressionType::kInt, 2},
                                        {std::string(kDocumentKv), ExpressionType::kInt, 2}};
  return Expression::parse(fmt::format("{}[b, i] == {}[b, j]", kDocumentQ, kDocumentKv), ExpressionUse::kMask,
                           documents);
}

Expression score_after(const Expression& first, const Expression& next) {
  FC_CHECK(first.use() == ExpressionUse::kScore && next.use() == ExpressionUse::kScore);
  ExpressionBuilder builder(first);
  const int root = copy_into(builder, next, first.root());
  return joined(std::move(builder), root, first, next);
}

Expression both_masks(const Expression& a, const Expression& b) {
  FC_CHECK(a.use() == ExpressionUse::kMask && b.use() == ExpressionUse::kMask);
  ExpressionBuilder builder(a);
  const int args[] = {a.root(), copy_into(builder, b, -1)};
  return joined(std::move(builder), builder.operation(ExpressionOp::kAnd, args, "&&"), a, b);
}

}  // namespace flashcore
