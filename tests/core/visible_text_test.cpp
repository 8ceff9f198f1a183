#include "core/visible_text.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

TEST(VisibleText, WhatWouldActOnATerminalIsSpelledOut) {
  EXPECT_EQ(visible("plain, µs ×, 中文, 🙂"), "plain, µs ×, 中文, 🙂");
  EXPECT_EQ(visible("\x1b[31mred\x1b]0;title\x07"), "\\x1b[31mred\\x1b]0;title\\x07");
  EXPECT_EQ(visible("a\nb\tc\rd"), "a\\nb c\\x0dd");
  EXPECT_EQ(visible("\u009b2J\u0085"), "\\u009b2J\\u0085");  // C1, as CSI and NEL
  EXPECT_EQ(visible("\u202egnp\u2066\u200f\u200b\ufeff"), "\\u202egnp\\u2066\\u200f\\u200b\\ufeff");
  EXPECT_EQ(visible("\U000e0041"), "\\U000e0041");  // tag characters
  EXPECT_EQ(visible(std::string("a\0b", 3)), "a\\x00b");
}

TEST(VisibleText, BytesThatAreNoUtf8AreSpelledOut) {
  EXPECT_EQ(visible("\xff\x9b\xc3"), "\\xff\\x9b\\xc3");
  EXPECT_EQ(visible("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(visible("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond Unicode
}

TEST(VisibleText, ABlockKeepsItsLinesAndIndentsThem) {
  EXPECT_EQ(visible_block("one\r\ntwo\x1b[A\n", "  "), "one\n  two\\x1b[A\n  ");
  EXPECT_EQ(visible_lines("a\nb"), "a\nb");
}

TEST(VisibleText, HtmlAndXmlHoldOnlyWhatTheyCan) {
  EXPECT_EQ(escape_html("a<b>&\"c'\n\u00e9"), "a&lt;b&gt;&amp;&quot;c&#39;\n\u00e9");
  EXPECT_EQ(escape_html("\uFFFE\uFFFF\x01\xff"), "\\ufffe\\uffff\\x01\\xff");
  EXPECT_EQ(escape_html("\U0001F600"), "\U0001F600");
}

TEST(VisibleText, WidthCountsColumns) {
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("µs ×"), 4u);
  EXPECT_EQ(display_width("中文🙂"), 6u);
  EXPECT_EQ(display_width("e\u0301"), 1u);
}

TEST(VisibleText, ShortenedTextFitsAndIsCutBetweenCharacters) {
  EXPECT_EQ(shorten("short", 10), "short");
  EXPECT_EQ(shorten("abcdefghijkl", 9), "abc...jkl");
  for (std::size_t width = 0; width < 20; ++width) {
    for (const char* text :
         {"中文中文中文中文中文", "a中b文c中d文e中f文", "e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301"}) {
      EXPECT_LE(display_width(shorten(text, width)), width) << text;
      EXPECT_EQ(visible(shorten(text, width)), shorten(text, width)) << "half a character";
    }
  }
}

}  // namespace
}  // namespace flashcore
