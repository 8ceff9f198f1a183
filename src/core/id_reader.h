#pragma once
// Reads a problem id token by token, in the one order that ids are written in.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace flashcore {

// Between what is wrong with an id and the form of ids, which takes some lines.
inline constexpr std::string_view kFormFollows = "; the form is ";

class IdReader {
 public:
  IdReader(std::string_view id, std::string form) : id_(id), rest_(id), form_(std::move(form)) { next(); }

  // The token `prefix` + digits, if it is next.
  std::optional<std::int64_t> number(std::string_view prefix);
  std::int64_t need_number(std::string_view prefix);
  // The token `prefix` + a number of any form, if the next one begins so.
  std::optional<double> real(std::string_view prefix);
  // Whether the next token is that word, which is then passed.
  bool word(std::string_view expected);
  std::string_view take();
  std::string_view token() const { return token_; }
  void need_end() const;
  // Error kBadInput with the id, the reason and the form of ids.
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  void next();

  std::string_view id_, rest_, token_;
  std::string form_;    // of ids, for what is said of a bad one
  bool ended_ = false;  // an empty token alone may also be one of two '_' in a row
};

}  // namespace flashcore
