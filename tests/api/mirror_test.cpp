// The C struct against the table of a problem's fields, by value: what goes in comes out.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "api/problem.h"
#include "core/error.h"
#include "core/problem_fields.h"

namespace flashcore {
namespace {

constexpr int kDraws = 200;
constexpr const char* kWhereToAdd =
    "add it to fc_attention and FC_ATTENTION_INIT in include/flashcore/flashcore.h (at the end, with a new "
    "FC_ABI_VERSION), and to read_request and request_of_id in src/api/problem.cpp";

using RoundTrip = std::function<Problem(const Problem&)>;

Problem through_c(const Problem& p) {
  fc_attention a = FC_ATTENTION_INIT;
  if (fc_problem_parse(p.id().c_str(), &a) != FC_OK) throw_internal("{}: {}", p.id(), fc_last_error());
  return api::read_request(&a).problem;
}

// What is wrong with a mirror, by field: a value that does not come back, or one that never had the chance to be lost.
std::map<std::string, std::string> complaints(const RoundTrip& round_trip) {
  std::map<std::string, std::string> found;
  std::map<std::string_view, std::set<FieldValue>> values;
  Draws draws(17);
  for (int i = 0; i < kDraws; ++i) {
    const Problem p = random_problem(draws), again = round_trip(p);
    for (const ProblemField& field : problem_fields()) {
      const FieldValue before = field.get(p), after = field.get(again);
      values[field.name].insert(before);
      if (before != after)
        found.try_emplace(std::string(field.name),
                          fmt::format("{}: '{}' was {} and came back as {}; {}", p.id(), field.name, field_text(before),
                                      field_text(after), kWhereToAdd));
    }
  }
  for (const ProblemField& field : problem_fields())
    if (values[field.name].size() < 2)
      found.try_emplace(std::string(field.name), fmt::format("'{}' had one value in {} draws, so nothing is known of "
                                                             "its mirrors; let the fuzzer draw it (ProblemField::draw)",
                                                             field.name, kDraws));
  return found;
}

TEST(MirrorTest, EveryFieldSurvivesTheCStruct) {
  for (const auto& [field, complaint] : complaints(through_c)) ADD_FAILURE() << complaint;
}

TEST(MirrorTest, WhatIsLostIsNamedWithWhereToAddIt) {
  const auto found = complaints([](Problem p) {
    p.heads_kv = p.heads_q;
    p.mask.left.reset();
    return p;
  });
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found.at("heads_kv").find("include/flashcore/flashcore.h"), std::string::npos) << found.at("heads_kv");
  EXPECT_NE(found.at("window_left").find("and came back as none"), std::string::npos) << found.at("window_left");
}

}  // namespace
}  // namespace flashcore
