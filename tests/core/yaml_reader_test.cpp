#include "core/yaml_reader.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

const YamlReader kReader("my.yaml");

template <class Read>
std::string refused(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(YamlReaderTest, WhatAParserRefusesGetsItsLine) {
  const YAML::Node root = kReader.parse("first: 1\nsecond: 2\n");
  EXPECT_EQ(kReader.locate(root["second"], [] { return 7; }), 7);
  EXPECT_EQ(refused([&] {
              kReader.locate(
                  root["second"], [] { throw_bad_input("no such size"); }, "size: ");
            }),
            "my.yaml:2: size: no such size");
  // Of another kind it is nothing that the file's author could mend.
  EXPECT_THROW(
      {
        try {
          kReader.locate(root["second"], [] { throw_environment("no disk"); });
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kEnvironment);
          EXPECT_STREQ(error.what(), "no disk");
          throw;
        }
      },
      Error);
}

TEST(YamlReaderTest, EachItemOfAListHasALineOfItsOwn) {
  const YAML::Node root = kReader.parse("sizes:\n  - one\n  - two\n  - three\n");
  const auto length = [](const std::string& word) {
    if (word == "three") throw_bad_input("'{}' is too long", word);
    return word.size();
  };
  EXPECT_EQ(refused([&] { kReader.locate_each(root, "sizes", "a test", length); }), "my.yaml:4: 'three' is too long");
  const YAML::Node good = kReader.parse("sizes: [one, seven]");
  EXPECT_EQ(kReader.locate_each(good, "sizes", "a test", length), (std::vector<std::size_t>{3, 5}));
}

TEST(YamlReaderTest, TextsAreAListThatIsNotEmpty) {
  const auto texts = [](const char* text) { return kReader.texts(kReader.parse(text), "all", "a test"); };
  EXPECT_EQ(texts("all: [a, b]"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(refused([&] { texts("all: a"); }), "my.yaml:1: all is not a list; write all: [one, two]");
  EXPECT_EQ(refused([&] { texts("all: []"); }), "my.yaml:1: all is empty; write all: [one, two]");
}

TEST(YamlReaderTest, ItemsAreAListThatIsNotEmpty) {
  const auto count = [](const char* text) { return kReader.items(kReader.parse(text), "all", "a test", "{x}").size(); };
  EXPECT_EQ(count("all: [{x: 1}, {x: 2}]"), 2u);
  EXPECT_EQ(refused([&] { count("all: 5"); }), "my.yaml:1: all is not a list; write '- {x}' lines under it");
  EXPECT_EQ(refused([&] { count("a: 1\nall: []"); }), "my.yaml:2: all is empty; give at least one '- {x}'");
  EXPECT_EQ(refused([&] { count("a: 1"); }), "my.yaml:1: a test lacks the key 'all'; add it");
}

}  // namespace
}  // namespace flashcore
