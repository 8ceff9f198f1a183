#include "core/json_text.h"

#include <gtest/gtest.h>

#include <ctime>

#include "core/error.h"

namespace flashcore {
namespace {

std::string refused(std::string_view text) {
  try {
    parse_json(text, "a.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(JsonTextTest, ReadsWhatTheLibraryReads) {
  const char* text = R"({"a": [1, -2, 3.5, true, null, "\u00e9", [], {}], "b": {"a": {"a": 18446744073709551615}}})";
  EXPECT_EQ(parse_json(text, "a.json"), nlohmann::json::parse(text));
  EXPECT_EQ(parse_json(" 5 ", "a.json"), 5);
}

TEST(JsonTextTest, WhatReadersDisagreeOnIsRefused) {
  EXPECT_NE(refused(R"({"a": {"k": 1, "k": 2}})").find("the key 'k' is given twice"), std::string::npos);
  EXPECT_EQ(refused(R"({"a": {"k": 1}, "b": {"k": 2}})"), "accepted");
  EXPECT_NE(refused("[1e400]").find("number overflow"), std::string::npos) << refused("[1e400]");
  EXPECT_NE(refused(std::string(101, '[') + std::string(101, ']')).find("nested deeper than 100"), std::string::npos);
  EXPECT_EQ(refused(std::string(100, '[') + std::string(100, ']')), "accepted");
  // A parser, or a destructor, that calls itself would run out of stack here.
  EXPECT_NE(refused(std::string(5'000'000, '[')).find("nested"), std::string::npos);
  for (const char* no : {"", "{", "[1,]", "{\"a\" 1}", "nan", "[1] 2", "[\"\xff\"]", "[\"\\ud800\"]", "'a'", "[01]"})
    EXPECT_EQ(refused(no).substr(0, 26), "a.json: this is not JSON: ") << no;
}

TEST(JsonTextTest, ManyKeysAreReadInLinearTime) {
  // The library's parser with a callback walks the whole object for each value that ends in it: 27 s for 20,000.
  std::string text = "{";
  for (int i = 0; i < 20000; ++i) text += fmt::format("{}\"k{}\": {{\"v\": [{}]}}", i == 0 ? "" : ",", i, i);
  const auto start = std::clock();
  EXPECT_EQ(parse_json(text + "}", "a.json").size(), 20000U);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 3);
}

}  // namespace
}  // namespace flashcore
