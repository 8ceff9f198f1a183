// Tensors that score and mask functions name.

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/data.h"
#include "core/drawn_scores.h"
#include "core/indexed_random.h"
#include "core/parallel.h"
#include "core/problem_expressions.h"

namespace flashcore {
namespace {

constexpr std::int64_t kLongDimension = 4096, kLargeDimension = 1024;
constexpr std::int64_t kDocument = 37, kLongDocument = 1000;
// Ids that 16 bits do not hold, of either sign, in no order, and of few documents again.
constexpr std::int64_t kBetweenIds = 100003, kIds = 101, kIdStep = 37;
constexpr std::int64_t kTrueBytes = std::int64_t{1} << 41;  // apart from the numbers of what holds
constexpr std::int64_t kFew = 64, kMostOfFew = 300;

// Prefixes, counts: of a dimension with few entries. Else documents, which all tensors with the same leading indices
// share: `row` counts those. Long ones are of one length; others are longer from row to row, up to more than a tile.
std::int64_t integer_at(const IndexedRandom& random, std::int64_t index, std::int64_t columns) {
  if (columns < kFew) return random.below(index, kMostOfFew);
  const std::int64_t row = index / columns, column = index % columns;
  const std::int64_t length = columns >= kLongDimension ? kLongDocument : kDocument * (1 + 3 * row % 7);
  return (column / length * kIdStep % kIds - kIds / 2) * kBetweenIds;
}

void store_at(ElementTensor& tensor, std::int64_t index, const IndexedRandom& random) {
  const auto place = static_cast<std::size_t>(index);
  const auto last = static_cast<std::size_t>(tensor.shape.count - 1);
  const std::int64_t columns = tensor.shape.sizes[last];
  switch (tensor.element) {
    case ExpressionType::kFloat: {
      // Some far below and above the rest, as masks that are added have them.
      constexpr double kFar = 16;
      const double normal = random.normal(index);
      const auto value = static_cast<float>(random.below(-1 - index, 16) == 0 ? kFar * normal : normal);
      std::memcpy(tensor.data.data() + place * sizeof value, &value, sizeof value);
      return;
    }
    case ExpressionType::kInt: {
      const auto value = static_cast<std::int32_t>(integer_at(random, index, columns));
      std::memcpy(tensor.data.data() + place * sizeof value, &value, sizeof value);
      return;
    }
    case ExpressionType::kBool: {
      const std::int64_t rows = last == 0 ? 0 : tensor.shape.sizes[last - 1];
      const bool holds = rows >= kLargeDimension && columns >= kLargeDimension
                             ? index % columns <= index / columns % rows
                             : random.below(index, 4) != 0;
      // What holds is any byte but 0, in half of the places 1.
      const std::int64_t chance = random.below(kTrueBytes + index, 2 * 255);
      tensor.data[place] = static_cast<std::byte>(!holds ? 0 : chance < 255 ? 1 : chance - 254);
      return;
    }
  }
}

}  // namespace

std::int64_t ElementTensor::count() const {
  std::int64_t product = 1;
  for (std::size_t x = 0; x < static_cast<std::size_t>(shape.count); ++x) product *= shape.sizes[x];
  return product;
}

double ElementTensor::at(std::span<const std::int32_t> indices) const {
  std::size_t place = 0;
  for (std::size_t x = 0; x < indices.size(); ++x)
    place = place * static_cast<std::size_t>(shape.sizes[x]) + static_cast<std::size_t>(indices[x]);
  if (element == ExpressionType::kBool) return data[place] != std::byte{0};
  if (element == ExpressionType::kInt) {
    std::int32_t value = 0;
    std::memcpy(&value, data.data() + place * sizeof value, sizeof value);
    return value;
  }
  float value = 0;
  std::memcpy(&value, data.data() + place * sizeof value, sizeof value);
  return static_cast<double>(value);
}

namespace {

// Whether nothing but one operation reads the tensor, by one element. Of equal subtrees there is one node.
bool is_read_once(const Expression& expression, int element) {
  const std::vector<ExpressionNode>& nodes = expression.nodes();
  const int tensor = nodes[static_cast<std::size_t>(element)].tensor;
  std::int64_t elements = 0, uses = 0;
  for (const ExpressionNode& node : nodes) {
    elements += node.op == ExpressionOp::kElement && node.tensor == tensor;
    uses += std::count(node.args.begin(), node.args.begin() + node.count, element);
  }
  return elements == 1 && uses == 1;
}

// Numbers in Problem::tensors of those that only the sum at the root of the score reads.
std::vector<std::size_t> added_tensors(const Problem& problem) {
  if (!problem.has_score_expression()) return {};
  const Expression score = problem.score_expression();
  const auto node_at = [&](int number) -> const ExpressionNode& {
    return score.nodes()[static_cast<std::size_t>(number)];
  };
  if (node_at(score.root()).op != ExpressionOp::kAdd) return {};
  std::vector<int> of_mask;
  if (problem.has_mask_expression()) of_mask = tensor_numbers(problem, problem.mask_expression());
  const std::vector<int> numbers = tensor_numbers(problem, score);
  std::vector<std::size_t> added;
  for (int side = 0; side < 2; ++side) {
    const int element = node_at(score.root()).args[static_cast<std::size_t>(side)];
    const ExpressionNode& term = node_at(element);
    if (term.op != ExpressionOp::kElement || !is_read_once(score, element)) continue;
    const int number = numbers[static_cast<std::size_t>(term.tensor)];
    if (std::find(of_mask.begin(), of_mask.end(), number) == of_mask.end())
      added.push_back(static_cast<std::size_t>(number));
  }
  return added;
}

}  // namespace

void hide_blocks(const Problem& problem, std::vector<ElementTensor>& tensors) {
  // As many keys as most kernels take at once.
  constexpr std::int64_t kKeys = 128, kRows = 32, kEvery = 3;
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  for (const std::size_t number : added_tensors(problem)) {
    ElementTensor& tensor = tensors[number];
    const std::int64_t columns = tensor.shape.sizes[static_cast<std::size_t>(tensor.shape.count - 1)];
    if (tensor.element != ExpressionType::kFloat || columns <= kKeys) continue;  // else nothing would be left
    for (std::int64_t i = 0; i < tensor.count(); ++i)
      if ((i / columns / kRows + i % columns / kKeys) % kEvery == 0)
        std::memcpy(tensor.data.data() + static_cast<std::size_t>(i) * sizeof kHidden, &kHidden, sizeof kHidden);
  }
}

std::vector<ElementTensor> make_tensors(const Problem& problem, std::uint64_t seed) {
  std::vector<ElementTensor> tensors;
  if (problem.tensors.empty()) return tensors;
  const std::vector<ExpressionShape> shapes = tensor_shapes(problem);
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    ElementTensor& tensor = tensors.emplace_back(ElementTensor{problem.tensors[t].element, shapes[t], {}});
    const IndexedRandom random(seed + kSplitMixStep * 0x1000 * t, DataStream::kTensors);
    const std::int64_t count = tensor.count();
    tensor.data.resize(static_cast<std::size_t>(count) * bytes_of(tensor.element));
    constexpr std::int64_t kPiece = 1 << 14;
    parallel_for((count + kPiece - 1) / kPiece, count <= kPiece ? 1 : 0, [&](std::int64_t piece) {
      const std::int64_t end = std::min(count, (piece + 1) * kPiece);
      for (std::int64_t i = piece * kPiece; i < end; ++i) store_at(tensor, i, random);
    });
  }
  return tensors;
}

}  // namespace flashcore
