#include "lab/harness/device_code_tokens.h"

#include <cctype>

namespace flashcore {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$'; }

class Tokenizer {
 public:
  explicit Tokenizer(std::string_view source) { join_lines(source); }

  std::vector<Token> run() {
    while (at_ < text_.size()) step();
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void unclear(const std::string& why) const { throw UnclearSource{line(), why}; }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  int line() const { return lines_.empty() ? 1 : lines_[std::min(at_, lines_.size() - 1)]; }

  // Phase 2: a backslash at a line's end joins it with the next. With blanks behind it some compilers join and others
  // (NVRTC) do not, so that what is a comment for one is code for another: refused, as are control characters.
  void join_lines(std::string_view source) {
    int line = 1;
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\\') {
        std::size_t end = i + 1;
        while (end < source.size() && source[end] != '\n' && std::isspace(static_cast<unsigned char>(source[end])))
          ++end;
        if (end < source.size() && source[end] == '\n') {
          if (end > i + 1) throw UnclearSource{line, "a backslash with blanks behind it at the end of a line"};
          ++line;
          i = end;
          continue;
        }
      }
      const bool ends_line = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
      if (std::iscntrl(static_cast<unsigned char>(source[i])) && source[i] != '\n' && source[i] != '\t' && !ends_line)
        throw UnclearSource{line, "a control character"};
      text_ += source[i];
      lines_.push_back(line);
      if (source[i] == '\n') ++line;
    }
  }

  void add(Token::Kind kind, std::size_t size) {
    tokens_.push_back({kind, text_.substr(at_, size), line(), at_line_begin_});
    at_line_begin_ = false;
    at_ += size;
  }

  void step() {
    const char c = peek();
    if (c == '\n') {
      at_line_begin_ = true;
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (c == '/' && peek(1) == '/') {
      while (at_ < text_.size() && peek() != '\n') ++at_;
    } else if (c == '/' && peek(1) == '*') {
      const std::size_t end = text_.find("*/", at_ + 2);
      if (end == std::string::npos) unclear("a comment that does not end");
      at_ = end + 2;
    } else if (c == '"' || c == '\'') {
      quoted(c);
    } else if (std::isdigit(static_cast<unsigned char>(c)) ||
               (c == '.' && std::isdigit(static_cast<unsigned char>(peek(1))))) {
      number();
    } else if (is_word(c)) {
      word();
    } else {
      sign(c);
    }
  }

  void word() {
    std::size_t size = 1;
    while (is_word(peek(size))) ++size;
    // A prefix of a literal belongs to it; only raw ones change how the rest is read.
    if (peek(size) == '"' && text_[at_ + size - 1] == 'R') unclear("a raw string");
    add(Token::kWord, size);
  }

  void number() {
    std::size_t size = 1;
    for (;; ++size) {
      const char c = peek(size), before = text_[at_ + size - 1];
      if (c == '\'' && is_word(peek(size + 1))) continue;
      if ((c == '+' || c == '-') && (before == 'e' || before == 'E' || before == 'p' || before == 'P')) continue;
      if (!is_word(c) && c != '.') break;
    }
    add(Token::kNumber, size);
  }

  void quoted(char quote) {
    std::size_t size = 1;
    while (peek(size) != quote) {
      if (at_ + size >= text_.size() || peek(size) == '\n') unclear("a text that does not end in its line");
      size += peek(size) == '\\' ? 2 : 1;
    }
    add(Token::kText, size + 1);
  }

  void sign(char c) {
    const char next = peek(1);
    if (static_cast<unsigned char>(c) >= 0x7f || static_cast<unsigned char>(c) < 0x20)
      unclear("a character that is not plain ASCII outside of a comment");
    if (c == '\\' || c == '`' || c == '@') unclear(std::string("a '") + c + "' where C++ has none");
    if (c == '?' && next == '?' && std::string_view("=/'()!<>-").find(peek(2)) != std::string_view::npos && peek(2))
      unclear("a trigraph");
    const bool colon_first = c == '<' && next == ':' && (peek(2) != ':' || peek(3) == ':' || peek(3) == '>');
    if (colon_first || (c == '<' && next == '%') || (c == '%' && (next == '>' || next == ':')) ||
        (c == ':' && next == '>'))
      unclear("a digraph");
    const bool pair = (c == ':' && next == ':') || (c == '#' && next == '#');
    add(Token::kSign, pair ? 2 : 1);
  }

  std::string text_;
  std::vector<int> lines_;  // of each character
  std::size_t at_ = 0;
  bool at_line_begin_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Tokenizer(source).run(); }

}  // namespace flashcore
