// The table of a problem's fields against its mirrors in device code: Traits, for which a kernel is compiled, and
// ForwardParams, which each launch gets; of 8 bits Fp8ForwardParams.
#include "kernels/tile/traits.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/problem_fields.h"
#include "kernels/gpu_family.h"

namespace flashcore {
namespace {

constexpr int kDraws = 400;

using Print = std::function<std::string(const Problem&)>;

std::string traits_text(const Problem& p) {
  return print_traits(traits_of(p)) + (p.has_transposed_v() ? " of forward_fp8_vdn" : "");
}

// As bytes. Strides are those of one problem, so that a size shows by itself.
std::string params_text(const Problem& p) {
  static const ProblemLayouts layouts = make_layouts(Problem(), Layout::kBhsd);
  Step step;
  set_forward_params(step, p, layouts);
  std::string bytes(step.launch.params.size(), '\0');
  std::memcpy(bytes.data(), step.launch.params.data(), bytes.size());
  return bytes;
}

// `p` with one field of `other`; none where the two do not go together.
std::optional<Problem> with_field(const Problem& p, const ProblemField& changed, const Problem& other) {
  try {
    Problem made;
    for (const ProblemField& field : problem_fields())
      field.set(made, field.get(field.name == changed.name ? other : p));
    made.validate();
    return made;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Kernels are compiled for which sides of the band are bounded, not for how far.
bool same_sides(const Problem& a, const Problem& b) {
  const auto band_a = a.band(), band_b = b.band();
  return band_a.bounded_left == band_b.bounded_left && band_a.bounded_right == band_b.bounded_right;
}

// Nor for how much of a softcap: only for whether there is one.
bool only_another_softcap(const Problem& a, const Problem& b) {
  return a.softcap && b.softcap && a.softcap != b.softcap;
}

// Nor for which lengths a ragged batch is checked with: only for whether it is one.
bool only_other_lengths(const Problem& a, const Problem& b) {
  return a.ragged() && b.ragged() && a.lengths != b.lengths;
}

// Nor for how large pages are: only for whether there are any.
bool only_another_page_size(const Problem& a, const Problem& b) {
  return a.paged() && b.paged() && a.page_size != b.page_size;
}

// Nor for how many factors there are: only for whether each key has its own.
bool only_other_factors(const Problem& a, const Problem& b) {
  const auto by_token = [](const Problem& p) { return p.input_scaling() == Scaling::kToken; };
  return a.input_scaling() != b.input_scaling() && by_token(a) == by_token(b);
}

// Nor has a function's text a trait: it is in the source that is made for the problem.
bool only_other_functions(const Problem& a, const Problem& b) {
  return a.has_score_expression() == b.has_score_expression() && a.has_mask_expression() == b.has_mask_expression() &&
         (a.score_text != b.score_text || a.mask_text != b.mask_text || a.tensors != b.tensors);
}

// What is wrong with the mirrors, by field.
std::map<std::string_view, std::string> complaints(const Print& traits, const Print& params) {
  std::map<std::string_view, std::string> found;
  std::map<std::string_view, int> pairs, in_params;
  Draws draws(5);
  for (int i = 0; i < kDraws; ++i) {
    const Problem p = random_problem(draws), other = random_problem(draws);
    for (const ProblemField& field : problem_fields()) {
      const auto q = with_field(p, field, other);
      if (!q || field.get(*q) == field.get(p)) continue;
      const bool specialises = !field.compiled_for.empty() || field.own_kernels;
      const bool of_the_mask = q->mask != p.mask;
      if (specialises ? of_the_mask && same_sides(p, *q) : !same_sides(p, *q)) continue;
      if (only_other_lengths(p, *q) || only_other_functions(p, *q)) continue;
      ++pairs[field.name];
      if (only_other_factors(p, *q)) continue;
      if (only_another_softcap(p, *q)) {
        if (params(p) == params(*q))
          found[field.name] =
              fmt::format("no launch tells {} from {}: add softcap to make_score_params", p.id(), q->id());
        continue;
      }
      if (only_another_page_size(p, *q)) {
        if (params(p) == params(*q))
          found[field.name] =
              fmt::format("no launch tells {} from {}: add page_size to make_paged_params", p.id(), q->id());
        continue;
      }
      if (params(p) != params(*q)) ++in_params[field.name];
      if (specialises && traits(p) == traits(*q))
        found[field.name] = fmt::format(
            "kernels are compiled for '{}' (compiled_for in src/core/problem_fields.cpp), and those of {} and {} have "
            "one name, {}: add it to Traits in src/kernels/tile/traits.h",
            field.name, p.id(), q->id(), traits(p));
      if (!specialises && traits(p) != traits(*q))
        found[field.name] = fmt::format(
            "'{}' is given at run time (no compiled_for in src/core/problem_fields.cpp), and {} and {} have kernels "
            "of their own, {} and {}: take it out of Traits, or let the table say what kernels are compiled for",
            field.name, p.id(), q->id(), traits(p), traits(*q));
    }
  }
  for (const ProblemField& field : problem_fields()) {
    if (field.name == "tensors") continue;  // others alone belong to other functions
    if (pairs[field.name] < 5)
      found[field.name] = fmt::format("only {} pairs of problems differ in '{}' alone: let the fuzzer draw it",
                                      pairs[field.name], field.name);
    else if (field.compiled_for.empty() && !field.own_kernels && in_params[field.name] == 0)
      found[field.name] = fmt::format(
          "'{}' is given at run time, and no value of it reaches a launch: add it to ForwardParams in "
          "src/kernels/tile/traits.h and to make_forward_params in src/kernels/gpu_family.cpp",
          field.name);
  }
  return found;
}

TEST(TraitsTest, KernelsAreCompiledForWhatTheTableSays) {
  for (const auto& [field, complaint] : complaints(traits_text, params_text)) ADD_FAILURE() << complaint;
}

// Each member of Traits has its value from some field, and each name in the table is a member of Traits.
TEST(TraitsTest, TheTableNamesEveryMemberAndNoOther) {
  std::set<std::string_view> members, named;
  Traits::fields([&](const char* name, auto) { members.insert(name); });
  for (const ProblemField& field : problem_fields()) {
    for (const auto& fact : field.compiled_for) named.insert(fact.trait);
  }
  EXPECT_EQ(members, named);
  EXPECT_THROW((void)compiled_value("no_trait", Problem()), Error);
}

TEST(TraitsTest, AFieldThatIsMissingIsNamedWithWhereToAddIt) {
  const auto without_head_dim_v = [](Problem p) {
    p.head_dim_v = 64;
    return traits_text(p);
  };
  const auto with_batch = [](const Problem& p) { return fmt::format("{}, {}", traits_text(p), p.batch); };
  const auto without_scale = [](Problem p) {
    p.scale = 1;
    return params_text(p);
  };
  const auto only = [](const std::map<std::string_view, std::string>& found, std::string_view field) {
    EXPECT_EQ(found.size(), 1u);
    const auto complaint = found.find(field);
    return complaint == found.end() ? std::string("no complaint") : complaint->second;
  };
  EXPECT_NE(only(complaints(without_head_dim_v, params_text), "head_dim_v").find("src/kernels/tile/traits.h"),
            std::string::npos);
  EXPECT_NE(only(complaints(with_batch, params_text), "batch").find("take it out of Traits"), std::string::npos);
  EXPECT_NE(only(complaints(traits_text, without_scale), "scale").find("add it to ForwardParams"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
