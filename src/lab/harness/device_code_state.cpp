#include "lab/harness/device_code_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace flashcore {
namespace {

// From a `static` on to what ends its declarator: ';', '=' or '{'. A function ends with '{' behind its parentheses.
bool declares_kept_variable(std::span<const Token> tokens, std::size_t at) {
  for (std::size_t before = at; before > 0 && at - before < 4; --before) {
    const Token& token = tokens[before - 1];
    if (token.kind == Token::kSign) break;
    if (token.text == "constexpr" || token.text == "consteval") return false;
  }
  bool specifiers = true, parentheses = false;
  int depth = 0;
  for (std::size_t i = at + 1; i < tokens.size(); ++i) {
    const std::string& t = tokens[i].text;
    const bool exempts = t == "constexpr" || t == "consteval" || t == "__shared__";
    if (specifiers && exempts) return false;
    if (tokens[i].kind != Token::kSign) continue;
    // Behind the declarator's first sign, such words are of a lambda in it.
    if (t != "::") specifiers = false;
    if (t == "(") ++depth, parentheses = true;
    if (t == ")") --depth;
    if (depth > 0) continue;
    if (t == "{") return !parentheses;
    if (t == ";" || t == "=") return true;
  }
  return true;
}

bool is_run_time_call(const std::string& word) {
  const auto followed_by_capital = [&](std::string_view prefix) {
    return word.starts_with(prefix) && word.size() > prefix.size() && word[prefix.size()] >= 'A' &&
           word[prefix.size()] <= 'Z';
  };
  constexpr std::array<std::string_view, 9> kDriver = {"cuCtx",   "cuStream", "cuMem",    "cuLaunch", "cuGraph",
                                                       "cuEvent", "cuModule", "cuDevice", "cuFunc"};
  return followed_by_capital("cuda") || std::any_of(kDriver.begin(), kDriver.end(), followed_by_capital);
}

// Of the texts of an asm statement.
std::string_view persistence_in(const std::string& text) {
  constexpr std::array<std::string_view, 4> kWords = {"evict_last", "createpolicy", "applypriority", "cache_hint"};
  for (const std::string_view word : kWords)
    if (text.find(word) != std::string::npos) return word;
  return "";
}

bool has_unread_escape(const std::string& text) {
  for (std::size_t at = text.find('\\'); at != std::string::npos; at = text.find('\\', at + 2))
    if (at + 1 == text.size() || (text[at + 1] != 'n' && text[at + 1] != 't')) return true;
  return false;
}

// The texts of the asm statement whose word is at `at`, put together as the compiler does.
std::optional<KeptState> find_persistence(std::span<const Token> tokens, std::size_t at) {
  std::string joined;
  int depth = 0;
  for (std::size_t i = at + 1; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (token.kind == Token::kSign) {
      if (token.text == "(") ++depth;
      if (token.text == ")" && --depth == 0) break;
      if (token.text == "#" && token.begins_line) return KeptState{token.line, "a directive in an asm statement"};
      if (token.text == ";" && depth == 0) break;
    }
    if (token.kind != Token::kText || token.text.size() < 2) continue;
    joined += token.text.substr(1, token.text.size() - 2);
    if (has_unread_escape(token.text))
      return KeptState{token.line, "an escape in an asm statement other than \\n and \\t; write the character"};
  }
  if (const std::string_view word = persistence_in(joined); !word.empty())
    return KeptState{tokens[at].line, fmt::format("'{}' keeps lines in L2 beyond the launch, so that the next one "
                                                  "finds its inputs there and no time of it is true",
                                                  word)};
  return std::nullopt;
}

}  // namespace

std::optional<KeptState> find_kept_state(std::span<const Token> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (token.kind == Token::kText) continue;
    if (token.kind == Token::kWord && (token.text == "asm" || token.text == "__asm__" || token.text == "__asm"))
      if (auto kept = find_persistence(tokens, i)) return kept;
    if (token.kind == Token::kWord && is_run_time_call(token.text))
      return KeptState{token.line, fmt::format("'{}' is the CUDA run time's; streams, memory and clocks are the host's",
                                               token.text)};
    if (token.kind == Token::kWord && token.text == "static" && declares_kept_variable(tokens, i))
      return KeptState{token.line,
                       "a static variable that is not constexpr keeps its value from launch to launch, and a launch "
                       "must compute from its inputs alone"};
    const auto is_less = [&](std::size_t at) { return at < tokens.size() && tokens[at].text == "<"; };
    if (is_less(i) && is_less(i + 1) && is_less(i + 2))
      return KeptState{token.line, "'<<<' starts another kernel, outside of the launch that is judged and timed"};
  }
  return std::nullopt;
}

}  // namespace flashcore
