#include "api/functions.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/expression_builtin.h"
#include "core/foreign_text.h"
#include "core/problem_expressions.h"

namespace flashcore::api {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

std::string_view text_of(const char* text) { return text ? std::string_view(text) : std::string_view(); }

ExpressionType element_of(const fc_tensor& tensor) {
  switch (tensor.element) {
    case FC_ELEMENT_FLOAT: return ExpressionType::kFloat;
    case FC_ELEMENT_INT: return ExpressionType::kInt;
    case FC_ELEMENT_BOOL: return ExpressionType::kBool;
    default:
      throw_bad_input(
          "the tensor '{}' has element {}; use FC_ELEMENT_FLOAT (0), FC_ELEMENT_INT (1) or FC_ELEMENT_BOOL (2)",
          excerpt(text_of(tensor.name), 40), tensor.element);
  }
}
int number_of(ExpressionType element) {
  return element == ExpressionType::kFloat ? FC_ELEMENT_FLOAT
         : element == ExpressionType::kInt ? FC_ELEMENT_INT
                                           : FC_ELEMENT_BOOL;
}

std::string shape_text(const std::int64_t* sizes, int count) {
  std::string text;
  for (int x = 0; x < count; ++x) text += fmt::format("{}{}", x == 0 ? "" : ", ", sizes[x]);
  return "[" + text + "]";
}

// Texts and tensors of ids, which stay for as long as the process lives.
struct KeptFunctions {
  std::string score, mask;
  std::vector<std::string> names;
  std::vector<fc_tensor> tensors;
};
const KeptFunctions& kept_functions(const Problem& problem) {
  static std::map<std::string, KeptFunctions> kept;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = kept.try_emplace(problem.id());
  KeptFunctions& made = place->second;
  if (!is_new) return made;
  made.score = problem.score_text, made.mask = problem.mask_text;
  const std::vector<ExpressionShape> shapes = tensor_shapes(problem);
  for (const ExpressionTensor& tensor : problem.tensors) made.names.push_back(tensor.name);
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    fc_tensor tensor = {made.names[t].c_str(), number_of(problem.tensors[t].element), shapes[t].count, {}, {}};
    std::copy(shapes[t].sizes.begin(), shapes[t].sizes.end(), tensor.sizes);
    made.tensors.push_back(tensor);
  }
  return made;
}

}  // namespace

void take_functions(const fc_attention& a, Problem& problem) {
  if (a.tensor_count < 0 || a.tensor_count > static_cast<std::int32_t>(kMaxExpressionTensors))
    throw_bad_input("tensor_count is {}; a score and a mask name at most {} tensors", a.tensor_count,
                    kMaxExpressionTensors);
  if (a.tensor_count > 0 && !a.tensors)
    throw_bad_input("tensors is null and tensor_count is {}; give the address of so many fc_tensor", a.tensor_count);
  std::vector<ExpressionTensor> tensors;
  for (std::int32_t t = 0; t < a.tensor_count; ++t)
    tensors.push_back({std::string(text_of(a.tensors[t].name)), element_of(a.tensors[t]), a.tensors[t].rank});
  set_expressions(problem, text_of(a.score), text_of(a.mask), tensors);
  name_softcap(problem);
}

void place_tensors(const fc_attention& a, Request& request) {
  const Problem& problem = request.problem;
  const std::vector<ExpressionShape> shapes = tensor_shapes(problem);
  for (std::size_t t = 0; t < problem.tensors.size(); ++t) {
    int place = 0;
    while (problem.tensors[t].name != a.tensors[place].name) ++place;
    const fc_tensor& given = a.tensors[place];
    auto& strides = request.layouts.tensor_strides[t];
    const int rank = given.rank;
    std::int64_t contiguous = 1, reach = 0;
    for (int x = rank; x-- > 0;) {
      if (given.sizes[x] < shapes[t].sizes[static_cast<std::size_t>(x)])
        throw_bad_input("the tensor '{}' has shape {}, and {} needs one of {} at the least", given.name,
                        shape_text(given.sizes, rank), problem.id(), shape_text(shapes[t].sizes.data(), rank));
      const bool is_given = (a.given & FC_GIVEN_TENSOR_STRIDES) != 0;
      const std::int64_t stride = is_given ? given.strides[x] : contiguous, steps = given.sizes[x] - 1;
      if (stride < 0 || (steps > 0 && stride > (kMostElements - reach) / steps) ||
          (!is_given && given.sizes[x] > kMostElements / contiguous))
        throw_bad_input(
            "the tensor '{}' of shape {} has stride {} along index {}; strides are 0 or more, and a tensor spans at "
            "most 2^40 elements",
            given.name, shape_text(given.sizes, rank), stride, x + 1);
      reach += stride * steps;
      if (!is_given) contiguous *= given.sizes[x];
      strides[static_cast<std::size_t>(x)] = stride;
    }
    request.tensor_order.push_back(place);
    request.tensor_bytes.push_back((reach + 1) * static_cast<std::int64_t>(bytes_of(problem.tensors[t].element)));
  }
}

void fill_functions(const Problem& problem, fc_attention& a) {
  const KeptFunctions& functions = kept_functions(problem);
  if (problem.has_score_expression()) a.score = functions.score.c_str();
  if (problem.has_mask_expression()) a.mask = functions.mask.c_str();
  a.tensors = functions.tensors.empty() ? nullptr : functions.tensors.data();
  a.tensor_count = static_cast<std::int32_t>(functions.tensors.size());
}

}  // namespace flashcore::api
