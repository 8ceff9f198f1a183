#pragma once
// Functions of the user's own on GPUs: the header that is made of them, their parameters, and the step of a program
// that makes the lists of blocks a mask function leaves.

#include <cstddef>
#include <string>

#include "core/expression.h"
#include "core/operands.h"
#include "device/artifact.h"
#include "kernels/program.h"
#include "kernels/tile/expression_params.h"
#include "kernels/tile/traits.h"

namespace flashcore {

// The text that takes the place of tile/user_expression.cuh, by its path.
inline constexpr const char* kUserExpressionPath = "tile/user_expression.cuh";
std::string user_expression_header(const Problem& problem);

// Whether an element that it reads is another one for each pair of a row and a key: such are loaded for all keys of a
// block at once, and cost registers.
bool reads_elements_of_pairs(const Expression& expression);
// Whether the problem's mask function is more than such an element (allowed[i, j] || i == j). What it is combined with
// is alive beside the elements of all keys, and ptxas spills where elements alone fit.
bool mask_combines_elements_of_pairs(const Problem& problem);

// Addresses are null: relocate_expressions has them, for an ExpressionParams at byte `offset`. `unit`: of scores before
// the score function.
ExpressionParams make_expression_params(const Problem& problem, const ProblemLayouts& layouts, double unit);
void relocate_expressions(Step& step, std::size_t offset, const Problem& problem);

// Tiles of `groups` row groups of `group_rows` rows, and blocks of `block_n` keys.
struct ListShape {
  int groups = 1, group_rows = 0, block_n = 0;
  int tile_rows() const { return groups * group_rows; }
};
// The kernel that makes lists of that shape, of the problem's traits as print_traits writes them.
KernelEntry list_kernel(const ListShape& shape, const Problem& problem, const std::string& traits);
// Of a problem with a mask function, once the program's last step has all its parameters, with an ExpressionParams at
// byte `offset`: the step that makes the lists before it, and their memory. It is reusable, and constant where the
// mask names no tensor and the lengths are the problem's. `bounds`: parameters of the same problem
// without addresses; those of a ragged batch are to be relocated in the new first step.
// Error kBadInput where they would take more than kMostListBytes.
inline constexpr std::int64_t kMostListBytes = std::int64_t{1} << 32;
void add_block_lists(Program& program, std::size_t offset, const Problem& problem, const RaggedListParams& bounds,
                     const ListShape& shape);

}  // namespace flashcore
