#include "core/text.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

TEST(Text, WhatWouldActOnATerminalIsSpelledOut) {
  EXPECT_EQ(printable("plain, µs ×, 中文, 🙂"), "plain, µs ×, 中文, 🙂");
  EXPECT_EQ(printable("\x1b[31mred\x1b]0;title\x07"), "\\x1b[31mred\\x1b]0;title\\x07");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb c\\x0dd");
  EXPECT_EQ(printable("\u009b2J\u0085"), "\\u009b2J\\u0085");  // C1, as CSI and NEL
  EXPECT_EQ(printable("\u202egnp\u2066\u200f\u200b\ufeff"), "\\u202egnp\\u2066\\u200f\\u200b\\ufeff");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");  // tag characters
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
}

TEST(Text, BytesThatAreNoUtf8AreSpelledOut) {
  EXPECT_EQ(printable("\xff\x9b\xc3"), "\\xff\\x9b\\xc3");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\ud800");                   // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond Unicode
}

TEST(Text, ABlockKeepsItsLinesAndIndentsThem) {
  EXPECT_EQ(printable_block("one\r\ntwo\x1b[A\n", "  "), "one\n  two\\x1b[A\n  ");
  EXPECT_EQ(printable_lines("a\nb"), "a\nb");
}

TEST(Text, WidthCountsColumns) {
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("µs ×"), 4u);
  EXPECT_EQ(display_width("中文🙂"), 6u);
  EXPECT_EQ(display_width("e\u0301"), 1u);
}

TEST(Text, ShortenedTextFitsAndIsCutBetweenCharacters) {
  EXPECT_EQ(shorten("short", 10), "short");
  EXPECT_EQ(shorten("abcdefghijkl", 9), "abc...jkl");
  for (std::size_t width = 0; width < 20; ++width) {
    for (const char* text :
         {"中文中文中文中文中文", "a中b文c中d文e中f文", "e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301"}) {
      EXPECT_LE(display_width(shorten(text, width)), width) << text;
      EXPECT_EQ(printable(shorten(text, width)), shorten(text, width)) << "half a character";
    }
  }
}

}  // namespace
}  // namespace flashcore
