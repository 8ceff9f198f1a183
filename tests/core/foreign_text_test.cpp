#include "core/foreign_text.h"

#include <gtest/gtest.h>

namespace flashcore {
namespace {

TEST(ForeignTextTest, WhatIsQuotedIsOneLineOfPrintableText) {
  EXPECT_EQ(excerpt("b1_h8 \u00e9\u4e16"), "b1_h8 \u00e9\u4e16");
  EXPECT_EQ(excerpt(std::string_view("a\0b\x1b[2J\n\x7f", 8)), "a\\x00b\\x1b[2J\\x0a");
  EXPECT_EQ(excerpt("\u009b2J"), "\\xc2\\x9b2J");  // the C1 form of ESC [
  EXPECT_EQ(excerpt("\xff\xc0\xaf"), "\\xff\\xc0\\xaf");
  EXPECT_EQ(excerpt(std::string(300, 'x')), std::string(200, 'x') + "... (300 bytes)");
}

TEST(ForeignTextTest, BadCharactersAreFound) {
  EXPECT_EQ(find_bad_character("tab\t line\r\n \u00e9"), std::string_view::npos);
  EXPECT_EQ(find_bad_character(std::string_view("ab\0", 3)), 2U);
  EXPECT_EQ(find_bad_character("ab\x04"), 2U);
  for (const char* bad :
       {"\xff", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc3", "\xe4\xb8", "\x80"})
    EXPECT_EQ(find_bad_character(bad), 0U) << bad;
}

TEST(ForeignTextTest, NumbersAreDecimalAndWhole) {
  EXPECT_EQ(parse_whole("10"), 10);
  EXPECT_EQ(parse_whole("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(parse_unsigned("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(parse_unsigned("0"), 0U);
  for (const char* no : {"", "-", "010", "-01", "0x10", "+5", " 5", "5 ", "1e3", "5.0", "1_000", "9223372036854775808"})
    EXPECT_FALSE(parse_whole(no)) << no;
  for (const char* no : {"", "-1", "-0", "010", "18446744073709551616"}) EXPECT_FALSE(parse_unsigned(no)) << no;
  EXPECT_EQ(parse_finite("-1.5e3"), -1500);
  EXPECT_EQ(parse_finite("0.25"), 0.25);
  EXPECT_EQ(parse_finite("-0"), 0);
  for (const char* no :
       {"", "nan", "inf", "-inf", ".inf", "1e400", "0x1p3", "1.5 ", "+1", "1,5", "010", "-010", "00", "00.5", "01e2"})
    EXPECT_FALSE(parse_finite(no)) << no;
}

}  // namespace
}  // namespace flashcore
