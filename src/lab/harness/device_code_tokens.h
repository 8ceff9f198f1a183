#pragma once
// The words of a C++ source as the compiler's first phases make them: lines joined, comments gone.

#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

struct Token {
  enum Kind { kWord, kNumber, kText, kSign } kind = kSign;
  std::string text;  // kText: with its quotes
  int line = 1;
  bool begins_line = false;  // nothing but blanks and comments before it
};

// What cannot be read without doubt: the line and why.
struct UnclearSource {
  int line;
  std::string why;
};

// Throws UnclearSource for raw strings, digraphs, trigraphs, letters beyond ASCII outside of comments and texts, and
// what does not end.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace flashcore
