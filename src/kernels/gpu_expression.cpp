#include "kernels/gpu_expression.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/expression_code.h"
#include "core/problem_expressions.h"

namespace flashcore {

static_assert(kMaxExpressionTensors == ExpressionParams::kMaxTensors);
static_assert(kMaxExpressionRank == sizeof(expression::Tensor::stride) / sizeof(long long));

namespace {

void set_strides(expression::Tensor (&tensors)[ExpressionParams::kMaxTensors], const Expression& expression,
                 const Problem& problem, const ProblemLayouts& layouts) {
  std::size_t t = 0;
  for (const int number : tensor_numbers(problem, expression)) {
    const auto& strides = layouts.tensor_strides[static_cast<std::size_t>(number)];
    std::copy(strides.begin(), strides.end(), tensors[t++].stride);
  }
}

struct ListCounts {
  std::int64_t row_tiles = 0, lists = 0, words_per_list = 0;
  bool by_batch = false, by_head = false;
};

ListCounts count_lists(const Problem& problem, const ListShape& shape) {
  const Expression mask = problem.mask_expression();
  ListCounts counts;
  // Sequences of a ragged batch have lengths of their own, which the mask goes by too.
  counts.by_batch = mask.uses(ExpressionVariable::kB) || problem.ragged();
  counts.by_head = mask.uses(ExpressionVariable::kH) || mask.uses(ExpressionVariable::kHk);
  counts.row_tiles = (problem.seqlen_q + shape.tile_rows() - 1) / shape.tile_rows();
  counts.lists = counts.row_tiles * (counts.by_head ? problem.heads_q : 1) * (counts.by_batch ? problem.batch : 1);
  counts.words_per_list = tile::list_words((problem.seqlen_kv + shape.block_n - 1) / shape.block_n);
  return counts;
}

void set_list_counts(ExpressionParams& params, const ListCounts& counts, const Problem& problem) {
  params.words_per_list = counts.words_per_list;
  params.lists_per_head = counts.by_head ? static_cast<int>(counts.row_tiles) : 0;
  params.lists_per_batch =
      counts.by_batch ? static_cast<int>(counts.row_tiles * (counts.by_head ? problem.heads_q : 1)) : 0;
}

}  // namespace

std::string user_expression_header(const Problem& problem) {
  const ExpressionBox box = expression_box(problem);
  std::string text =
      "#pragma once\n#include \"kernels/tile/expression.cuh\"\n#include \"kernels/tile/expression_range.cuh\"\n"
      "namespace flashcore::user {\n";
  const auto add_flag = [&](const char* name, bool reads) {
    text += fmt::format("enum : bool {{ {} = {} }};\n", name, reads);
  };
  const Expression score =
      problem.has_score_expression() ? problem.score_expression() : Expression::parse("s", ExpressionUse::kScore);
  const Expression mask =
      problem.has_mask_expression() ? problem.mask_expression() : Expression::parse("0 == 0", ExpressionUse::kMask);
  add_flag("kScoreReadsTensors", !score.tensors().empty());
  add_flag("kMaskReadsTensors", !mask.tensors().empty());
  text += expression_device_code(score, "score", box) + expression_device_code(mask, "mask", box) +
          expression_range_code(mask, "MaskRanges", box);
  return text + "}  // namespace flashcore::user\n";
}

bool reads_elements_of_pairs(const Expression& expression) {
  constexpr unsigned kOnRow = 1, kOnKey = 2;
  std::vector<unsigned> depends;
  for (const ExpressionNode& node : expression.nodes()) {
    const bool is_variable = node.op == ExpressionOp::kVariable;
    unsigned on = is_variable && node.variable == ExpressionVariable::kI   ? kOnRow
                  : is_variable && node.variable == ExpressionVariable::kJ ? kOnKey
                                                                           : 0;
    for (std::size_t a = 0; a < static_cast<std::size_t>(node.count); ++a)
      on |= depends[static_cast<std::size_t>(node.args[a])];
    if (node.op == ExpressionOp::kElement && on == (kOnRow | kOnKey)) return true;
    depends.push_back(on);
  }
  return false;
}

bool mask_combines_elements_of_pairs(const Problem& problem) {
  if (!problem.has_mask_expression()) return false;
  const Expression& mask = problem.mask_expression();
  return mask.nodes()[static_cast<std::size_t>(mask.root())].op != ExpressionOp::kElement &&
         reads_elements_of_pairs(mask);
}

ExpressionParams make_expression_params(const Problem& problem, const ProblemLayouts& layouts, double unit) {
  ExpressionParams params{};
  params.unit = static_cast<float>(unit);
  if (problem.has_score_expression()) set_strides(params.score_tensors, problem.score_expression(), problem, layouts);
  if (problem.has_mask_expression()) set_strides(params.mask_tensors, problem.mask_expression(), problem, layouts);
  return params;
}

void relocate_expressions(Step& step, std::size_t offset, const Problem& problem) {
  const auto relocate = [&](const Expression& expression, std::size_t tensors) {
    std::size_t at = offset + tensors + offsetof(expression::Tensor, data);
    for (const int number : tensor_numbers(problem, expression)) {
      step.relocate(at, operand_of_tensor(static_cast<std::size_t>(number)));
      at += sizeof(expression::Tensor);
    }
  };
  if (problem.has_score_expression()) relocate(problem.score_expression(), offsetof(ExpressionParams, score_tensors));
  if (problem.has_mask_expression()) relocate(problem.mask_expression(), offsetof(ExpressionParams, mask_tensors));
}

KernelEntry list_kernel(const ListShape& shape, const Problem& problem, const std::string& traits) {
  return {fmt::format("flashcore::tile::list_blocks{}<{}, {}, {}, {}>", problem.ragged() ? "_ragged" : "", traits,
                      shape.groups, shape.group_rows, shape.block_n),
          tile::kListSharedBytes, tile::kListThreads};
}

void add_block_lists(Program& program, std::size_t offset, const Problem& problem, const RaggedListParams& bounds,
                     const ListShape& shape) {
  const ListCounts counts = count_lists(problem, shape);
  const std::int64_t bytes = counts.lists * counts.words_per_list * 4;
  if (counts.words_per_list > tile::kMaxListedBlocks)
    throw_bad_input("a mask function takes at most {} keys in blocks of {}; {} has {}",
                    std::int64_t{tile::kMaxListedBlocks} * shape.block_n, shape.block_n, problem.id(),
                    problem.seqlen_kv);
  if (bytes > kMostListBytes)
    throw_bad_input(
        "the mask function of {} leaves {} lists of blocks, {} bytes; at most {} are allowed: name fewer of b, h and "
        "hk in it, or call it for fewer heads at a time",
        problem.id(), counts.lists, bytes, kMostListBytes);
  const AddressOf lists = AddressOf::workspace(program.workspaces.size());
  program.workspaces.push_back(
      {static_cast<std::size_t>(std::max<std::int64_t>(bytes, 16)), Workspace::Contents::kScratch});

  Step& reader = program.steps.back();
  ExpressionParams of_reader;
  FC_CHECK(offset + sizeof of_reader <= reader.launch.params.size());
  std::memcpy(&of_reader, reader.launch.params.data() + offset, sizeof of_reader);
  set_list_counts(of_reader, counts, problem);
  std::memcpy(reader.launch.params.data() + offset, &of_reader, sizeof of_reader);
  reader.relocate(offset + offsetof(ExpressionParams, lists), lists);

  Step maker;
  const std::size_t own = offsetof(ListParams, expression);
  // Part by part, as set_params_of.
  maker.launch.params.assign(problem.ragged() ? sizeof(RaggedListParams) : sizeof(ListParams), std::byte{0});
  maker.set_part(0, bounds.plain.problem);
  if (problem.ragged()) maker.set_part(offsetof(RaggedListParams, ragged), bounds.ragged);
  if (problem.paged()) maker.set_part(offsetof(RaggedListParams, paged), bounds.paged);
  maker.set_part(own, of_reader);
  maker.set_part(offsetof(ListParams, row_tiles), static_cast<int>(counts.row_tiles));
  relocate_expressions(maker, own, problem);
  maker.relocate(own + offsetof(ExpressionParams, lists), lists);
  maker.launch.kernel = 1;
  maker.launch.grid.x = static_cast<unsigned>(counts.lists);
  maker.launch.block.x = tile::kListThreads;
  maker.launch.shared_bytes = static_cast<unsigned>(tile::kListSharedBytes);
  maker.reusable = true;
  maker.constant = !problem.ragged() && problem.mask_expression().tensors().empty();
  program.steps.insert(program.steps.begin(), std::move(maker));
}

}  // namespace flashcore
